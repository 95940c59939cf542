"""Jinja for config.pbtxt: where templates come from, what they may do, how their errors are told.

Imports jinja2 at the top; its importers load it late.
"""
# ruff: noqa: TID253 - see above

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf.text_encoding import CEscape
from jinja2 import (
    ChoiceLoader,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateError,
    TemplateNotFound,
    TemplateRuntimeError,
    TemplateSyntaxError,
    UndefinedError,
)
from jinja2.sandbox import SandboxedEnvironment

from triton_toolkit.config.view import MessageView, fields_text, missing_field
from triton_toolkit.errors import RepositoryError, SpecError

MAIN = "config.pbtxt.j2"
_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_folder() -> Path:
    """Return the folder of the shipped templates: the wheel's copy, or the checkout's ``templates/``."""
    packaged = _PACKAGE / "templates"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "templates"


def overridden(overrides: Path | None) -> list[str]:
    """Return the names of the shipped templates that a user's folder replaces.

    Raises:
        SpecError: There is no such folder, or nothing in it replaces a shipped template.
    """
    if overrides is None:
        return []
    if not overrides.is_dir():
        raise SpecError(f"templates: no such folder: {overrides}")
    shipped = FileSystemLoader(shipped_folder()).list_templates()
    found = [name for name in shipped if (overrides / name).is_file()]
    if not found:
        raise SpecError(
            f"templates: {overrides} replaces none of the shipped templates",
            hint=f"a file there replaces the shipped one of the same name: {', '.join(shipped)}",
        )
    return found


def environment(overrides: Path | None) -> SandboxedEnvironment:
    """Return the environment that renders configs.

    Names are looked up in the user's folder, then among the shipped templates; ``shipped/NAME`` is
    always the shipped one, for a template that extends what it replaces.
    """
    return _environment(shipped_folder(), overrides)


@lru_cache(maxsize=8)
def _environment(shipped_templates: Path, overrides: Path | None) -> SandboxedEnvironment:
    """Compile each template once a process; jinja looks at the files' times and compiles changed ones."""
    shipped = FileSystemLoader(shipped_templates)
    own = [FileSystemLoader(overrides)] if overrides is not None else []
    made = SandboxedEnvironment(
        loader=ChoiceLoader([*own, shipped, PrefixLoader({"shipped": shipped})]),
        undefined=_Undefined,
        autoescape=False,  # config.pbtxt is no HTML; `quote` escapes text for it
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["quote"] = quote
    made.filters["fields"] = _fields
    made.filters["indent"] = _indent
    return made


@contextmanager
def template_errors() -> Iterator[None]:
    """Turn whatever a template does wrong into one error that names the template and its line.

    Raises:
        RepositoryError: A template is missing, has a syntax error, or failed while it rendered.
    """
    try:
        yield
    except TemplateSyntaxError as exc:
        place = f"{exc.filename or exc.name}:{exc.lineno}"
        raise RepositoryError(f"template {place}: {exc.message}") from exc
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as exc:
        place = _template_line(exc)
        if not place:
            raise
        raise RepositoryError(f"template {place}: {_words(exc)}") from exc


def quote(value: Any) -> str:
    """Return text as a string literal of protobuf's text format; nothing in it can end the literal.

    Raises:
        TemplateRuntimeError: The value is not text.
    """
    if not isinstance(value, str):
        raise TemplateRuntimeError(f"quote takes text, got {_kind(value)}")
    return f'"{CEscape(value.encode(), as_utf8=True)}"'


def _indent(text: str, width: int = 2, first: bool = False) -> str:
    """Indent lines. Jinja's own filter takes U+0085 and its like, inside a literal, for a line end."""
    lines = text.split("\n")
    head = lines[:0] if first else lines[:1]
    return "\n".join([*head, *(f"{' ' * width}{line}" for line in lines[len(head) :])])


def _fields(value: Any, *without: str) -> str:
    if not isinstance(value, MessageView):
        raise TemplateRuntimeError(f"fields takes a block of the config, got {_kind(value)}")
    try:
        return fields_text(value, *without)
    except AttributeError as exc:
        raise TemplateRuntimeError(str(exc)) from exc


class _Undefined(StrictUndefined):
    """A name that is not there; says what a message has instead."""

    @property
    def _undefined_message(self) -> str:
        if isinstance(self._undefined_obj, MessageView):
            return missing_field(self._undefined_obj, str(self._undefined_name))
        return super()._undefined_message


def _printable(value: Any) -> Any:
    """Let only what config.pbtxt can hold be printed: text, numbers, true and false."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, MessageView | tuple | list | dict):
        raise TemplateRuntimeError(f"cannot print {_kind(value)}; test it with if, or print it with fields")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "a block that is not set"
    return "a block" if isinstance(value, MessageView) else f"a {type(value).__name__}"


def _template_line(exc: BaseException) -> str:
    """Return ``file:line`` of the template that an error is about; "" where it is a bug of ours.

    Jinja puts a template's lines into the traceback. An error of Python that arose in this package,
    below a template, is no template's doing.
    """
    frames = traceback.extract_tb(exc.__traceback__)
    ours = frames[-1].filename.startswith(f"{_PACKAGE}/") and frames[-1].filename.endswith(".py")
    if ours and not isinstance(exc, TemplateError | RecursionError):
        return ""
    found = [frame for frame in frames if frame.filename.endswith(".j2")]
    return f"{found[-1].filename}:{found[-1].lineno}" if found else ""


def _words(exc: BaseException) -> str:
    if isinstance(exc, TemplateNotFound):
        return f"includes {exc.name!r}, which is in no template folder"
    if isinstance(exc, UndefinedError | TemplateRuntimeError):
        return str(exc.message)
    if isinstance(exc, RecursionError):
        return "includes or calls itself without end"
    return f"{type(exc).__name__}: {exc}"
