"""One step of the load in figures: from what the workers saw to a ``Run`` of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from triton_toolkit.probe.correctness import Checker, Loaded, Reference
from triton_toolkit.probe.load import Step
from triton_toolkit.probe.model import LiveModel
from triton_toolkit.probe.report import Histogram, Run
from triton_toolkit.probe.server_split import Split, Statistics, split, started_anew, why_not_larger
from triton_toolkit.probe.stats import Estimate, Sample, requests_needed
from triton_toolkit.probe.wire import Wire

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_FURTHER = {"p99.9": 0.999}
"""Reported only where the sample is large enough to bound it."""

_BINS = 20
_CLIENT_SHARE = 0.5
_CLIENT_MS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the steps of one probe have in common.

    Attributes:
        model: The model.
        batch_size: Rows a request.
        percentiles: Name -> share, besides the usual ones: those that objectives name.
    """

    model: LiveModel
    batch_size: int
    percentiles: dict[str, float]


def summarise(
    step: Step[Statistics | None], context: Context, checker: Checker, reference: Reference, wire: Wire
) -> Run:
    """Return a step's figures; its histogram is added once all steps are known."""
    sample = step.sample()
    latency = _percentiles(sample, context.percentiles) if len(sample) else {}
    rate, rows = step.requests_per_s(), context.batch_size
    figures = _split(step, context)
    kept = step.kept()
    loaded = checker.check_loaded(reference, kept, wire, rows)
    run = Run(
        concurrency=step.concurrency,
        batch_size=rows,
        duration_s=step.timing.duration_s,
        measured_s=step.measured_s,
        warmup_s=step.timing.warmup_s,
        requests=step.requests(),
        samples=len(sample),
        latency_ms=latency,
        mean_ms=sample.mean() if len(sample) else None,
        max_ms=sample.maximum() if len(sample) else None,
        dependence=sample.dependence(latency["p99"].value) if latency else 1.0,
        throughput=Estimate(
            value=rate.value * rows, low=_times(rate.low, rows), high=_times(rate.high, rows)
        ),
        errors=step.errors(),
        error_texts=step.error_texts(),
        split=figures,
        why_not_larger=(
            why_not_larger(context.model.config, step.concurrency, rows, figures.batch_sizes)
            if figures
            else ""
        ),
        answers={
            "identical": step.answered() - step.differing(),
            "differing": step.differing(),
            "checked": len(kept),
            "wrong": len(loaded.wrong),
        },
        wrong=tuple(loaded.wrong[:3]),
        notes=(*_notes(step, sample, latency, figures), *_version_notes(loaded, reference)),
    )
    return replace(run, notes=(*run.notes, f"{run.compared}, chosen by lot")) if run.compared else run


def histograms(samples: Sequence[Sample]) -> list[Histogram | None]:
    """Return one histogram a sample, all on the same logarithmic axis; None for an empty one."""
    filled = [sample for sample in samples if len(sample)]
    if not filled:
        return [None for _ in samples]
    low = max(1e-6, min(sample.minimum() for sample in filled))
    high = max(sample.maximum() for sample in filled)
    return [
        Histogram(low_ms=low, high_ms=high, counts=tuple(sample.histogram(_BINS, low, high)))
        if len(sample)
        else None
        for sample in samples
    ]


def _percentiles(sample: Sample, wanted: dict[str, float]) -> dict[str, Estimate]:
    shares = {**PERCENTILES, **wanted}
    found = {name: sample.percentile(q) for name, q in sorted(shares.items(), key=lambda item: item[1])}
    for name, q in _FURTHER.items():
        estimate = sample.percentile(q)
        if name not in found and estimate.high is not None:
            found[name] = estimate
    return found


def _split(step: Step[Statistics | None], context: Context) -> Split | None:
    if step.before is None or step.after is None or _no_difference(step):
        return None
    return split(context.model.name, step.before, step.after)


def _no_difference(step: Step[Statistics | None]) -> str:
    """Say why the server's counters over a step are not its own; "" where they are, or there are none."""
    if step.before is None or step.after is None:
        return ""
    if not step.before or not step.after:
        return "the server did not have the model when its counters were read, so they are left out"
    # An answer may come shortly before the server counts it.
    reloaded = started_anew(step.before, step.after, step.answered_since_open() - step.concurrency)
    if not reloaded:
        return ""
    both = step.before.keys() & step.after.keys() & {reloaded}
    versions = dict.fromkeys(
        statistics[name].version for statistics in (step.before, step.after) for name in both
    )
    how = f" (version {', then '.join(versions)})" if len(versions) > 1 else ""
    return (
        f"model {reloaded!r} was reloaded during the step{how}: the server's counters began anew, "
        "so they are left out"
    )


def _notes(
    step: Step[Statistics | None],
    sample: Sample,
    latency: dict[str, Estimate],
    figures: Split | None,
) -> list[str]:
    notes = []
    if step.lost:
        notes.append(
            f"the server could not be reached any more: the step ended after {step.measured_s:.1f} s"
        )
    broken = _no_difference(step)
    if broken:
        notes.append(broken)
    notes += _sample_notes(sample, latency)
    if figures is not None and len(sample):
        notes += _server_notes(step, sample, figures)
    return notes


def _version_notes(loaded: Loaded, reference: Reference) -> list[str]:
    return [
        f"version {version} answered instead of {reference.version}: its answers were held against what it "
        "declares, not against the other's"
        for version in loaded.others
    ]


def _sample_notes(sample: Sample, latency: dict[str, Estimate]) -> list[str]:
    notes = []
    open_ended = [name for name, estimate in latency.items() if estimate.high is None]
    if open_ended:
        name = open_ended[0]
        q = float(name[1:]) / 100
        one = sample.dependence(latency[name].value)
        counting = "" if one <= 1 else f" that count like {len(sample) / one:.0f} independent ones"
        notes.append(
            f"{', '.join(open_ended)}: no upper bound from {len(sample)} requests{counting}; "
            f"{name} needs about {requests_needed(max(q, 1 - q)) * one:.0f}"
        )
    drift = sample.drift() if len(sample) else None
    if drift is not None:
        notes.append(
            f"latency drifts: median {drift[0]:.3g} ms in the first third of the run, "
            f"{drift[1]:.3g} ms in the last; a longer warm-up or run may help"
        )
    return notes


def _server_notes(step: Step[Statistics | None], sample: Sample, figures: Split) -> list[str]:
    notes = []
    others = figures.requests - step.sent()
    if others > 2 * step.concurrency + 0.02 * step.sent():
        notes.append(f"about {others} requests of other clients reached the model during the run")
    if figures.cache_hits:
        notes.append(f"{figures.cache_hits} answers came from the response cache, not from the model")
    outside_ms = sample.mean().value - (figures.request_us or 0.0) / 1e3
    if figures.request_us and outside_ms > max(_CLIENT_MS, _CLIENT_SHARE * sample.mean().value):
        notes.append(
            f"{outside_ms:.3g} of {sample.mean().value:.3g} ms a request are outside the server: "
            "client, network and protocol"
        )
    return notes


def _times(value: float | None, factor: int) -> float | None:
    return None if value is None else value * factor
