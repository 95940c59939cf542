"""How ``tt build --bisect`` shows what it tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from triton_toolkit.errors import EXIT_NO

if TYPE_CHECKING:
    from triton_toolkit.build.bisect import BisectReport
    from triton_toolkit.cli._output import Console
    from triton_toolkit.spec.load import Project

_SHOWN = 160


def bisect(console: Console, project: Project, names: Sequence[str]) -> None:
    """Try every combination, show a table a model, and exit 1 where a model has none that is right."""
    from triton_toolkit.build.bisect import bisect_models

    with console.progress() as progress:
        reports = bisect_models(project, names, progress)
    if console.json_mode:
        console.json({"models": [report.as_dict() for report in reports]})
    for report in reports:
        _show(console, report)
    failed = [report for report in reports if report.error is not None]
    if len(failed) == 1 and len(reports) == 1 and failed[0].error is not None and not console.json_mode:
        raise failed[0].error
    codes = [report.error.exit_code if report.error else EXIT_NO for report in reports if not report.ok]
    if codes:
        click.get_current_context().exit(max(codes))


def _show(console: Console, report: BisectReport) -> None:
    if report.error is not None:
        if not console.json_mode:
            click.echo(f"Error: {report.error.message}", err=True)
        return
    columns = ["exporter", "opset:>", "optimizations", "result", "largest error:>", "why"]
    rows = [
        [
            trial.exporter,
            str(trial.opset),
            "-" if trial.outcome == "refused" else "on" if trial.optimized else "off",
            trial.outcome,
            "-" if trial.largest_error is None else f"{trial.largest_error:.1e}",
            trial.text if len(trial.text) <= _SHOWN else trial.text[: _SHOWN - 1] + "…",
        ]
        for trial in report.trials
    ]
    console.table(columns, rows, title=report.name)
