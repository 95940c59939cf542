"""One step of the load in figures: from what the workers saw to a ``Run`` of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triton_toolkit.probe.correctness import Checker, Reference
from triton_toolkit.probe.load import Step
from triton_toolkit.probe.model import LiveModel
from triton_toolkit.probe.report import Histogram, Run
from triton_toolkit.probe.server_split import Split, Statistics, split, was_reloaded, why_not_larger
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
    wrong = checker.check_loaded(reference, kept, wire, rows)
    return Run(
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
            "wrong": len(wrong),
        },
        wrong=tuple(wrong[:3]),
        notes=tuple(_notes(step, context, sample, latency, figures)),
    )


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
    if step.before is None or step.after is None:
        return None
    return split(context.model.name, step.before, step.after)


def _notes(
    step: Step[Statistics | None],
    context: Context,
    sample: Sample,
    latency: dict[str, Estimate],
    figures: Split | None,
) -> list[str]:
    notes = []
    if step.lost:
        notes.append(
            f"the server could not be reached any more: the step ended after {step.measured_s:.1f} s"
        )
    notes += _sample_notes(sample, latency)
    if figures is not None and len(sample):
        notes += _server_notes(step, context, sample, figures)
    return notes


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


def _server_notes(
    step: Step[Statistics | None], context: Context, sample: Sample, figures: Split
) -> list[str]:
    notes = []
    if step.before and step.after and was_reloaded(context.model.name, step.before, step.after):
        return ["the model was reloaded during the run: the server's counters started anew"]
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
