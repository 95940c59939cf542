"""Pass, fail or inconclusive: objectives against figures that are known only within an interval.

An objective passes when the whole interval lies on its good side and fails when the whole
interval lies on the bad side; in between the data do not decide, and that is the answer. A figure
that comes without an interval (a mean that the server gives, the largest latency seen, the first
request) is judged as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from triton_toolkit.core.slo import Objective, Unit
from triton_toolkit.probe.correctness import Correctness
from triton_toolkit.probe.report import Judgement, Run, Verdict
from triton_toolkit.probe.stats import Estimate, requests_needed, share

PASS = "pass"  # noqa: S105 - a verdict, not a password
FAIL = "fail"
INCONCLUSIVE = "inconclusive"

_SERVER_MEANS = {
    "queue_mean": "queue",
    "compute_input_mean": "compute_input",
    "compute_infer_mean": "compute_infer",
    "compute_output_mean": "compute_output",
}
_MARGIN = 1.3  # a run only just long enough would be open again half of the time
_LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a verdict is made from."""

    correctness: Correctness
    runs: Sequence[Run]
    first_request_ms: float


def percentile_share(metric: str) -> float | None:
    """Return 0.99 for ``p99``, None for a metric that is no percentile."""
    return float(metric[1:]) / 100 if metric[0] == "p" and metric[1:2].isdigit() else None


def judge(evidence: Evidence, objectives: Sequence[Objective]) -> Verdict:
    """Return the verdict: wrong answers or failed requests fail, then each objective at each step.

    Without an objective on ``error_rate`` any failed request fails the probe.
    """
    reasons = _wrong_answers(evidence)
    if not any(objective.metric == "error_rate" for objective in objectives):
        reasons += _failed_requests(evidence)
    judgements = [_judge(objective, run, evidence) for objective in objectives for run in evidence.runs]
    reasons += [item.reason for item in judgements if item.outcome == FAIL]
    if reasons:
        word = FAIL
    elif any(item.outcome == INCONCLUSIVE for item in judgements):
        word = INCONCLUSIVE
        reasons = [item.reason for item in judgements if item.outcome == INCONCLUSIVE]
    else:
        word = PASS
        reasons = [item.reason for item in judgements] or [_nothing_wrong(evidence)]
    return Verdict(word=word, reasons=tuple(reasons), judgements=tuple(judgements))


def _wrong_answers(evidence: Evidence) -> list[str]:
    reasons = [f"wrong answer: {problem}" for problem in evidence.correctness.problems]
    for run in evidence.runs:
        if run.wrong:
            compared = f" ({run.compared})" if run.compared else ""
            reasons.append(
                f"wrong answers at concurrency {run.concurrency}: {run.answers['wrong']} of "
                f"{run.answers['checked']} that were checked{compared}; the first: {run.wrong[0]}"
            )
    return reasons


def _failed_requests(evidence: Evidence) -> list[str]:
    reasons = []
    failures = evidence.correctness.failures
    if failures:
        reasons.append(
            f"{sum(failures.values())} single requests failed before the load ({_kinds(failures)}), "
            "and no objective on error_rate allows for it"
        )
    for run in evidence.runs:
        if run.failed:
            reasons.append(
                f"{run.failed} of {run.requests} requests failed at concurrency {run.concurrency}, "
                f"and no objective on error_rate allows for it; {_failures(run)}"
            )
    return reasons


def _failures(run: Run) -> str:
    """Name the kinds of failure, and what was said of the commonest."""
    text = run.error_texts.get(next(iter(run.errors)), "")
    return _kinds(run.errors) + (f": {text}" if text else "")


def _kinds(counts: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.items())


def _nothing_wrong(evidence: Evidence) -> str:
    answers = "answers match the golden sample" if evidence.correctness.golden else "answers are as declared"
    compared = (f"{run.compared} at concurrency {run.concurrency}" for run in evidence.runs if run.compared)
    return "; ".join((f"{answers}, no request failed", *compared, "no objective was given"))


def _judge(objective: Objective, run: Run, evidence: Evidence) -> Judgement:
    estimate = _figure(objective.metric, run, evidence)
    where = f"at concurrency {run.concurrency}"
    seconds = None
    if estimate is None:
        outcome, text = _without_figure(objective, run)
        reason = f"{objective.text} {text} {where}"
    else:
        outcome = _outcome(objective, estimate)
        reason = _reason(objective, estimate, outcome, where)
        if objective.metric == "error_rate" and run.failed:
            reason += f"; {_failures(run)}"
        if outcome == INCONCLUSIVE:
            seconds = decided_in_s(objective, estimate, run)
            reason += _why_unbounded(objective, estimate, run)
            reason += f"; {_what_would_decide(seconds)}"
    return Judgement(
        text=objective.text,
        concurrency=run.concurrency,
        outcome=outcome,
        estimate=estimate,
        reason=reason,
        decided_in_s=seconds,
    )


