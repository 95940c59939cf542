"""A probe from beginning to end: look, check the answers, load, judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress, Silent
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.slo import Objective
from triton_toolkit.errors import RefusedError, ServerError, UsageError
from triton_toolkit.probe.correctness import Checker, Reference
from triton_toolkit.probe.golden import Golden
from triton_toolkit.probe.load import Step, Timing, run_closed_loop
from triton_toolkit.probe.machine import describe_machine
from triton_toolkit.probe.model import LiveModel, look_up
from triton_toolkit.probe.payload import (
    Payload,
    Sizes,
    batch_size_of,
    build_payloads,
    case_shapes,
    check_samples,
    generate_cases,
    sample_cases,
)
from triton_toolkit.probe.report import ProbeReport, Run
from triton_toolkit.probe.senders import Request, ThreadSender
from triton_toolkit.probe.server_split import Counters, Statistics
from triton_toolkit.probe.single import Reply, Single
from triton_toolkit.probe.summary import Context, histograms, summarise
from triton_toolkit.probe.verdict import Evidence, check_objectives, judge, percentile_share
from triton_toolkit.probe.wire import Destination, Wire, open_wire

if TYPE_CHECKING:
    from triton_toolkit.client.types import ServerInfo

_MAX_CONCURRENCY = 1024
_DEFAULT_TIMING = Timing(warmup_s=1.0, duration_s=5.0, timeout_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to probe, and how.

    Attributes:
        url: The server.
        model: The model's name on it.
        version: The version to ask; empty lets the server choose.
        headers: Sent with every call.
        concurrency: Requests in flight, one step of the load each.
        timing: Warm-up, duration, deadline.
        shapes: Input -> shape, see ``payload.Sizes``.
        dims: Dynamic dimension -> size.
        batch_size: Rows a request; None means 1, or what ``shapes`` say.
        objectives: What the verdict is about besides right answers.
    """

    url: str
    model: str
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    concurrency: tuple[int, ...] = (1, 8)
    timing: Timing = _DEFAULT_TIMING
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    batch_size: int | None = None
    objectives: tuple[Objective, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What will be sent: the payloads of the load, their rows, and the sample's rows."""

    payloads: list[Payload]
    cases: list[Payload]
    golden_cases: list[Payload]
    batch_size: int

    def describe(self, distinct: int) -> dict[str, Any]:
        inputs = self.payloads[0].inputs
        return {
            "source": "golden sample" if self.payloads[0].expected is not None else "generated",
            "distinct": distinct,
            "batch_size": self.batch_size,
            "bytes": self.payloads[0].size_bytes,
            "shapes": {name: list(array.shape) for name, array in inputs.items()},
        }


def run_probe(
    options: ProbeOptions, find_golden: Callable[[str], Golden], progress: Progress | None = None
) -> ProbeReport:
    """Probe a model of a live server.

    Args:
        options: What and how.
        find_golden: Gives the golden sample of a version (the one that answers).
        progress: Told about each stage.

    Raises:
        UsageError: Unknown model, version or dimension, an impossible size or objective.
        ServerError: The server is down, hangs, or the model is not ready.
        RefusedError: The server refuses the request as such.
        RepositoryError: The golden sample is damaged, or of another model.
    """
    progress = progress or Silent()
    check_objectives(options.objectives)
    _check_load(options)
    with TritonClient(options.url, timeout_s=options.timing.timeout_s, headers=options.headers) as client:
        progress.step(options.model, f"asking {options.url}")
        info = client.server()
        model = look_up(client, options.model, options.version)
        version = options.version or max(model.versions, key=lambda text: int(text or 0), default="")
        golden = find_golden(version)
        plan = _plan(model, golden, options)
        counters = _counters(client, model, version, progress)
        destination = Destination(
            url=options.url,
            headers=options.headers,
            model=options.model,
            version=options.version,
            timeout_s=options.timing.timeout_s,
        )
        wire = open_wire(destination)
        try:
            with Single(wire, destination) as single:
                cold = None if counters is None else counters.read()[model.name].success.count == 0
                progress.step(options.model, "checking its answers")
                first = single.ask(plan.payloads[0].inputs)
                checker = Checker(model, golden, single)
                reference = checker.check(plan.payloads, plan.cases, plan.golden_cases, first)
            job = _Job(options, model, plan, checker, reference, wire, counters)
            runs = _load(job, progress)
        finally:
            wire.close()
    return _report(job, info, first, runs, cold)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the load and the report need of the stages before them."""

    options: ProbeOptions
    model: LiveModel
    plan: _Plan
    checker: Checker
    reference: Reference
    wire: Wire
    counters: Counters | None


def _check_load(options: ProbeOptions) -> None:
    if not options.concurrency:
        raise UsageError("no concurrency is given", hint="give for example --concurrency 1,8")
    for number in options.concurrency:
        if not 1 <= number <= _MAX_CONCURRENCY:
            raise UsageError(f"concurrency {number} is not between 1 and {_MAX_CONCURRENCY}")


def _plan(model: LiveModel, golden: Golden, options: ProbeOptions) -> _Plan:
    passport = golden.passport
    sizes = Sizes(
        shapes=options.shapes,
        dims=options.dims,
        batch_size=options.batch_size,
        known=passport.dims if passport else {},
        names=passport.inputs if passport else (),
    )
    rows = batch_size_of(model, sizes)
    golden_cases = []
    if golden.samples is not None:
        check_samples(model, golden.samples, golden.origin)
        golden_cases = sample_cases(model, golden.samples)
    if golden_cases and not options.shapes and not options.dims:
        cases = golden_cases
    else:
        cases = generate_cases(model, case_shapes(model, sizes))
    return _Plan(
        payloads=build_payloads(cases, rows), cases=cases, golden_cases=golden_cases, batch_size=rows
    )


def _counters(client: TritonClient, model: LiveModel, version: str, progress: Progress) -> Counters | None:
    """Return the reader of the server's counters, None (with a note) where it does not give them."""
    counters = Counters(client, model, version)
    try:
        counters.read()
    except (RefusedError, ServerError) as exc:
        progress.note(model.name, f"no figures from inside the server: {exc.message}")
        return None
    return counters


def _load(job: _Job, progress: Progress) -> list[Run]:
    options, counters = job.options, job.counters
    known = zip(job.plan.payloads, job.reference.alone, job.reference.expected, strict=False)
    requests = [
        Request(job.wire.encode(payload.inputs), answer.body if expected is not None else b"")
        for payload, answer, expected in known
    ]

    def snapshot() -> Statistics | None:
        return None if counters is None else counters.read()

    timing = options.timing
    steps: list[Step[Statistics | None]] = []
    for concurrency in options.concurrency:
        progress.step(
            options.model,
            f"concurrency {concurrency}: {timing.warmup_s:g} s warm-up, then {timing.duration_s:g} s",
        )
        try:
            steps.append(run_closed_loop(ThreadSender(job.wire), requests, concurrency, timing, snapshot))
        except ServerError as exc:
            text = f"the server was lost during the load at concurrency {concurrency}: {exc.message}"
            raise type(exc)(text, hint="look at the server's log; figures of a broken run are not shown") from exc
    return _summaries(job, steps)


def _summaries(job: _Job, steps: list[Step[Statistics | None]]) -> list[Run]:
    shares = {item.metric: percentile_share(item.metric) for item in job.options.objectives}
    context = Context(
        model=job.model,
        timing=job.options.timing,
        batch_size=job.plan.batch_size,
        percentiles={name: q for name, q in shares.items() if q is not None},
    )
    runs = [summarise(step, context, job.checker, job.reference, job.wire) for step in steps]
    shapes = histograms([step.sample() for step in steps])
    return [dataclasses.replace(run, histogram=shape) for run, shape in zip(runs, shapes, strict=True)]


def _report(job: _Job, info: ServerInfo, first: Reply, runs: list[Run], cold: bool | None) -> ProbeReport:
    correctness = job.checker.result()
    evidence = Evidence(correctness=correctness, runs=runs, first_request_ms=first.latency_ms)
    return ProbeReport(
        model=job.model.name,
        version=first.result.model_version,
        server={"url": job.options.url, "name": info.name, "version": info.version},
        verdict=judge(evidence, job.options.objectives),
        runs=tuple(runs),
        correctness=correctness,
        payload=job.plan.describe(len(job.reference.alone)),
        first_request_ms=first.latency_ms,
        first_request_cold=cold,
        machine=describe_machine(),
    )
