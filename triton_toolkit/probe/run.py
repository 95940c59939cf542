"""A probe from beginning to end: look, check the answers, load, judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_toolkit._progress import Progress, Silent
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.slo import Objective
from triton_toolkit.errors import RefusedError, ServerError, UsageError
from triton_toolkit.probe.correctness import Checker, Requests
from triton_toolkit.probe.golden import Golden
from triton_toolkit.probe.limits import check_request_size
from triton_toolkit.probe.load import Timing
from triton_toolkit.probe.machine import describe_machine, load_average
from triton_toolkit.probe.model import LiveModel, look_up
from triton_toolkit.probe.payload import (
    Sizes,
    batch_size_of,
    build_payloads,
    case_shapes,
    check_samples,
    generate_cases,
    golden_payloads,
    sample_cases,
)
from triton_toolkit.probe.report import ProbeReport, Verdict
from triton_toolkit.probe.server_split import Counters
from triton_toolkit.probe.session import Session
from triton_toolkit.probe.single import Reply, Single
from triton_toolkit.probe.verdict import INCONCLUSIVE, Evidence, judge
from triton_toolkit.probe.wire import Destination, open_wire

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
        extend_to_s: A step that leaves an objective open is measured again for as long as should
            decide it, where that is no longer than this.
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
    extend_to_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What will be sent, and where it is from."""

    requests: Requests
    batch_size: int
    source: str

    def describe(self, distinct: int) -> dict[str, Any]:
        payload = self.requests.payloads[0]
        return {
            "source": self.source,
            "distinct": distinct,
            "batch_size": self.batch_size,
            "bytes": payload.size_bytes,
            "shapes": {name: list(array.shape) for name, array in payload.inputs.items()},
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
    machine = describe_machine()
    _check_load(options)
    with TritonClient(options.url, timeout_s=options.timing.timeout_s, headers=options.headers) as client:
        progress.step(options.model, f"asking {options.url}")
        info = client.server()
        model = look_up(client, options.model, options.version)
        version = options.version or max(model.versions, key=lambda text: int(text or 0), default="")
        golden = find_golden(version)
        plan = _plan(model, golden, options)
        counters = _counters(client, model, progress)
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
                first = single.ask(plan.requests.payloads[0].inputs)
                checker = Checker(model, golden, single)
                reference = checker.check(plan.requests, first)
            session = Session(
                model=model,
                checker=checker,
                reference=reference,
                wire=wire,
                counters=counters,
                batch_size=plan.batch_size,
                objectives=options.objectives,
                progress=progress,
            )
            session.prepare(plan.requests.payloads)
            evidence, verdict = _measure(session, options, first)
        finally:
            wire.close()
    return ProbeReport(
        model=model.name,
        version=first.result.model_version,
        server={"url": options.url, "name": info.name, "version": info.version},
        verdict=verdict,
        runs=tuple(evidence.runs),
        correctness=evidence.correctness,
        payload=plan.describe(len(reference.alone)),
        first_request_ms=first.latency_ms,
        first_request_cold=cold,
        machine={**machine, "load_average_after": load_average()},
    )


def _measure(session: Session, options: ProbeOptions, first: Reply) -> tuple[Evidence, Verdict]:
    """Run the steps; measure those again, for longer, that leave an objective open."""
    for concurrency in options.concurrency:
        session.measure(concurrency, options.timing)
    evidence, verdict = _judge(session, options, first)
    if verdict.word != INCONCLUSIVE:
        return evidence, verdict
    needed_s: dict[int, float] = {}
    for item in verdict.judgements:
        if item.decided_in_s is not None and item.decided_in_s <= options.extend_to_s:
            needed_s[item.concurrency] = max(item.decided_in_s, needed_s.get(item.concurrency, 0.0))
    for concurrency, duration_s in needed_s.items():
        session.measure(concurrency, dataclasses.replace(options.timing, duration_s=duration_s))
    return _judge(session, options, first) if needed_s else (evidence, verdict)


def _judge(session: Session, options: ProbeOptions, first: Reply) -> tuple[Evidence, Verdict]:
    evidence = Evidence(
        correctness=session.checker.result(), runs=session.runs(), first_request_ms=first.latency_ms
    )
    return evidence, judge(evidence, options.objectives)


def _check_load(options: ProbeOptions) -> None:
    if not options.concurrency:
        raise UsageError("no concurrency is given", hint="give for example --concurrency 1,8")
    for number in options.concurrency:
        if not 1 <= number <= _MAX_CONCURRENCY:
            raise UsageError(f"concurrency {number} is not between 1 and {_MAX_CONCURRENCY}")


def _plan(model: LiveModel, golden: Golden, options: ProbeOptions) -> _Plan:
    sizes = Sizes(
        shapes=options.shapes,
        dims=options.dims,
        batch_size=options.batch_size,
        known=golden.dims,
        names=golden.inputs,
        no_sample_because=golden.missing,
    )
    rows = batch_size_of(model, sizes)
    samples = golden.samples
    if samples is not None:
        check_samples(model, samples, golden.origin)
    if samples is not None and not options.shapes and not options.dims:
        cases, source = sample_cases(model, samples, independent=golden.rows_are_independent), "golden sample"
        check_request_size(model, {name: array.shape for name, array in cases[0].inputs.items()}, rows)
    else:
        shapes = case_shapes(model, sizes)
        check_request_size(model, shapes, rows)
        cases, source = generate_cases(model, shapes), "generated"
    requests = Requests(
        payloads=build_payloads(cases, rows),
        cases=cases,
        golden=golden_payloads(model, samples) if samples is not None else [],
    )
    return _Plan(requests=requests, batch_size=rows, source=source)


def _counters(client: TritonClient, model: LiveModel, progress: Progress) -> Counters | None:
    """Return the reader of the server's counters, None (with a note) where it does not give them."""
    counters = Counters(client, model)
    try:
        counters.read()
    except (RefusedError, ServerError) as exc:
        progress.note(model.name, f"no figures from inside the server: {exc.message}")
        return None
    return counters
