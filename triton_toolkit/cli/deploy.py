"""``tt deploy``: put built models on a target, all of them or none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from triton_toolkit.cli._options import (
    json_option,
    parse_timeout,
    require_target,
    server_option,
    spec_option,
    target_option,
)

if TYPE_CHECKING:
    from triton_toolkit.cli._output import Console
    from triton_toolkit.deploy.report import DeployReport


@click.command(
    epilog="""\b
Examples:
  tt deploy --to local                   all models of the spec
  tt deploy digits --to local            one model
  tt deploy digits --to local --dry-run  what would be written and called
"""
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@target_option
@click.option("--no-rehearsal", is_flag=True, help="Do not try the files on a private server first.")
@click.option("--dry-run", is_flag=True, help="Check, and say what would be done; write nothing.")
@click.option(
    "--load-timeout",
    default="2m",
    show_default=True,
    metavar="TIME",
    help="The longest that a load may take.",
)
@server_option
@spec_option
@json_option
def command(
    models: tuple[str, ...],
    target: str | None,
    no_rehearsal: bool,
    dry_run: bool,
    load_timeout: str,
    server: str | None,
    spec_path: Path,
    json_mode: bool,
) -> None:
    """Deploy MODELs, or all, to a target as one transaction.

    A new version is tried under a name that no client knows, then published, loaded, and compared
    with its golden sample. If anything goes wrong, ctrl-C included, the former version is served
    again and the exit code says so.
    """
    from triton_toolkit.cli._output import Console
    from triton_toolkit.deploy.run import DeployOptions, run_deploy
    from triton_toolkit.spec.load import load_project

    console = Console(json_mode)
    project = load_project(spec_path)
    target = require_target(target, project)
    project = project.at_server(target, server)
    options = DeployOptions(
        names=models,
        rehearsal=not no_rehearsal,
        dry_run=dry_run,
        load_timeout_s=parse_timeout("--load-timeout", load_timeout),
    )
    with console.progress() as progress:
        report = run_deploy(project, target, options, progress)
    if json_mode:
        console.json(report.as_dict())
    else:
        _show(console, report)


def _show(console: Console, report: DeployReport) -> None:
    from triton_toolkit.core.units import format_bytes

    planned = report.verdict == "planned"
    rows = [
        [
            model.name,
            model.action.value,
            ", ".join(map(str, model.previous)) or "-",
            str(model.version),
            str(model.files),
            format_bytes(model.bytes),
            "-" if planned else _golden(model.golden),
        ]
        for model in report.models
    ]
    console.table(["model", "action", "serving", "version:>", "files:>", "size:>", "golden sample"], rows)
    for call in report.calls if planned else ():
        console.line(f"would call: {call}")
    for note in report.notes:
        console.line(f"note: {note}")
    state = {True: ", ready", False: ", not ready", None: ""}[report.ready]
    where = f"{report.target}: {report.store}, {report.url} (Triton {report.server_version}{state})"
    if planned:
        console.line(f"nothing written to {where}")
    else:
        console.verdict("pass", f"{report.verdict} to {where}")


def _golden(golden: tuple[object, ...]) -> str:
    if not golden:
        return "not checked"
    return "1 output matches" if len(golden) == 1 else f"{len(golden)} outputs match"
