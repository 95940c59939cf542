"""The command line: ``tt COMMAND``. One file a command; the only place that prints and exits.

Top-level imports here and in the command files are click and the standard library alone, so that
``tt --help`` costs little more than ``import click``.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from triton_toolkit import __version__
from triton_toolkit._interrupts import RaiseOnInterrupt, came_from_interrupt, leave_on_interrupt
from triton_toolkit._stdio import OutputError, discard_stdout
from triton_toolkit.cli._errors import print_error
from triton_toolkit.errors import (
    EXIT_BUG,
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_OUTPUT_UNREAD,
    TritonToolkitError,
    UsageError,
)

COMMANDS = ("init", "schema", "build", "serve", "deploy", "status", "probe", "env")
"""Commands in the order of use; each is ``command`` in the module of its name."""

JSON_MODE = "triton_toolkit.json"
"""Key of ``Context.meta`` that ``--json`` sets, so that errors are JSON as well."""

_AS_JSON = "triton_toolkit.as_json"
"""Key of ``Context.meta``: whether ``--json`` is among the arguments, for errors before it is parsed."""

_OF_INTERRUPTED_IMPORTS = (ImportError, SystemError, RuntimeError)
"""What an interrupted import may end in; Python makes RuntimeError of what __set_name__ raises."""


class ToolkitGroup(click.Group):
    """Loads a command's module when it is asked for, and reports errors by their class."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module; None lets click say that there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"triton_toolkit.cli.{cmd_name}").command
        return command if isinstance(command, click.Command) else None

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the command; remember whether ``--json`` is among the rest."""
        as_json = _asks_for_json(args)
        try:
            ctx = super().make_context(info_name, args, parent, **extra)
        except click.UsageError as exc:
            _report_usage(exc, as_json)
            raise
        ctx.meta[_AS_JSON] = as_json
        return ctx

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; known errors become one message and their exit code, bugs exit 70."""
        try:
            with RaiseOnInterrupt():
                return super().invoke(ctx)
        except TritonToolkitError as exc:
            _report(ctx, exc)
            ctx.exit(exc.exit_code)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except click.UsageError as exc:
            _report_usage(exc, ctx.meta[_AS_JSON])
            raise
        except (click.ClickException, click.exceptions.Exit, click.Abort, OutputError):
            raise
        except Exception as exc:  # noqa: BLE001 - the process edge: a bug keeps its traceback
            interrupted = came_from_interrupt(exc)
            if not (interrupted and isinstance(exc, _OF_INTERRUPTED_IMPORTS)):
                traceback.print_exc()
            if interrupted:
                click.echo("Interrupted.", err=True)
                ctx.exit(EXIT_INTERRUPTED)
            click.echo("This is a bug in tt; please report it with the lines above.", err=True)
            ctx.exit(EXIT_BUG)


def _asks_for_json(args: Sequence[str]) -> bool:
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def _report_usage(exc: click.UsageError, as_json: bool) -> None:
    """Print click's error as JSON as well where asked for; click prints it for people, and exits 2."""
    if as_json:
        click.echo(json.dumps(UsageError(exc.format_message()).as_dict(), indent=2))


def _report(ctx: click.Context, exc: TritonToolkitError) -> None:
    if ctx.meta.get(JSON_MODE):
        click.echo(json.dumps(exc.as_dict(), indent=2))
    print_error(exc.message, hint=exc.hint, detail=exc.detail)


@click.group(
    cls=ToolkitGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `tt init`, then `tt build`, `tt serve`, `tt deploy` and `tt probe`.",
)
@click.version_option(__version__, prog_name="tt", message="%(prog)s %(version)s")
def cli() -> None:
    """Take a PyTorch model to a proven NVIDIA Triton deployment."""


def main() -> NoReturn:
    """Run ``tt``; ``__main__`` calls this."""
    leave_on_interrupt()
    try:
        try:
            cli.main(prog_name="tt")
        finally:
            sys.stdout.flush()
    except OutputError as exc:
        discard_stdout()
        if exc.reader_has_gone:  # `tt … | head`
            sys.exit(EXIT_OUTPUT_UNREAD)
        click.echo(f"Error: cannot write to standard output: {exc}", err=True)
        sys.exit(EXIT_ENVIRONMENT)
    sys.exit(0)  # click exits itself; this line tells the type checker so
