"""Options that several commands share: same name, same help, same meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from triton_toolkit.cli import JSON_MODE

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project

_DAY_S = 24 * 3600.0  # what waits longer waits for nothing; the system's own timeouts end after 24 days

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _remember_json(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
    ctx.meta[JSON_MODE] = value
    return value


def json_option(function: _Function) -> _Function:
    """Add ``--json`` as ``json_mode``: the result as JSON on stdout, everything else on stderr."""
    return click.option(
        "--json",
        "json_mode",
        is_flag=True,
        is_eager=True,
        callback=_remember_json,
        help="Print the result as JSON on stdout; everything else goes to stderr.",
    )(function)


def spec_option(function: _Function) -> _Function:
    """Add ``--spec FILE`` as ``spec_path``."""
    return click.option(
        "--spec",
        "spec_path",
        type=click.Path(path_type=Path, dir_okay=False),
        default=Path("tt.yaml"),
        show_default=True,
        metavar="FILE",
        help="The spec to read.",
    )(function)


def url_option(function: _Function) -> _Function:
    """Add ``--url URL`` as ``url``."""
    return click.option(
        "--url",
        default="grpc://127.0.0.1:8001",
        show_default=True,
        metavar="URL",
        help="The server: grpc://HOST:PORT, grpcs://, http:// or https://.",
    )(function)


def server_option(function: _Function) -> _Function:
    """Add ``--server URL`` as ``server``: another server than the target names."""
    return click.option(
        "--server", metavar="URL", help="Use this server instead of the one that the target names."
    )(function)


def target_option(function: _Function) -> _Function:
    """Add ``--to TARGET`` as ``target``, a target of the spec; ``require_target`` insists on it."""
    return click.option("--to", "target", metavar="TARGET", help="A target of the spec.  [required]")(
        function
    )


def require_target(target: str | None, project: Project) -> str:
    """Return the target that was given.

    Raises:
        click.UsageError: None was; names those of the spec.
    """
    if target is None:
        known = ", ".join(project.spec.targets) or "none yet"
        raise click.UsageError(f"Missing option '--to'. Targets of the spec: {known}")
    return target


def parse_timeout(option: str, text: str, *, zero: bool = False) -> float:
    """Return an option's duration in seconds: at most a day, and longer than 0 unless ``zero`` is allowed.

    Raises:
        click.BadParameter: It is none; names the option.
    """
    from triton_toolkit.core.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint=option) from exc
    if not 0 <= seconds <= _DAY_S or (seconds == 0 and not zero):
        span = "between 0 and a day" if zero else "above 0 and up to a day"
        raise click.BadParameter(f"{text!r} is not {span}", param_hint=option)
    return seconds
