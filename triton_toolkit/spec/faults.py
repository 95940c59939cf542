"""Say what is wrong with a spec in the spec's own terms, from what pydantic found.

pydantic speaks of "inputs" and "dictionaries" and puts union members into its locations; users
wrote keys, lists and mappings, in a file, on a line.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import SpecError, TritonToolkitError
from triton_toolkit.spec.source import KeyPath, Source

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


class RuleError(ValueError):
    """A rule of ours that a value breaks, raised by the validators of ``spec.models``.

    Args:
        message: What is wrong.
        at: Keys below the validated value that the fault is about.
        hint: What to do next, or empty.
    """

    def __init__(self, message: str, *at: str | int, hint: str = "") -> None:
        super().__init__(message)
        self.at = at
        self.hint = hint

    @classmethod
    def of(cls, error: TritonToolkitError) -> RuleError:
        """Carry an error of ours through pydantic, hint included."""
        return cls(error.message.removeprefix("name: "), hint=error.hint)


_RULES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "dict_type": lambda _: "must be a mapping of keys",
    "model_type": lambda _: "must be a mapping of keys",
    "model_attributes_type": lambda _: "must be a mapping of keys",
    "list_type": lambda _: "must be a list",
    "string_type": lambda _: "must be text",
    "int_type": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_type": lambda _: "must be a number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a finite number",
    "bool_type": lambda _: "must be true or false",
    "bool_parsing": lambda _: "must be true or false",
    "too_short": lambda ctx: "must not be empty" if ctx["min_length"] == 1 else "is too short",
    "greater_than_equal": lambda ctx: f"must be at least {ctx['ge']}",
    "less_than_equal": lambda ctx: f"must be at most {ctx['le']}",
    "literal_error": lambda ctx: f"must be {ctx['expected']}",
}
"""pydantic's error type -> what the value must be, in words. Types that ``spec.models`` can raise."""


_MAX_SHOWN = 10
_RANGE_KEYS = ("min", "opt", "max")
_UNKNOWN = ("extra_forbidden", "union_tag_invalid")


class ManyRulesError(ValueError):
    """Several rules of ours that one value breaks."""

    def __init__(self, errors: Sequence[RuleError]) -> None:
        super().__init__("; ".join(map(str, errors)))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class _Fault:
    """One fault in the spec's terms; unknown keys sort first, as other faults may follow from them."""

    unknown: bool
    path: KeyPath
    message: str
    hint: str


def spec_error(source: Source, exc: ValidationError) -> SpecError:
    """Return one error that lists the faults, each with its place; the hint is the first one's."""
    found = exc.errors(include_url=False)
    faults = [fault for error in found if not _follows(error, found) for fault in _faults(source, error)]
    main = source.mark(()).file

    def order(fault: _Fault) -> tuple[bool, bool, str, int, int]:
        mark = source.mark(fault.path)
        return (not fault.unknown, mark.file != main, mark.file, mark.line, mark.column)

    first, *others = sorted(faults, key=order)
    lines = [source.error(fault.path, fault.message + _inline(fault, first)).message for fault in others]
    lines = list(dict.fromkeys(lines))  # pydantic may report a value once for each form that it could have
    if (more := 1 + len(lines) - _MAX_SHOWN) > 0:
        lines[-more:] = [f"and {more} more"]
    return source.error(first.path, "\n".join([first.message, *lines]), first.hint)


def _inline(fault: _Fault, first: _Fault) -> str:
    """Return a later fault's hint as part of its line, where it says more than the line and the hint do."""
    new = fault.hint and fault.hint != first.hint and "did you mean" not in fault.message
    return f" ({fault.hint})" if new else ""


def _follows(fault: ErrorDetails, faults: Sequence[ErrorDetails]) -> bool:
    """Say whether a key is missing because it is misspelt: ``sorce`` is unknown, ``source`` missing."""
    if fault["type"] != "missing":
        return False
    *beside, key = fault["loc"]
    unknown = [
        str(f["loc"][-1]) for f in faults if f["type"] == "extra_forbidden" and [*f["loc"][:-1]] == beside
    ]
    return bool(difflib.get_close_matches(str(key), unknown, n=1))


def _faults(source: Source, fault: ErrorDetails) -> Iterator[_Fault]:
    path = _key_path(source.value, fault)
    unknown = fault["type"] in _UNKNOWN
    match fault["type"]:
        case "extra_forbidden":
            yield _Fault(unknown, path, *_unknown_key(fault))
        case "missing":
            yield _Fault(unknown, path[:-1], f"key {path[-1]!r} is missing", "")
        case "union_tag_invalid":
            yield _Fault(unknown, (*path, "kind"), *_unknown_kind(fault))
        case "value_error":
            error = fault["ctx"]["error"]
            for each in error.errors if isinstance(error, ManyRulesError) else [error]:
                at = (*path, *getattr(each, "at", ()))
                yield _Fault(unknown, at, str(each), getattr(each, "hint", ""))
        case _:
            message, hint = _plain(fault, source.texts.get(path))
            last = fault["loc"][-1] if fault["loc"] else ""
            if last in _RANGE_KEYS and path[-1:] != (last,):  # of a range that was written as a list
                message = f"{last} {message}"
            yield _Fault(unknown, path, message, hint)


def _key_path(value: Any, fault: ErrorDetails) -> KeyPath:
    """Return a location without what pydantic adds: tags of unions, members of unions."""
    path: list[str | int] = []
    for part in fault["loc"]:
        if _has(value, part):
            value = value[part]
        elif fault["type"] != "missing" or part != fault["loc"][-1]:
            continue
        path.append(part)
    return tuple(path)


def _has(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _unknown_key(fault: ErrorDetails) -> tuple[str, str]:
    from triton_toolkit.spec.schema import json_schema, keys_at, kinds_with

    schema = json_schema()
    key, known = str(fault["loc"][-1]), keys_at(schema, fault["loc"][:-1])
    message = f"unknown key {key!r}"
    near = difflib.get_close_matches(key, known, n=1)
    in_model = len(fault["loc"]) == 4 and fault["loc"][0] == "models"
    kinds = kinds_with(schema, key) if in_model else []
    if near:
        message += f"; did you mean {near[0]!r}?"
    elif kinds:
        message = f"key {key!r} does not go with kind {fault['loc'][2]}, only with {', '.join(kinds)}"
    return message, f"known here: {', '.join(known)}" if known else ""


def _unknown_kind(fault: ErrorDetails) -> tuple[str, str]:
    kind, known = fault["ctx"]["tag"], fault["ctx"]["expected_tags"].replace("'", "")
    near = difflib.get_close_matches(kind, known.split(", "), n=1)
    return f"unknown kind {kind!r}" + (f"; did you mean {near[0]!r}?" if near else ""), f"known: {known}"


def _plain(fault: ErrorDetails, text: str | None) -> tuple[str, str]:
    rule = _RULES.get(fault["type"])
    message = rule(fault.get("ctx", {})) if rule else fault["msg"][:1].lower() + fault["msg"][1:]
    shown = "nothing" if fault["input"] is None else text or repr(fault["input"])
    message += f", got {shown}" if len(shown) < 80 else ""
    if fault["type"] == "string_type" and text:
        return message, f'put it in quotes: "{text}"'
    return message, ""
