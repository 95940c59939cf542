"""Is a variant faster than FP32 on this machine? Both are timed in one interleaved run.

Machines slow down and recover: other work, heat, frequency. So the two take turns. Which of them goes first
is drawn each time (with a fixed seed): whatever the machine does, and for however long, then meets both
alike, also where it keeps time with the turns, as a scheduler does. Some such pairs of turns make a round,
which gives one ratio, of the best turns of each: what disturbs a run makes it longer. One model of 30
microseconds takes 50 in every second turn on two threads, by where the second one wakes; so small models
get many turns a round.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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

MARGIN = 0.03
"""Least gain that counts: less is not worth the loss of precision, and hard to tell from chance."""

_WARM_UP_RUNS = 3
_WARM_UP_S = 0.05
"""What takes longer than this needs no further run to be warm."""

_SHORTEST_TURN_S = 0.002
"""A turn repeats the model until it takes this long."""

_SHORTEST_ROUND_S = 0.04
"""A round lets both take turns until it takes this long; each has one turn at least."""

_ROUNDS_OF_A_PAIR = 5
"""Rounds before both models are loaded anew: where memory and threads came to lie is chance too."""

_FEWEST_ROUNDS = 2 * _ROUNDS_OF_A_PAIR
_SURE_ROUNDS = 4 * _ROUNDS_OF_A_PAIR
_SURE_S = 3.0
"""A decision ends the run after so many rounds, or after this time: slow models are hardly disturbed."""

_MOST_ROUNDS = 60
_MOST_S = 15.0
_SEED = 3

Turn = Callable[[], float]
"""Runs a model for one turn; returns the median seconds of one inference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a variant is, against FP32.

    Attributes:
        ratio: Time of FP32 over time of the variant: 2 is twice as fast.
        low: Lower end of the interval of the ratio.
        high: Upper end.
        faster: Whether it is faster by ``MARGIN`` or more; None where the interval does not decide it,
            or the first and the second half of the run tell different things.
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
        how = f"{self.rounds} rounds, {self.threads} thread{'s' * (self.threads != 1)}"
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

    Both are loaded all the time; each has the same number of threads, which do not spin between runs,
    since they would take the processor from the other one.

    Args:
        base: The FP32 file.
        variant: The other one.
        inputs: One request, at its usual size.
        threads: Threads of one operator; all processors that this process may use where left out.
        most_s: About how long to measure where the ratio stays undecided. Ten rounds are made however
            long they take.

    Raises:
        ExportError: ONNX Runtime refuses a file.
    """
    used = threads or len(os.sched_getaffinity(0))
    starts = [partial(_start, path, inputs, used) for path in (base, variant)]
    rounds = run_rounds(starts[0], starts[1], most_s=most_s)
    ratio, low, high = median_interval(rounds.ratios)
    return Speed(
        ratio=ratio,
        low=low,
        high=high,
        faster=is_faster(rounds.ratios),
        rounds=len(rounds.ratios),
        base_ms=1e3 * _median(rounds.base_s),
        variant_ms=1e3 * _median(rounds.variant_s),
        threads=used,
        cpu=describe_cpu(),
    )


def is_faster(ratios: Sequence[float]) -> bool | None:
    """Return whether the ratios of a run, in their order, show a gain of ``MARGIN`` or more.

    False where they show that there is none; None where the interval holds that limit, or where the
    medians of the first and the second half lie on different sides of it.
    """
    limit = 1 + MARGIN
    _, low, high = median_interval(ratios)
    middle = len(ratios) // 2
    halves = [_median(part) > limit for part in (ratios[:middle], ratios[middle:]) if part]
    if low > limit and all(halves):
        return True
    return False if high < limit and not any(halves) else None


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


@dataclass(frozen=True, slots=True)
class Rounds:
    """What each round measured: the seconds of one inference of each in its best turn."""

    base_s: list[float] = field(default_factory=list)
    variant_s: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Base over variant, one a round."""
        return [base / variant for base, variant in zip(self.base_s, self.variant_s, strict=True)]


def run_rounds(
    start_base: Callable[[], Turn],
    start_variant: Callable[[], Turn],
    *,
    most_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Rounds:
    """Let both take turns until it is decided which is faster, in ten to sixty rounds.

    Args:
        start_base: Loads the one model.
        start_variant: Loads the other.
        most_s: No further round begins after this, once there are ten.
        clock: Seconds.
    """
    rounds = Rounds()
    drawn = random.Random(_SEED)  # noqa: S311 - an order, not a secret
    begin = clock()
    while (done := len(rounds.base_s)) < _MOST_ROUNDS:
        taken_s = clock() - begin
        if done >= _FEWEST_ROUNDS and taken_s > most_s:
            break
        sure = done >= _SURE_ROUNDS or (done >= _FEWEST_ROUNDS and taken_s > _SURE_S)
        if sure and is_faster(rounds.ratios) is not None:
            break
        _run_pair((start_base, start_variant), rounds, drawn, clock)
    return rounds


def _run_pair(
    starts: tuple[Callable[[], Turn], Callable[[], Turn]],
    rounds: Rounds,
    drawn: random.Random,
    clock: Callable[[], float],
) -> None:
    """Load both models, in an order that is drawn, and let them take turns for a few rounds."""
    start_base, start_variant = starts
    if drawn.random() < 0.5:
        base, variant = start_base(), start_variant()
    else:
        variant, base = start_variant(), start_base()
    for _ in range(_ROUNDS_OF_A_PAIR):
        base_s, variant_s = _run_round(base, variant, drawn, clock)
        rounds.base_s.append(base_s)
        rounds.variant_s.append(variant_s)


def _run_round(
    base: Turn, variant: Turn, drawn: random.Random, clock: Callable[[], float]
) -> tuple[float, float]:
    """Let both take turns for a while; return the best seconds of each."""
    base_s: list[float] = []
    variant_s: list[float] = []
    end = clock() + _SHORTEST_ROUND_S
    while not base_s or clock() < end:
        if drawn.random() < 0.5:
            base_s.append(base())
            variant_s.append(variant())
        else:
            variant_s.append(variant())
            base_s.append(base())
    return min(base_s), min(variant_s)


def describe_cpu() -> dict[str, str | bool | None]:
    """Return the processor's name and whether it has each of ``FEATURES``; None where that is unknown."""
    host = look_at_host()
    known = bool(host.cpu_flags) or Path("/proc/cpuinfo").exists()
    return {"model": host.cpu, **{name: name in host.cpu_flags if known else None for name in FEATURES}}


def _start(path: Path, inputs: Arrays, threads: int) -> Turn:
    """Load a model and return a function that runs it for one turn; it is warm, and knows how often."""
    session = Session(path, threads=threads)

    def run() -> float:
        begin = time.perf_counter()
        session.predict(inputs)
        return time.perf_counter() - begin

    warming = [run()]
    while len(warming) < _WARM_UP_RUNS and sum(warming) < _WARM_UP_S:
        warming.append(run())
    repeats = math.ceil(_SHORTEST_TURN_S / min(warming))
    return lambda: _median([run() for _ in range(repeats)])


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
