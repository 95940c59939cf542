"""The statistics by simulation of known distributions; the real run without a word about its figures."""

import json
import random
from pathlib import Path

import pytest

from tests.unit.optimise.fp16_models import normal
from tests.unit.optimise.int8_models import convnet
from triton_toolkit import _machine
from triton_toolkit.optimise import timing
from triton_toolkit.optimise.timing import (
    FEATURES,
    Speed,
    describe_cpu,
    is_faster,
    median_interval,
    run_rounds,
    time_variant,
)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], (3, 3, 3)),
        ([4.0, 2.0], (3, 2, 4)),
        (list(map(float, range(1, 8))), (4, 1, 7)),
        (list(map(float, range(1, 11))), (5.5, 1, 10)),  # binomial: 2 * (1 + 10) / 1024 > 1 %
        (list(map(float, range(1, 21))), (10.5, 4, 17)),  # 2 * (1 + 20 + 190) / 2**20 <= 1 % < with 1140
    ],
)
def test_the_interval_of_a_median_is_that_of_the_sign_test(values, expected):
    random.Random(1).shuffle(values)
    assert median_interval(values) == pytest.approx(expected)


@pytest.mark.parametrize("draw", ["gauss", "lognormal", "spikes"])
def test_the_interval_holds_the_true_median_as_often_as_it_says(draw):
    source = random.Random(7)
    make = {
        "gauss": lambda: source.gauss(1.3, 0.2),
        "lognormal": lambda: 1.3 * source.lognormvariate(0, 0.4),
        "spikes": lambda: 1.3 + source.choice([-1, 1]) * (0.01 + 9 * (source.random() < 0.1)),
    }[draw]
    runs = [median_interval([make() for _ in range(25)]) for _ in range(2000)]
    inside = sum(low <= 1.3 <= high for _, low, high in runs)
    assert inside >= 0.985 * len(runs)


def clear(ratio, count=20):
    """Return ratios closely around one."""
    source = random.Random(3)
    return [ratio * source.lognormvariate(0, 0.005) for _ in range(count)]


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.25, True), (1.05, True), (1.03, None), (1.01, False), (1.0, False), (0.8, False)],
)
def test_a_gain_counts_from_three_percent_on(ratio, verdict):
    assert is_faster(clear(ratio)) is verdict


def test_a_gain_that_only_one_half_of_the_run_shows_is_none():
    assert is_faster(clear(1.06, 20)) is True
    ratios = [*clear(1.2, 44), *clear(1.0, 16)]
    assert median_interval(ratios)[1] > 1.1
    assert is_faster(ratios) is None


class Machine:
    """A simulated machine: time passes only where something runs, and noise comes from a seed."""

    def __init__(self, seed=1, noise=0.0, drift=0.0):
        self.now = 0.0
        self.drift = drift
        self.noise = noise
        self.source = random.Random(seed)
        self.order = []

    def clock(self):
        return self.now

    def start(self, cost_s, name=""):
        """Return a function that loads a model, whose turns take about so long."""

        def turn():
            begin = self.now
            self.order.append(name)
            self.now += cost_s * (1 + self.drift * begin) * self.source.lognormvariate(0, self.noise)
            return self.now - begin

        return lambda: turn

    def run(self, ratio, most_s=10.0, cost_s=0.01):
        return run_rounds(
            self.start(cost_s, "b"), self.start(cost_s / ratio, "v"), most_s=most_s, clock=self.clock
        )


@pytest.mark.parametrize(("ratio", "wrong"), [(1.0, True), (1.2, False)])
def test_a_run_seldom_tells_the_contrary_of_what_is(ratio, wrong):
    verdicts = [is_faster(Machine(seed, noise=0.1).run(ratio).ratios) for seed in range(300)]
    assert verdicts.count(wrong) <= 3


def test_a_run_at_the_very_limit_is_seldom_decided():
    verdicts = [is_faster(Machine(seed, noise=0.05).run(1.03).ratios) for seed in range(200)]
    assert verdicts.count(None) >= 0.93 * len(verdicts)


def test_a_run_ends_when_it_is_decided():
    assert len(Machine(noise=0.02).run(1.5).ratios) == timing._SURE_ROUNDS
    assert len(Machine(noise=0.05).run(1.03).ratios) == 60


