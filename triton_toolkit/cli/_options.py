"""Options that several commands share: same name, same help, same meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from triton_toolkit.cli import JSON_MODE

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project

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
