"""The statistics against hand-computed samples and against distributions whose truth is known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_toolkit.probe.stats import (
    Sample,
    interval_ranks,
    requests_needed,
    share,
    throughput,
)

Array = np.ndarray[Any, Any]
RUNS = 1000
_NORMAL = statistics.NormalDist()


class TestPercentile:
    def test_is_the_smallest_value_that_covers_the_share(self) -> None:
        sample = Sample(np.arange(1, 101))
        assert [sample.percentile(q).value for q in (0.5, 0.9, 0.95, 0.99)] == [50, 90, 95, 99]

    def test_of_one_value_is_that_value_without_bounds(self) -> None:
        estimate = Sample(np.array([7.0])).percentile(0.5)
        assert (estimate.value, estimate.low, estimate.high) == (7.0, None, None)

    def test_one_planted_outlier_moves_the_maximum_only(self) -> None:
        values = np.full(1000, 2.0)
        values[417] = 900.0
        sample = Sample(values)
        assert sample.percentile(0.99).value == 2.0
        assert sample.maximum() == 900.0

    @given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
    @settings(max_examples=100, deadline=None)
    def test_interval_encloses_the_value(self, values: list[float], q: float) -> None:
        estimate = Sample(np.array(values)).percentile(q)
        assert estimate.value in values
        assert estimate.low is None or estimate.low <= estimate.value
        assert estimate.high is None or estimate.high >= estimate.value


class TestRanks:
    def test_median_of_ten_are_the_textbook_ranks(self) -> None:
        # P(2 <= X <= 8) for X ~ binomial(10, 1/2) is 1 - 2 * 11 / 1024 = 0.9785; narrower falls below.
        assert interval_ranks(10, 0.5) == (2, 9)

    def test_no_upper_rank_until_enough_requests(self) -> None:
        assert interval_ranks(100, 0.99)[1] is None
        assert interval_ranks(requests_needed(0.99), 0.99)[1] is not None

    def test_requests_needed_leave_2_5_percent_above(self) -> None:
        n = requests_needed(0.99)
        assert 0.99**n <= 0.025 < 0.99 ** (n - 1)

    @pytest.mark.parametrize("n", [368, 1000, 10_000, 1_000_000])
    @pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
    def test_cover_95_percent_and_little_more(self, n: int, q: float) -> None:
        low, high = interval_ranks(n, q)
        assert low is not None
        assert high is not None
        # The probability that binomial(n, q) lies in [low, high), by the logarithm of each term.
        terms = (
            math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
            + k * math.log(q) + (n - k) * math.log1p(-q)
            for k in range(low, high)
        )  # fmt: skip
        assert 0.95 <= sum(map(math.exp, terms)) <= 0.967


def _independent(rng: np.random.Generator, n: int) -> Array:
    return np.exp(0.5 * rng.standard_normal(n))


def _waves(rng: np.random.Generator, n: int) -> Array:
    """Eight in flight share a batch, and so their latency."""
    return np.exp(0.5 * np.repeat(rng.standard_normal(n // 8), 8))


def _spells(rng: np.random.Generator, n: int) -> Array:
    """A slow or fast spell lasts: each value remembers 0.6 of the last."""
    values = np.empty(n)
    noise = rng.standard_normal(n) * 0.8
    last = rng.standard_normal()
    for i in range(n):
        last = values[i] = 0.6 * last + noise[i]
    return np.exp(0.5 * values)


def _coverage(draw: Callable[..., Array], n: int, q: float, concurrency: int = 1, runs: int = RUNS) -> float:
    rng = np.random.default_rng(20_240_501)
    truth = math.exp(0.5 * _NORMAL.inv_cdf(q))
    hits = 0
    for _ in range(runs):
        estimate = Sample(draw(rng, n), concurrency).percentile(q)
        low = -math.inf if estimate.low is None else estimate.low
        high = math.inf if estimate.high is None else estimate.high
        hits += low <= truth <= high
    return hits / runs


class TestCoverage:
    @pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
    def test_of_independent_latencies_is_95_percent(self, q: float) -> None:
        assert 0.93 <= _coverage(_independent, 1000, q) <= 0.97

    @pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
    def test_of_latencies_that_come_in_waves(self, q: float) -> None:
        assert 0.93 <= _coverage(_waves, 4000, q, concurrency=8, runs=400) <= 0.985

    @pytest.mark.parametrize("q", [0.5, 0.9])
    def test_of_latencies_in_slow_and_fast_spells(self, q: float) -> None:
        assert 0.92 <= _coverage(_spells, 2000, q, runs=250) <= 0.98

    def test_of_a_short_run_errs_on_the_safe_side(self) -> None:
        assert _coverage(_waves, 80, 0.5, concurrency=8, runs=300) >= 0.93

    def test_of_the_mean(self) -> None:
        rng = np.random.default_rng(7)
        hits = 0
        for _ in range(RUNS):
            estimate = Sample(rng.exponential(1.0, 1000)).mean()
            assert estimate.low is not None
            assert estimate.high is not None
            hits += estimate.low <= 1.0 <= estimate.high
        assert 0.93 <= hits / RUNS <= 0.97

    def test_of_throughput(self) -> None:
        rng = np.random.default_rng(8)
        hits = 0
        for _ in range(RUNS):
            ends = np.cumsum(rng.exponential(1e6, 3000)).astype(np.int64)  # 1000/s
            estimate = throughput(ends, 0, 2_000_000_000)
            assert estimate.low is not None
            assert estimate.high is not None
            hits += estimate.low <= 1000.0 <= estimate.high
        assert 0.93 <= hits / RUNS <= 0.97

    def test_of_a_share_is_at_least_95_percent(self) -> None:
        rng = np.random.default_rng(9)
        covered = 0
        for hits in rng.binomial(500, 0.02, RUNS):
            estimate = share(int(hits), 500)
            assert estimate.low is not None
            assert estimate.high is not None
            covered += estimate.low <= 0.02 <= estimate.high
        assert covered / RUNS >= 0.95


class TestShare:
    def test_of_none_is_bounded_by_the_rule_of_three(self) -> None:
        estimate = share(0, 1000)
        assert estimate.low == 0.0
        assert estimate.high == pytest.approx(1 - 0.025 ** (1 / 1000))

    def test_of_all(self) -> None:
        estimate = share(10, 10)
        assert estimate.high == 1.0
        assert estimate.low == pytest.approx(0.025 ** (1 / 10))

    def test_matches_the_published_interval(self) -> None:
        # Clopper-Pearson for 4 of 40, a worked example of many textbooks: 0.0279 to 0.2366.
        estimate = share(4, 40)
        assert (estimate.low, estimate.high) == (
            pytest.approx(0.0279, abs=1e-4),
            pytest.approx(0.2366, abs=1e-4),
        )


class TestDependence:
    def test_of_independent_latencies_is_mostly_one(self) -> None:
        rng = np.random.default_rng(1)
        found = [
            (sample := Sample(rng.exponential(1.0, 1000))).dependence(sample.percentile(0.5).value)
            for _ in range(200)
        ]
        assert sum(value == 1.0 for value in found) >= 150

    def test_of_waves_is_about_their_length(self) -> None:
        sample = Sample(_waves(np.random.default_rng(2), 40_000), 8)
        assert 4 <= sample.dependence(sample.percentile(0.5).value) <= 16

    def test_of_a_run_too_short_to_tell_is_the_concurrency(self) -> None:
        assert Sample(np.arange(100.0), 8).dependence(50.0) == 8


class TestDrift:
    def test_of_a_rising_run_is_reported_with_both_ends(self) -> None:
        rng = np.random.default_rng(3)
        drift = Sample(np.linspace(10, 20, 1000) + rng.standard_normal(1000)).drift()
        assert drift is not None
        assert 11 <= drift[0] <= 12.5
        assert 17.5 <= drift[1] <= 19

    def test_of_steady_runs_is_rare(self) -> None:
        rng = np.random.default_rng(4)
        assert sum(Sample(rng.exponential(1.0, 1000)).drift() is not None for _ in range(500)) <= 3


class TestThroughput:
    def test_counts_what_ended_inside_the_span(self) -> None:
        ends = np.arange(-1000, 4000) * 1_000_000 + 500_000
        estimate = throughput(ends, 0, 2_000_000_000)
        assert estimate.value == pytest.approx(1000)
        assert estimate.low == pytest.approx(1000)

    def test_of_few_has_no_interval(self) -> None:
        estimate = throughput(np.array([1, 2, 3]), 0, 1_000_000_000)
        assert (estimate.value, estimate.low, estimate.high) == (3.0, None, None)


def test_histogram_has_every_latency_in_its_class() -> None:
    assert Sample(np.array([1.0, 1.5, 3.0, 9.0, 100.0])).histogram(2, 1.0, 100.0) == [4, 1]