def _figure(metric: str, run: Run, evidence: Evidence) -> Estimate | None:
    """Return what was measured for a metric, in the objective's unit; None where nothing was."""
    if metric in _SERVER_MEANS:
        mean_us = run.split.us[_SERVER_MEANS[metric]] if run.split else None
        return None if mean_us is None else _point(mean_us / 1e3)
    if metric == "error_rate":
        return share(run.failed, run.requests) if run.requests else None
    if metric == "first_request":
        return _point(evidence.first_request_ms)
    if metric == "throughput":
        return run.throughput
    if metric == "max":
        return None if run.max_ms is None else _point(run.max_ms)
    return run.mean_ms if metric == "mean" else run.latency_ms.get(metric)


def _without_figure(objective: Objective, run: Run) -> tuple[str, str]:
    if objective.metric in _SERVER_MEANS:
        return INCONCLUSIVE, "cannot be judged: the server's statistics show no such time"
    if run.failed:
        return FAIL, "is missed: no request was answered"
    return INCONCLUSIVE, "cannot be judged: no request was sent in the measuring window"


def _outcome(objective: Objective, estimate: Estimate) -> str:
    if objective.metric == "error_rate" and objective.limit == 0:
        # No run can prove that nothing ever fails; the objective means this run.
        return PASS if objective.holds(estimate.value) else FAIL
    if objective.operator in ("<", "<="):
        best, worst = estimate.low, estimate.high
    elif objective.operator in (">", ">="):
        best, worst = estimate.high, estimate.low
    else:
        best = worst = estimate.value
    if worst is not None and objective.holds(worst):
        return PASS
    if best is not None and not objective.holds(best):
        return FAIL
    return INCONCLUSIVE


def _reason(objective: Objective, estimate: Estimate, outcome: str, where: str) -> str:
    word = {PASS: "holds", FAIL: "is missed", INCONCLUSIVE: "is open"}[outcome]
    figure = f"{_show(estimate.value, objective.unit)}{_interval(estimate, objective.unit)}"
    return f"{objective.text} {word} {where}: {objective.metric} is {figure}"


def _interval(estimate: Estimate, unit: Unit) -> str:
    if estimate.low is None and estimate.high is None:
        return ", with no interval from so few requests"
    if estimate.low == estimate.high == estimate.value:
        return ""
    if estimate.high is None and estimate.low is not None:
        return f", at least {_show(estimate.low, unit)} with 95 % confidence and no upper bound"
    if estimate.low is None and estimate.high is not None:
        return f", at most {_show(estimate.high, unit)} with 95 % confidence and no lower bound"
    low, high = _show(estimate.low or 0.0, unit), _show(estimate.high or 0.0, unit)
    return f" ({low} to {high} with 95 % confidence)"


def _why_unbounded(objective: Objective, estimate: Estimate, run: Run) -> str:
    """Say why a run has no upper bound of a percentile, however fast its requests were; else ""."""
    q = percentile_share(objective.metric)
    if q is None or estimate.high is not None or run.max_ms is None:
        return ""
    together = (
        ""
        if run.dependence <= 1
        else (f", which hang together and count like {run.samples / run.dependence:.0f} independent ones")
    )
    return (
        f"; the largest latency was {_show(run.max_ms, objective.unit)} in {run.samples} requests{together}; "
        f"an upper bound of {objective.metric} takes {requests_needed(max(q, 1 - q))} independent ones"
    )


def _what_would_decide(seconds: float | None) -> str:
    if seconds is None:
        return "the figure is too close to the limit for a longer run to decide it soon"
    return f"about {seconds:.0f} s a step should decide it (--duration {seconds:.0f}s)"


def decided_in_s(objective: Objective, estimate: Estimate, run: Run) -> float | None:
    """Return how long a step would decide an open objective, None if over an hour.

    An interval shrinks with the square root of the run's length. Whole seconds, from 10 s on in fives.
    """
    needed_s = _needed_s(objective, estimate, run)
    if needed_s is None or needed_s > _LONGEST_S:
        return None
    grain_s = 1 if needed_s < 10 else 5
    return float(math.ceil(needed_s / grain_s) * grain_s)


def _needed_s(objective: Objective, estimate: Estimate, run: Run) -> float | None:
    lowest_s = 0.0
    q = percentile_share(objective.metric)
    if q is not None and (estimate.low is None or estimate.high is None):
        # Each end of an interval needs that many requests on its side of the percentile.
        wanted = requests_needed(max(q, 1 - q)) * run.dependence
        lowest_s = _MARGIN * run.measured_s * wanted / max(1, run.samples)
    gap = abs(estimate.value - objective.limit)
    bound = estimate.high if estimate.value < objective.limit else estimate.low
    if bound is None:
        # No bound yet on the side of the limit: a run that has one shows how much more it takes.
        return lowest_s or 4 * run.measured_s
    if gap == 0:
        return None
    spread = abs(bound - estimate.value)
    return max(lowest_s, _MARGIN * run.measured_s * max(1.0, (spread / gap) ** 2))


def _point(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value)


def _show(value: float, unit: Unit) -> str:
    if unit is Unit.RATIO:
        return f"{100 * value:.3g} %"
    return f"{value:.4g} ms" if unit is Unit.MILLISECONDS else f"{value:.4g}/s"
