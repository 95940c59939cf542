"""Single values of ``serve:`` -> values of protobuf fields: text, numbers, units, enums.

YAML has its own idea of what a plain word is (``no`` is false, ``1.10`` is 1.1), so text is taken only
where nothing can have been lost on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from triton_toolkit.config.vocabulary import data_type_alias, did_you_mean, near, short_prefix
from triton_toolkit.core.units import parse_bytes, parse_microseconds
from triton_toolkit.errors import SpecError
from triton_toolkit.spec.source import KeyPath, format_path

if TYPE_CHECKING:
    from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor

_SIZES = ("_bytes", "gpu_mem_limit")
_FLOAT32_MAX = 3.4028234663852886e38


class ServeKeyError(SpecError):
    """A key below ``serve:`` that cannot become a field of the config, or that Triton would refuse.

    Attributes:
        path: The key, relative to ``serve``: names, and numbers in lists.
        message: What is wrong, without the place.
    """

    def __init__(self, path: KeyPath, message: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path

    def __str__(self) -> str:
        """Return the message with its key in front."""
        return f"serve.{format_path(self.path)}: {self.message}" if self.path else f"serve: {self.message}"


def scalar(field: FieldDescriptor, value: Any, path: KeyPath) -> Any:
    """Return ``value`` as what a scalar field takes.

    Fields named ``…_microseconds`` take a duration with a unit (``1ms``) or whole microseconds.

    Raises:
        ServeKeyError: Another type, out of range, or not a value of the field's enum.
    """
    if field.enum_type is not None:
        return _enum(field.enum_type, value, path)
    if field.type == field.TYPE_BOOL:
        return _bool(value, path)
    if field.type == field.TYPE_STRING:
        return text(value, path)
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return _number(value, path, single=field.type == field.TYPE_FLOAT)
    bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 64
    signed = field.type in (field.TYPE_INT32, field.TYPE_INT64)
    if field.name.endswith("_microseconds") and isinstance(value, str):
        value = _with_unit(parse_microseconds, value, path)
    return _whole(value, path, bits=bits, signed=signed)


def text(value: Any, path: KeyPath, *, fractions: bool = False) -> str:
    """Return text as it is, and whole numbers as text; sizes in bytes may have a unit.

    Args:
        value: The value as YAML gave it.
        path: Its key; one ending in ``_bytes`` (or ``gpu_mem_limit``) takes ``1GiB``.
        fractions: Whether 0.5 may be taken as text; YAML has dropped trailing zeros by then.

    Raises:
        ServeKeyError: A boolean, a fraction, a date, a list, or text that is not Unicode.
    """
    if isinstance(value, bool):
        raise ServeKeyError(
            path,
            f"is text, got {_shown(value)}, which YAML takes for a boolean",
            'write the very text in quotes: "true", "yes" or "1", whichever its reader expects',
        )
    if isinstance(value, int) or (fractions and isinstance(value, float)):
        return str(value)
    if not isinstance(value, str):
        raise ServeKeyError(path, f"is text, got {_shown(value)}", "write it in quotes")
    if isinstance(path[-1], str) and path[-1].endswith(_SIZES) and value[:1].isdigit():
        return str(_with_unit(parse_bytes, value, path))
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise ServeKeyError(path, f"{value!r} is not Unicode text") from exc
    return value


def whole(value: Any, path: KeyPath) -> int:
    """Return a whole number that fits an int32.

    Raises:
        ServeKeyError: It is none.
    """
    return _whole(value, path, bits=32, signed=True)


def _whole(value: Any, path: KeyPath, *, bits: int, signed: bool) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "write it without quotes and without a unit" if isinstance(value, str) else ""
        raise ServeKeyError(path, f"is a whole number, got {_shown(value)}", hint)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    if not low <= value <= high:
        raise ServeKeyError(path, f"{value} is outside {low} to {high}")
    return value


def _number(value: Any, path: KeyPath, *, single: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ServeKeyError(path, f"is a number, got {_shown(value)}")
    if math.isnan(value) or abs(value) > (_FLOAT32_MAX if single else math.inf):
        raise ServeKeyError(path, f"{value} is not a number that Triton can use here")
    return float(value)


def _bool(value: Any, path: KeyPath) -> bool:
    if not isinstance(value, bool):
        raise ServeKeyError(path, f"is true or false, got {_shown(value)}")
    return value


def _enum(enum: EnumDescriptor, value: Any, path: KeyPath) -> int:
    """Return an enum's number for its name, in any case, with or without the common prefix."""
    names = [item.name for item in enum.values]
    prefix = short_prefix(enum)
    if not isinstance(value, str):
        raise ServeKeyError(path, f"is a name, got {_shown(value)}", f"use {', '.join(names)}")
    for name in (value.upper(), prefix + value.upper(), data_type_alias(value)):
        if name in enum.values_by_name:
            return enum.values_by_name[name].number
    guess = near(value, names) or near(prefix + value, names)
    raise ServeKeyError(
        path, f"{enum.name} has no value {value!r}{did_you_mean(guess)}", f"use {', '.join(names)}"
    )


def _with_unit(parse: Callable[[str], int], value: str, path: KeyPath) -> int:
    try:
        return parse(value)
    except ValueError as exc:
        raise ServeKeyError(path, str(exc)) from exc


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a block"
    return repr(value)
