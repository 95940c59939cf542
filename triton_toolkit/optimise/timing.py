"""Is a variant faster than FP32 on this machine? Both are timed in one interleaved run.

Machines slow down and recover: other work, heat, frequency. So the two take turns in the order
base, variant, variant, base, which cancels a steady drift within each round, and each round gives one
ratio. What is told is the median of the ratios, with the interval in which it lies.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._machine import look_at_host
from triton_toolkit.export.session import Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

CONFIDENCE = 0.99
"""Share of runs in which the interval holds the true median. One in a hundred, not one in twenty,
since many models are built."""

FEATURES = ("avx2", "avx512_vnni", "avx_vnni")
"""What decides whether a CPU is faster with INT8: wide registers, and instructions that add products
of bytes without overflow."""

_WARM_UP_RUNS = 3
_FEWEST_ROUNDS = 10
_MOST_ROUNDS = 60
_SHORTEST_TURN_S = 0.002
"""A turn repeats the model until it takes this long: the clock and the call cost microseconds."""

_MOST_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a variant is, against FP32.

    Attributes:
        ratio: Time of FP32 over time of the variant: 2 is twice as fast.
        low: Lower end of the interval of the ratio.
        high: Upper end.
        faster: Whether it is faster; None where the interval does not decide it.
        rounds: Rounds measured; each times both twice.
        base_ms: Median time of one FP32 inference.
        variant_ms: Median time of one inference of the variant.
        threads: Threads of both.
        cpu: ``model``, and whether it has each of ``FEATURES``; None where the system does not say.
    """

    ratio: float
    low: float
    high: float
    faster: bool | None
    rounds: int
    base_ms: float
    variant_ms: float
    threads: int
    cpu: Mapping[str, str | bool | None]

    @property
    def text(self) -> str:
        """The figures and the machine in one line."""
        has = [name for name in FEATURES if self.cpu[name]]
        lacks = [name for name in FEATURES if self.cpu[name] is False]
        features = [
            *([f"with {', '.join(has)}"] if has else []),
            *([f"without {', '.join(lacks)}"] if lacks else []),
        ]
        times = f"{self.base_ms:.3g} ms against {self.variant_ms:.3g} ms"
        how = f"{self.rounds} rounds, {self.threads} threads"
        where = ", ".join([str(self.cpu["model"]), *features])
        return (
            f"{self.ratio:.2f} times as fast ({self.low:.2f} to {self.high:.2f}; {times}; {how}) on {where}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "ratio": round(self.ratio, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "faster": self.faster,
            "rounds": self.rounds,
            "base_ms": round(self.base_ms, 4),
            "variant_ms": round(self.variant_ms, 4),
            "threads": self.threads,
            "cpu": dict(self.cpu),
        }


def time_variant(
    base: Path,
    variant: Path,
    inputs: Arrays,
    *,
    threads: int | None = None,
    most_s: float = _MOST_S,
) -> Speed:
    """Time two files of one model with ONNX Runtime on this CPU, as they are served.

    Both sessions exist all the time; each has the same number of threads, which do not spin between
    runs, since they would take the processor from the other one.

    Args:
        base: The FP32 file.
        variant: The other one.
        inputs: One request, at its usual size.
        threads: Threads of one operator; all processors that this process may use where left out.
        most_s: About how long to measure. Ten rounds are made however long they take.

    Raises:
        ExportError: ONNX Runtime refuses a file.
    """
    threads = threads or len(os.sched_getaffinity(0))
    entries = {"session.intra_op.allow_spinning": "0"}
    sessions = [Session(path, entries=entries, threads=threads) for path in (base, variant)]
    turns = [_turn(session, inputs) for session in sessions]
    base_s, variant_s = run_rounds(*turns, most_s=most_s)
    ratio, low, high = median_interval([b / v for b, v in zip(base_s, variant_s, strict=True)])
    return Speed(
        ratio=ratio,
        low=low,
        high=high,
        faster=is_faster(low, high),
        rounds=len(base_s),
        base_ms=1e3 * _median(base_s),
        variant_ms=1e3 * _median(variant_s),
        threads=threads,
        cpu=describe_cpu(),
    )


def is_faster(low: float, high: float) -> bool | None:
    """Return what the interval of a ratio says: above 1 faster, below it not, around it undecided."""
    if low > 1:
        return True
    return False if high < 1 else None


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return the median of values and an interval that holds the true median.

    The number of values below the true median is binomial whatever they are distributed like, so two
    of the values in order bound it (the interval of the sign test). Of fewer than eight values, all of
    them bound it, with less confidence.

    Args:
        values: Independent measurements; at least one.
        confidence: Least probability that the interval holds the true median.
    """
    ordered = sorted(values)
    n = len(ordered)
    outside, rank = 0.0, 0
    while rank < (n - 1) // 2:
        outside += 2 * math.comb(n, rank) / 2**n
        if outside > 1 - confidence:
            break
        rank += 1
    rank = max(rank - 1, 0)
    return _median(ordered), ordered[rank], ordered[n - 1 - rank]


def run_rounds(
    base: Callable[[], float],
    variant: Callable[[], float],
    *,
    most_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[list[float], list[float]]:
    """Let both take turns; return the seconds of one inference of each, one a round.

    Args:
        base: Runs one turn and returns the seconds of one inference in it.
        variant: Likewise.
        most_s: No further round begins after this, once there are ten; sixty are enough.
        clock: Seconds.
    """
    base_s: list[float] = []
    variant_s: list[float] = []
    begin = clock()
    while len(base_s) < _FEWEST_ROUNDS or (len(base_s) < _MOST_ROUNDS and clock() - begin < most_s):
        first, second, third, fourth = base(), variant(), variant(), base()
        base_s.append((first + fourth) / 2)
        variant_s.append((second + third) / 2)
    return base_s, variant_s


def describe_cpu() -> dict[str, str | bool | None]:
    """Return the processor's name and whether it has each of ``FEATURES``; None where that is unknown."""
    host = look_at_host()
    known = bool(host.cpu_flags) or Path("/proc/cpuinfo").exists()
    return {"model": host.cpu, **{name: name in host.cpu_flags if known else None for name in FEATURES}}


def _turn(session: Session, inputs: Arrays) -> Callable[[], float]:
    """Return a function that runs a model for one turn; it is warm, and knows how often to repeat."""
    for _ in range(_WARM_UP_RUNS):
        begin = time.perf_counter()
        session.predict(inputs)
        last_s = time.perf_counter() - begin
    repeats = max(1, math.ceil(_SHORTEST_TURN_S / last_s))

    def turn() -> float:
        begin = time.perf_counter()
        for _ in range(repeats):
            session.predict(inputs)
        return (time.perf_counter() - begin) / repeats

    return turn


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
