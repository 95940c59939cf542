"""Which of two models is faster, on simulated machines that are disturbed as real ones are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from triton_toolkit.optimise.timing import Rounds, is_faster, median_interval, run_rounds

RUNS = 100


@dataclass(kw_only=True)
class Machine:
    """A clock that moves as models run, disturbed as machines are.

    Attributes:
        seed: Of everything that is drawn.
        busy: Share of the time in which other work halves the speed.
        burst_s: Mean length of such a time.
        slice_s: Seconds of work after which a scheduler lets others run; 0 for never.
        unlucky: Share of sessions that are a quarter slower for as long as they live.
        lame: Share of turns that take two thirds longer as a whole.
    """

    seed: int
    busy: float = 0.0
    burst_s: float = 0.0
    slice_s: float = 0.0
    unlucky: float = 0.0
    lame: float = 0.0

    def __post_init__(self) -> None:
        self._drawn = random.Random(self.seed)
        self._now = self._worked = self._burst_ends = self._calm_ends = 0.0

    def clock(self) -> float:
        return self._now

    def start(self, run_s: float) -> Callable[[], float]:
        slow = 1.25 if self._drawn.random() < self.unlucky else 1.0
        repeats = math.ceil(0.002 / run_s)

        def turn() -> float:
            lame = 5 / 3 if self._drawn.random() < self.lame else 1.0
            taken = sorted(self._run(run_s * slow * lame) for _ in range(repeats))
            return taken[len(taken) // 2]

        return turn

    def _run(self, work_s: float) -> float:
        while self.busy and self._now >= self._calm_ends:
            self._burst_ends = self._calm_ends + self._drawn.expovariate(1 / self.burst_s)
            calm_s = self.burst_s * (1 - self.busy) / self.busy
            self._calm_ends = self._burst_ends + self._drawn.expovariate(1 / calm_s)
        taken_s = work_s * (2 if self._now < self._burst_ends else 1) * (1 + self._drawn.expovariate(100))
        if self.slice_s and (self._worked + taken_s) // self.slice_s > self._worked // self.slice_s:
            taken_s += 0.003
        self._worked += work_s
        self._now += taken_s
        return taken_s


MACHINES: dict[str, dict[str, float]] = {
    "quiet": {},
    "bursts of a turn": {"busy": 0.4, "burst_s": 0.004},
    "bursts of a round": {"busy": 0.4, "burst_s": 0.03},
    "bursts of the whole run": {"busy": 0.4, "burst_s": 2.0},
    "a scheduler in step with the turns": {"slice_s": 0.008},
    "unlucky sessions": {"unlucky": 0.15},
    "threads that wake late": {"lame": 0.5},
    "all of it": {"busy": 0.3, "burst_s": 0.03, "slice_s": 0.008, "unlucky": 0.1, "lame": 0.2},
}


def measure(machine: Machine, ratio: float, run_s: float) -> Rounds:
    return run_rounds(
        lambda: machine.start(run_s), lambda: machine.start(run_s / ratio), most_s=15, clock=machine.clock
    )


def verdicts(kind: str, ratio: float, run_s: float) -> list[bool | None]:
    machines = [Machine(seed=seed, **MACHINES[kind]) for seed in range(RUNS)]
    return [is_faster(measure(machine, ratio, run_s).ratios) for machine in machines]


@pytest.mark.parametrize("run_s", [0.0005, 0.004, 0.1])
@pytest.mark.parametrize("kind", MACHINES)
def test_a_model_as_fast_as_the_other_is_hardly_ever_called_faster(kind: str, run_s: float) -> None:
    assert verdicts(kind, 1.0, run_s).count(True) <= RUNS * 0.01


@pytest.mark.parametrize("run_s", [0.0005, 0.004])
@pytest.mark.parametrize("kind", MACHINES)
def test_a_model_half_as_fast_again_is_called_faster(kind: str, run_s: float) -> None:
    assert verdicts(kind, 1.5, run_s).count(True) >= RUNS * 0.99


@pytest.mark.parametrize("kind", MACHINES)
def test_a_slow_model_half_as_fast_again_may_stay_undecided_but_is_not_called_slower(kind: str) -> None:
    told = verdicts(kind, 1.5, 0.1)
    assert told.count(True) >= RUNS * 0.7
    assert told.count(False) == 0


def test_the_ratio_of_a_quiet_machine_is_the_true_one() -> None:
    assert median_interval(measure(Machine(seed=0), 1.25, 0.004).ratios)[0] == pytest.approx(1.25, rel=0.01)


def test_a_scheduler_in_step_with_the_turns_favours_neither() -> None:
    machine = Machine(seed=0, slice_s=0.016)
    assert median_interval(measure(machine, 1.0, 0.004).ratios)[0] == pytest.approx(1.0, abs=0.02)
