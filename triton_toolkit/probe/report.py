"""What a probe found, as types and as the JSON of ``tt probe --json``.

The keys are public surface: docs/probe.md describes them, and a test holds its example to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_toolkit.probe.correctness import Correctness
from triton_toolkit.probe.server_split import PARTS, Split
from triton_toolkit.probe.stats import Estimate

FORMAT = 1
"""Version of the JSON's format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Latencies in classes of equal ratio: counts from ``low_ms`` to ``high_ms``."""

    low_ms: float
    high_ms: float
    counts: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        return {"low_ms": _short(self.low_ms), "high_ms": _short(self.high_ms), "counts": list(self.counts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One step of the load: so many requests in flight.

    Attributes:
        concurrency: Requests in flight.
        batch_size: Rows a request.
        duration_s: Length of the measuring window that was asked for.
        measured_s: Its length as it was.
        warmup_s: Load before the window opened, not counted.
        requests: Requests sent inside the window, failed ones included.
        samples: Latencies behind the figures: good answers, and requests that met their deadline.
        latency_ms: Name (``p99``) -> latency seen by the client; {} without a sample.
        mean_ms: Mean latency, None without a sample.
        max_ms: Largest latency seen, None without a sample.
        dependence: How many requests count for one in p99's interval.
        throughput: Rows (inferences) answered a second.
        errors: Kind -> failed requests.
        error_texts: Kind -> a message of that kind.
        split: The server's own figures; None where it gives none.
        why_not_larger: What kept its batches from being larger.
        answers: Answers compared: identical, differing, checked, wrong.
        wrong: What is wrong with answers under load, in words.
        notes: What a reader should know, in words.
        histogram: Distribution of the latencies, None without a sample.
    """

    concurrency: int
    batch_size: int
    duration_s: float
    measured_s: float
    warmup_s: float
    requests: int
    samples: int
    latency_ms: dict[str, Estimate]
    mean_ms: Estimate | None
    max_ms: float | None
    dependence: float
    throughput: Estimate
    errors: dict[str, int]
    error_texts: dict[str, str]
    split: Split | None
    why_not_larger: str = ""
    answers: dict[str, int] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    histogram: Histogram | None = None

    @property
    def failed(self) -> int:
        """The number of failed requests."""
        return sum(self.errors.values())

    @property
    def compared(self) -> str:
        """How many of the answers that differ were looked at, in words; "" where it was all of them."""
        differing, checked = self.answers.get("differing", 0), self.answers.get("checked", 0)
        return f"{checked} of {differing} differing answers were compared" if checked < differing else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        split = self.split.as_dict() if self.split else {}
        value: dict[str, Any] = {
            "schedule": {
                "kind": "closed",
                "concurrency": self.concurrency,
                "duration_s": self.duration_s,
                "warmup_s": self.warmup_s,
                "batch_size": self.batch_size,
            },
            "measured_s": _short(self.measured_s),
            "requests": self.requests,
            "samples": self.samples,
            "latency_ms": {name: estimate.as_dict() for name, estimate in self.latency_ms.items()},
            "mean_ms": self.mean_ms.as_dict() if self.mean_ms else None,
            "max_ms": _short(self.max_ms),
            "requests_for_one": _short(self.dependence),
            "throughput_per_s": _short(self.throughput.value),
            "throughput_interval": {"low": _short(self.throughput.low), "high": _short(self.throughput.high)},
            "errors": self.errors,
            "error_texts": self.error_texts,
            "late_share": None,  # nothing is late in a closed loop: a request is sent when it can be
            "server_us": split.get("server_us", dict.fromkeys(PARTS)),
            "server_request_us": split.get("request_us"),
            "batch_sizes": split.get("batch_sizes", {}),
            "why_not_larger": self.why_not_larger,
            "cache_hits": split.get("cache_hits"),
            "answers": self.answers,
            "wrong_answers": list(self.wrong),
            "notes": list(self.notes),
            "histogram": self.histogram.as_dict() if self.histogram else None,
        }
        if "steps" in split:
            value["steps"] = split["steps"]
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How one objective fared at one step.

    Attributes:
        text: The objective as written, such as ``p99<20ms``.
        concurrency: The step that was judged.
        outcome: pass, fail or inconclusive.
        estimate: The figure and its interval, None where there is no figure.
        reason: The same in words, with what would decide it where it is open.
        decided_in_s: Length of a step that should decide an open objective; None where none soon would.
    """

    text: str
    concurrency: int
    outcome: str
    estimate: Estimate | None
    reason: str
    decided_in_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        return {
            "text": self.text,
            "concurrency": self.concurrency,
            "outcome": self.outcome,
            "estimate": self.estimate.as_dict() if self.estimate else None,
            "reason": self.reason,
            "decided_in_s": self.decided_in_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """pass, fail or inconclusive, why, and each objective's judgement."""

    word: str
    reasons: tuple[str, ...]
    judgements: tuple[Judgement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """All that a probe found.

    Attributes:
        model: The model's name.
        version: The version that answered.
        server: url, name and version of the server.
        verdict: pass, fail or inconclusive.
        runs: One entry a step of the load.
        correctness: What was checked before the load.
        payload: Where the requests' inputs are from, their shapes, types and size.
        first_request_ms: Latency of the first request, its connection made beforehand.
        first_request_cold: Whether the server had answered none of this model since it was loaded;
            None where it does not tell.
        machine: The client's machine: CPUs, load, versions.
    """

    model: str
    version: str
    server: Mapping[str, str]
    verdict: Verdict
    runs: tuple[Run, ...]
    correctness: Correctness
    payload: Mapping[str, Any]
    first_request_ms: float
    first_request_cold: bool | None
    machine: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values, the verdict first."""
        return {
            "format": FORMAT,
            "verdict": self.verdict.word,
            "reasons": list(self.verdict.reasons),
            "model": self.model,
            "version": self.version,
            "server": dict(self.server),
            "objectives": [judgement.as_dict() for judgement in self.verdict.judgements],
            "runs": [run.as_dict() for run in self.runs],
            "correctness": self.correctness.as_dict(),
            "payload": dict(self.payload),
            "first_request_ms": _short(self.first_request_ms),
            "first_request_cold": self.first_request_cold,
            "machine": dict(self.machine),
        }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
