"""``tt probe``: are a live model's answers right, how fast is it, does that meet the objectives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from triton_toolkit.cli._options import json_option, spec_option, url_option
from triton_toolkit.errors import EXIT_INCONCLUSIVE, EXIT_NO, EXIT_OK

if TYPE_CHECKING:
    from collections.abc import Callable

    from triton_toolkit.core.slo import Objective
    from triton_toolkit.probe.golden import Golden
    from triton_toolkit.probe.run import ProbeOptions
    from triton_toolkit.spec.load import Project

_EXIT = {"pass": EXIT_OK, "fail": EXIT_NO, "inconclusive": EXIT_INCONCLUSIVE}


def _duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    from triton_toolkit.core.units import parse_seconds

    if value is None:
        return None
    try:
        seconds = parse_seconds(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    if not 0 <= seconds <= 86_400:
        raise click.BadParameter(f"{value!r} is not between 0 and a day")
    return seconds


def _size(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise click.BadParameter(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _sizes(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in value.split(","))


def _named(value: str, separator: str, example: str) -> tuple[str, str]:
    name, found, rest = value.rpartition(separator)
    if not found or not name.strip():
        raise click.BadParameter(f"{value!r} is not of the form {example}")
    return name.strip(), rest


def _shapes(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    pairs = [_named(value, ":", "image:1,3,224,224") for value in values]
    return {name: tuple(_size(part) for part in sizes.split(",")) for name, sizes in pairs}


def _dims(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    return {name: _size(size) for name, size in (_named(value, "=", "seq=128") for value in values)}


def _headers(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for value in values:
        name, found, rest = value.partition(":")
        if not found or not name.strip() or not value.isprintable():
            # The value may be a secret: it is not repeated here.
            raise click.BadParameter("a header is NAME:VALUE, on one line")
        headers[name.strip()] = rest.strip()
    return headers


@click.command(
    epilog="""\b
Examples:
  tt probe digits --url grpc://gpu-1:8001
  tt probe digits --slo 'p99<20ms,error_rate=0' --concurrency 1,8,32 --duration 30s
  tt probe bert --dim seq=128 --batch-size 8 --json > probe.json

