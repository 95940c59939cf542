"""``tt build``: export, prove and render the models of the spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from triton_toolkit.cli._options import json_option, spec_option

if TYPE_CHECKING:
    from triton_toolkit.build.run import BuildOptions, ModelReport
    from triton_toolkit.cli._output import Console
    from triton_toolkit.repository.passport import Passport
    from triton_toolkit.spec.load import Project


@click.command(
    epilog="""\b
Examples:
  tt build                     every model, only what changed
  tt build digits --why        one model, with the reasons
  tt build --dry-run --json    what would be done, for a machine
  tt build digits --bisect     which exporter and opset is right
  tt build --changed-since origin/main --cache s3://bucket/tt    in CI: see docs/ci.md
"""
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@spec_option
@click.option("--only", metavar="STAGE,...", help="Run only these stages: export, config.")
@click.option("--force", is_flag=True, help="Build also what has not changed.")
@click.option("--why", is_flag=True, help="Say what made each model stale.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@click.option(
    "--changed-since",
    metavar="REF",
    help="Leave out what is known to be as it was in this git commit, branch or tag.",
)
@click.option(
    "--cache",
    metavar="DIR|s3://…",
    help="Where results are kept and looked for, to share between machines.  [default: .tt/cache]",
)
@click.option("--no-cache", is_flag=True, help="Neither keep results nor look for them.")
@click.option(
    "--bisect",
    "bisecting",
    is_flag=True,
    help="Try every exporter and opset on PyTorch models, and say which are right; write nothing.",
)
@json_option
def command(
    models: tuple[str, ...],
    spec_path: Path,
    only: str | None,
    force: bool,
    why: bool,
    dry_run: bool,
    changed_since: str | None,
    cache: str | None,
    no_cache: bool,
    bisecting: bool,
    json_mode: bool,
) -> None:
    """Build MODELs, or all, into the model repository.

    Each model is exported, compared with its original at several sizes of every dynamic dimension,
    and gets a config.pbtxt and a passport. What has not changed is left alone.
    """
    from triton_toolkit._workspace import CACHE_NAME
    from triton_toolkit.build.run import BuildOptions, run_build
    from triton_toolkit.cli._output import Console
    from triton_toolkit.spec.load import load_project

    console = Console(json_mode)
    project = load_project(spec_path)
    if bisecting:
        from triton_toolkit.cli._bisect import bisect

        bisect(console, project, models)
        return
    if no_cache and cache is not None:
        raise click.UsageError("--cache and --no-cache exclude each other")
    options = BuildOptions(
        names=models,
        only=_stages(only),
        force=force,
        dry_run=dry_run,
        cache=None if no_cache else cache or project.root / CACHE_NAME,
        fill_cache=cache is not None,
        changed_since=changed_since,
    )
    done: list[ModelReport] = []
    try:
        with console.progress() as progress:
            reports = run_build(project, options, progress, done.append)
    except KeyboardInterrupt:
        _print(console, project, done, options, why=why, interrupted=True)
        _report_errors(done)
        click.echo("What was built before stays; the same command goes on from there.", err=True)
        raise
    _print(console, project, reports, options, why=why)
    _exit(reports, json_mode=json_mode)


def _print(
    console: Console,
    project: Project,
    reports: Sequence[ModelReport],
    options: BuildOptions,
    *,
    why: bool,
    interrupted: bool = False,
) -> None:
    """Print what was done, of an interrupted build what was done until then."""
    if console.json_mode:
        console.json(
            {
                "repository": str(project.spec.repository),
                "dry_run": options.dry_run,
                "interrupted": interrupted,
                "models": [r.as_dict() for r in reports],
            }
        )
    elif reports or not interrupted:
        _show(console, reports, dry_run=options.dry_run, why=why or options.dry_run)


def _stages(only: str | None) -> frozenset[str]:
    from triton_toolkit.build.run import STAGES

    if only is None:
        return frozenset(STAGES)
    wanted = [part.strip() for part in only.split(",") if part.strip()]
    for stage in wanted:
        if stage not in STAGES:
            raise click.BadParameter(f"{stage!r} is not one of {', '.join(STAGES)}", param_hint="--only")
    return frozenset(wanted)


def _show(console: Console, reports: Sequence[ModelReport], *, dry_run: bool, why: bool) -> None:
    columns = ["model", "kind", "would be" if dry_run else "result", "version:>", "seconds:>", "proof"]
    rows = [
        [
            report.name,
            report.kind,
            report.action,
            "-" if report.version is None else str(report.version),
            "-" if dry_run else f"{report.seconds:.1f}",
            _proof(report),
        ]
        for report in reports
    ]
    console.table(columns, rows)
    for report in reports if why else ():
        for reason in report.reasons:
            console.line(f"{report.name}: {reason}")


def _proof(report: ModelReport) -> str:
    """Return the figures that matter in a few words."""
    if report.error is not None:
        return "see the error below"
    if report.passport is None:
        return "; ".join(report.reasons) if report.action == "skipped" else ""
    parts = []
    parity = report.passport.parity
    if parity:
        worst = max(output["max_absolute"] or 0.0 for entry in parity for output in entry["outputs"])
        noun = "comparison" if len(parity) == 1 else "comparisons"
        parts.append(f"{len(parity)} {noun}, largest error {worst:.1e}")
    if report.passport.accuracy:
        figures = report.passport.accuracy
        parts.append(f"accuracy {figures['exported']:.4f} (original {figures['original']:.4f})")
    parts += _of_variant(report.passport)
    return "; ".join(parts)


def _of_variant(passport: Passport) -> list[str]:
    """Return how much of a variant has its precision, and whether it is faster."""
    precision, speed = passport.precision, passport.speed
    parts = []
    if precision:
        placed = precision["placement"]
        count = (
            f"{placed['int8']} of {placed['layers']} layers" if placed else f"{precision['lowered']} nodes"
        )
        parts.append(f"{count} in {precision['declared']}")
    if speed:
        verdict = {True: "", False: ": not faster", None: ": undecided"}[speed["faster"]]
        parts.append(f"{speed['ratio']:.2f} times as fast as fp32{verdict}")
    return parts


def _exit(reports: Sequence[ModelReport], *, json_mode: bool) -> None:
    """Raise the error of the only failure; else report them, and exit with the gravest code."""
    errors = [report.error for report in reports if report.error is not None]
    if not errors:
        return
    if len(errors) == 1 and not json_mode:  # JSON has it already
        raise errors[0]
    _report_errors(reports)
    click.get_current_context().exit(max(error.exit_code for error in errors))


def _report_errors(reports: Sequence[ModelReport]) -> None:
    """Report each failure as if it were the only one; one that several models share, once."""
    from triton_toolkit.cli._errors import print_error

    names: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        if report.error is not None:
            error = report.error
            what = error.message.removeprefix(f"{report.name}: ")
            names.setdefault((what, error.hint, error.detail), []).append(report.name)
    for (message, hint, detail), whose in names.items():
        print_error(f"{', '.join(whose)}: {message}", hint=hint, detail=detail)