def test_a_slow_models_run_ends_after_seconds_when_it_is_decided():
    assert len(Machine(noise=0.02).run(1.5, cost_s=0.2).ratios) == 10
    assert len(Machine(noise=0.02).run(1.03, cost_s=0.2, most_s=8).ratios) > 10


def test_an_undecided_run_ends_with_its_time():
    assert len(Machine(noise=0.05).run(1.03, most_s=1, cost_s=1.0).ratios) == 10
    assert 10 < len(Machine(noise=0.05).run(1.03, most_s=1, cost_s=0.01).ratios) < 60


def test_each_round_has_both_in_one_of_two_orders():
    machine = Machine()
    machine.run(1.5, cost_s=0.05)
    text = "".join(machine.order)
    rounds = [text[i : i + 2] for i in range(0, len(text), 2)]
    assert set(rounds) == {"bv", "vb"}
    assert len(rounds) == timing._SURE_ROUNDS


def test_a_round_of_a_short_model_has_more_turns():
    machine = Machine()
    machine.run(1.0, cost_s=0.002)
    assert len(machine.order) == timing._SURE_ROUNDS * 20  # 0.04 s


def test_a_machine_that_slows_down_steadily_favours_neither():
    rounds = Machine(drift=0.05).run(1.0, cost_s=0.1)
    assert rounds.base_s[-1] > 1.1 * rounds.base_s[0]
    _, low, high = median_interval(rounds.ratios)
    assert low == pytest.approx(1, abs=0.01)
    assert high == pytest.approx(1, abs=0.01)


def test_both_models_are_loaded_anew_every_five_rounds():
    loaded = []
    machine = Machine()

    def start(name):
        return lambda: loaded.append(name) or machine.start(0.01)()

    run_rounds(start("b"), start("v"), most_s=0, clock=machine.clock)
    assert sorted(loaded) == ["b", "b", "v", "v"]


def test_a_turn_repeats_a_short_model_and_takes_the_median(monkeypatch, tmp_path):
    ticks = iter([*[0, 3] * 3, *[0, 3] * 6, 0, 500])  # in 0.1 ms: warm-up, then a turn with one interruption
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(ticks) * 1e-4)
    turn = timing._start(convnet(tmp_path / "m.onnx"), {"x": normal(1, 1, 3, 8, 8)}, 1)
    assert turn() == pytest.approx(3e-4)
    assert list(ticks) == []  # 7 runs of 0.3 ms, to make 2 ms


def test_two_files_are_timed_with_the_same_threads(tmp_path):
    full = convnet(tmp_path / "m.onnx")
    found = time_variant(full, full, {"x": normal(1, 1, 3, 8, 8)}, threads=1, most_s=0)
    assert found.rounds >= 10
    assert found.threads == 1
    assert 0 < found.low <= found.ratio <= found.high
    assert min(found.base_ms, found.variant_ms) > 0
    assert found.faster in {True, False, None}
    assert json.loads(json.dumps(found.as_dict()))["cpu"]["model"]


def test_the_line_says_how_much_on_what():
    speed = Speed(
        ratio=1.5,
        low=1.4,
        high=1.6,
        faster=True,
        rounds=20,
        base_ms=3.0,
        variant_ms=2.0,
        threads=2,
        cpu={"model": "A CPU", "avx2": True, "avx512_vnni": False, "avx_vnni": False},
    )
    assert speed.text == (
        "1.50 times as fast (1.40 to 1.60; 3 ms against 2 ms; 20 rounds, 2 threads) on A CPU, "
        "with avx2, without avx512_vnni, avx_vnni"
    )


@pytest.mark.parametrize(
    ("flags", "known", "expected"),
    [
        ("fpu avx2 avx_vnni", True, {"avx2": True, "avx512_vnni": False, "avx_vnni": True}),
        ("", True, dict.fromkeys(FEATURES, False)),
        ("", False, dict.fromkeys(FEATURES)),
    ],
)
def test_features_are_those_of_the_processor_and_unknown_where_it_does_not_say(
    monkeypatch, flags, known, expected
):
    monkeypatch.setattr(_machine, "_read", lambda path: f"model name : A CPU\nflags : {flags}\n")
    monkeypatch.setattr(Path, "exists", lambda path: known)
    assert describe_cpu() == {"model": "A CPU", **expected}
