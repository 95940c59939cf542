"""Ranges from values: extremes, percentile, and the entropy method against a second implementation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.unit.optimise.int8_models import Array, normal
from triton_toolkit.optimise.thresholds import BINS, Histogram, entropy_bins


def filled(*arrays: Array) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        histogram.add(array)
    return histogram


def slow_entropy_bins(counts: Array, levels: int) -> int:
    """The same definition, one bin and one candidate at a time."""
    h = [float(count) for count in counts]
    while h and h[-1] == 0:
        h.pop()
    if len(h) <= levels:
        return len(h)
    best, found = math.inf, len(h)
    for i in range(levels, len(h) + 1):
        p = h[:i]
        p[-1] += sum(h[i:])
        q = [0.0] * i
        for level in range(levels):
            span = [j for j in range(i) if j * levels // i == level and h[j] > 0]
            for j in span:
                q[j] = sum(h[k] for k in span) / len(span)
        divergence = sum(q) - sum(p)
        q[-1] = q[-1] or 1e-4
        divergence += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
        if divergence < best:
            best, found = divergence, i
    return found


HISTOGRAMS = {
    "normal": np.histogram(np.abs(normal(1, 20000)), 200)[0],
    "long tail": np.histogram(np.random.default_rng(2).exponential(1, 20000), 300)[0],
    "outliers": np.append(np.histogram(np.abs(normal(3, 20000)), 150)[0], [0] * 140 + [3, 0, 1]),
    "sparse": np.random.default_rng(4).integers(0, 2, 180),
    "empty first bins": np.append([0] * 60, np.random.default_rng(5).integers(0, 9, 90)),
    "spike at the top": np.append(np.histogram(np.abs(normal(6, 9000)), 170)[0], [5000]),
    "uniform": np.full(160, 7),
}


@pytest.mark.parametrize("counts", HISTOGRAMS.values(), ids=HISTOGRAMS.keys())
def test_entropy_equals_the_straightforward_implementation(counts):
    assert entropy_bins(counts, levels=32) == slow_entropy_bins(counts, 32)


def test_entropy_at_full_size_equals_the_straightforward_implementation():
    counts = np.histogram(np.random.default_rng(2).laplace(0, 1, 50000), 400, range=(0, 12))[0]
    assert entropy_bins(counts) == slow_entropy_bins(counts, 128)


def test_entropy_clips_outliers_that_minmax_keeps():
    values = normal(7, 200_000)
    values[:20] = 100
    histogram = filled(values)
    assert histogram.minmax()[1] == 100
    low, high = histogram.entropy()
    assert 3 < high < 8
    assert -8 < low < -3


def test_entropy_does_not_clip_all_that_there_is():
    """Magnitudes from 9.5 to 10.5 and none below: a threshold below them leaves no difference to see."""
    assert filled(10 + normal(1, 100_000, scale=0.1)).entropy()[1] > 10


def test_entropy_keeps_the_extremes_of_a_uniform_distribution():
    values = np.random.default_rng(8).uniform(-2, 2, 400_000).astype(np.float32)
    low, high = filled(values).entropy()
    assert high == pytest.approx(2, rel=0.02)
    assert low == pytest.approx(-2, rel=0.02)


def test_entropy_of_a_few_values_clips_nothing():
    """A histogram of 300 values in 2048 bins is mostly holes, which look free to be clipped."""
    histogram = filled(normal(9, 300))
    assert histogram.entropy() == histogram.minmax()


def test_percentile_clips_the_share_that_it_names():
    values = np.arange(1, 50_001, dtype=np.float32)
    low, high = filled(values).percentile(99)
    assert high == pytest.approx(49_500, abs=50_000 / BINS)
    assert low == 1  # no value is negative, so the low end is the smallest value


def test_percentile_leaves_exact_zeros_out():
    """Half of what a Relu gives is 0, which any scale holds: it must not push the rest out."""
    values = np.concatenate([np.zeros(450_000), np.arange(1, 50_001)]).astype(np.float32)
    assert filled(values).percentile(99)[1] == pytest.approx(49_500, rel=0.01)


def test_batches_give_what_all_values_at_once_give():
    first, second = np.arange(BINS) + 0.5, np.arange(5 * BINS) + 0.5
    first[-1] = BINS  # bins of width 1, then, for the second array, of width 2
    histogram = filled(first.astype(np.float32), second.astype(np.float32))
    assert histogram.width == 2
    # The largest value of each array is counted once more, so that sampling cannot lose it.
    assert histogram.counts.sum() == 6 * BINS + 2
    expected = np.histogram(np.concatenate([first, second]), 5 * BINS // 2, range=(0, 5 * BINS))[0]
    # Those two, and the first array's largest value, which lies on an edge.
    differs = np.flatnonzero(histogram.counts != expected)
    assert differs.tolist() == [BINS // 2 - 1, BINS // 2, 5 * BINS // 2 - 1]
    assert histogram.minmax() == (0.5, 5 * BINS - 0.5)


def test_values_that_grow_a_thousandfold_keep_the_bins_bounded():
    histogram = filled(*(normal(1, 1000, scale=10.0**power) for power in range(-4, 4)))
    assert BINS <= len(histogram.counts) <= 4 * BINS + 1
    assert len(histogram.counts) * histogram.width >= histogram.magnitude


def test_large_arrays_are_sampled_in_all_channels():
    """512 channels of which one is large: a step of 512 would see it always or never."""
    array = np.ones((2000, 512), np.float32)
    array[:, 7] = 3
    histogram = filled(array)
    share = histogram.counts[-1] / histogram.counts.sum()
    assert share == pytest.approx(1 / 512, rel=0.2)


def test_extremes_are_exact_though_large_arrays_are_sampled():
    array = normal(1, 500_000)
    array[123_457] = 77
    assert filled(array).minmax() == (array.min(), 77)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_an_infinity_stays_in_the_range(method):
    assert getattr(filled(np.array([1, -np.inf], np.float32)), method)() == (-math.inf, 1)


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_zeros_alone_have_the_range_zero(method):
    assert getattr(filled(np.zeros(10, np.float32)), method)() == (0, 0)


def test_nothing_has_the_range_zero():
    assert filled(np.zeros((0, 3), np.float32)).minmax() == (0, 0)


def test_nan_is_noted():
    assert filled(np.array([1, np.nan], np.float32)).has_nan