\b
Exit codes: 0 pass, 1 fail, 2 wrong usage or unknown model, 3 server down, late or model
not ready, 4 inconclusive (the data do not decide; the message says how long a run would).
"""
)
@click.argument("model")
@url_option
@click.option(
    "--model-version",
    type=click.IntRange(min=1),
    metavar="N",
    help="The version to ask; else the server chooses.",
)
@click.option(
    "--concurrency", callback=_sizes, default="1,8", show_default=True, metavar="N,N,...",
    help="Requests in flight, one step of the load each.",
)  # fmt: skip
@click.option(
    "--duration", callback=_duration, default="5s", show_default=True, metavar="TIME",
    help="Measured time a step.",
)  # fmt: skip
@click.option(
    "--extend-to", callback=_duration, metavar="TIME",
    help="Measure a step that leaves an objective open again, for as long as should decide it, where "
    "that is no longer than this.  [default: 30s without --duration, else 0s]",
)  # fmt: skip
@click.option(
    "--warmup", callback=_duration, default="1s", show_default=True, metavar="TIME",
    help="Load before each step's measuring begins.",
)  # fmt: skip
@click.option(
    "--timeout", callback=_duration, default="10s", show_default=True, metavar="TIME",
    help="Deadline of each request and call.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(min=1), metavar="N", help="Rows a request.  [default: 1]")
@click.option(
    "--shape", "shapes", callback=_shapes, multiple=True, metavar="INPUT:N,N,...",
    help="Shape of an input, with or without the batch dimension.",
)  # fmt: skip
@click.option(
    "--dim", "dims", callback=_dims, multiple=True, metavar="NAME=N", help="Size of a dynamic dimension."
)  # fmt: skip
@click.option(
    "--slo", "slos", multiple=True, metavar="TEXT",
    help="Objectives, such as 'p99<20ms,error_rate=0'; each must hold at every step. "
    "Without it the spec's slo.require counts.",
)  # fmt: skip
@click.option(
    "--passport", type=click.Path(path_type=Path), metavar="PATH",
    help="Version folder (or samples file) with the golden sample; else it is looked for through the spec.",
)  # fmt: skip
@click.option(
    "--header",
    "headers",
    callback=_headers,
    multiple=True,
    metavar="NAME:VALUE",
    help="Sent with every call.",
)
@spec_option
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Save the JSON report."
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, **values: Any) -> None:
    """Probe MODEL on a live Triton: are its answers right, and in time?

    Needs no spec. The answers are checked first: against the golden sample where there is one, else
    against what the server declares, alone and in batches. Then each step keeps a number of requests
    in flight and measures. Figures come with 95 % confidence intervals, and an objective that the
    data cannot decide is inconclusive (exit code 4).
    """
    from triton_toolkit.cli._output import Console
    from triton_toolkit.probe.run import run_probe

    console = Console(values["json_mode"])
    project = _project(ctx, values["spec_path"])
    if values["extend_to"] is None:
        values["extend_to"] = 30.0 if _is_default(ctx, "duration") else 0.0
    options = _options(values, project)
    with console.progress() as progress:
        report = run_probe(options, _golden_finder(values["passport"], project, options), progress)
    if values["output"]:
        from triton_toolkit._files import host_errors, write_json

        with host_errors(f"write {values['output']}"):
            write_json(values["output"], report.as_dict())
    if values["json_mode"]:
        console.json(report.as_dict())
    else:
        from triton_toolkit.cli._probe_table import show_report

        show_report(console, report)
    ctx.exit(_EXIT[report.verdict.word])


def _project(ctx: click.Context, path: Path) -> Project | None:
    """Load the spec: one that was named must be there, the default one need not."""
    if _is_default(ctx, "spec_path") and not path.is_file():
        return None
    from triton_toolkit.spec.load import load_project

    return load_project(path)


def _is_default(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT


def _options(values: dict[str, Any], project: Project | None) -> ProbeOptions:
    from triton_toolkit.probe.load import Timing
    from triton_toolkit.probe.run import ProbeOptions

    if values["duration"] <= 0 or values["timeout"] <= 0:
        raise click.BadParameter("must be longer than 0", param_hint="--duration and --timeout")
    timing = Timing(warmup_s=values["warmup"], duration_s=values["duration"], timeout_s=values["timeout"])
    return ProbeOptions(
        url=values["url"],
        model=values["model"],
        version=str(values["model_version"] or ""),
        headers=_all_headers(values, project),
        concurrency=tuple(dict.fromkeys(values["concurrency"])),
        timing=timing,
        shapes=values["shapes"],
        dims=values["dims"],
        batch_size=values["batch_size"],
        extend_to_s=values["extend_to"],
        objectives=_objectives(values["slos"], values["model"], project),
    )


def _objectives(texts: tuple[str, ...], model: str, project: Project | None) -> tuple[Objective, ...]:
    from triton_toolkit.core.slo import parse_slo

    if not texts and project is not None and model in project.spec.models:
        slo = project.spec.models[model].slo
        texts = tuple(slo.require) if slo is not None else ()
    return tuple(objective for text in texts for objective in parse_slo(text))


def _all_headers(values: dict[str, Any], project: Project | None) -> dict[str, str]:
    """Return ``--header``, and under it what the spec's target at this URL asks for."""
    headers: dict[str, str] = {}
    if project is not None:
        from triton_toolkit.probe.golden import target_headers

        headers = target_headers(project, values["url"])
    given: dict[str, str] = values["headers"]
    names = {name.lower() for name in given}
    return {**{name: value for name, value in headers.items() if name.lower() not in names}, **given}


def _golden_finder(
    passport: Path | None, project: Project | None, options: ProbeOptions
) -> Callable[[str], Golden]:
    from triton_toolkit.probe.golden import Golden, from_path, from_project

    if passport is not None:
        return lambda _version: from_path(passport)
    if project is not None:
        return lambda version: from_project(project, options.model, version, options.url)
    return lambda _version: Golden(missing="there is no tt.yaml here, and no --passport was given")
