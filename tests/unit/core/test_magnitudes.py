"""Which outputs mix ranges, and which only look as if."""

from __future__ import annotations

import numpy as np
import pytest

from triton_toolkit.core.magnitudes import find_ranges

RNG = np.random.default_rng(0)


def ranges(array, **options):
    """Return the ranges in words with their magnitudes; {} for an output of one range."""
    found = find_ranges(np.asarray(array), **options)
    return {str(each): each.magnitude for each in found} if len(found) > 1 else {}


def boxes_and_scores(rows=2, anchors=50):
    """Return [rows, 4 + 80, anchors]: boxes up to 640, then scores up to 1."""
    boxes = RNG.uniform(0, 640, (rows, 4, anchors))
    scores = RNG.uniform(0, 1, (rows, 80, anchors)) ** 8  # most are small, some are near 1
    boxes[0, 0, 0], scores[0, 0, 0] = 640, 1
    return np.concatenate([boxes, scores], axis=1)


def test_boxes_and_scores_are_two_ranges():
    assert ranges(boxes_and_scores()) == {"4..83 of axis 1": 1.0, "0..3 of axis 1": 640.0}


def test_the_axis_is_found_wherever_it_is():
    assert ranges(boxes_and_scores().transpose(0, 2, 1)) == {"4..83 of axis 2": 1.0, "0..3 of axis 2": 640.0}


def test_of_two_axes_the_one_that_differs_most_is_taken():
    array = RNG.uniform(1, 2, (4, 2, 2)) * np.array([1, 1000]) * np.array([[1], [50]])
    assert [text[-1] for text in ranges(array)] == ["2", "2"]


def test_several_magnitudes_are_several_ranges():
    array = RNG.uniform(0.5, 1, (8, 5)) * np.array([1, 100, 1e4, 1, 100])
    assert list(ranges(array)) == ["0, 3 of axis 1", "1, 4 of axis 1", "2 of axis 1"]


def test_many_scattered_indices_are_told_by_number_and_ends():
    array = RNG.uniform(0.5, 1, (8, 30)) * np.where(np.arange(30) % 2, 100, 1)
    assert list(ranges(array)) == ["15 indices from 0 to 28 of axis 1", "15 indices from 1 to 29 of axis 1"]


def test_indices_of_zeros_alone_belong_to_the_smallest_range():
    array = boxes_and_scores()
    array[:, [2, 50]] = 0
    assert list(ranges(array)) == ["2, 4..83 of axis 1", "0..1, 3 of axis 1"]


def test_detections_padded_with_zeros_still_mix():
    array = boxes_and_scores(rows=1).transpose(0, 2, 1)[..., :5]
    array[:, 8:] = 0
    assert list(ranges(array)) == ["4 of axis 2", "0..3 of axis 2"]


def test_nan_and_infinities_do_not_count():
    array = boxes_and_scores()
    array[1, 10, :3] = np.nan, np.inf, -np.inf
    assert ranges(array) == {"4..83 of axis 1": 1.0, "0..3 of axis 1": 640.0}


ONE_RANGE = {
    "logits": RNG.normal(size=(64, 10)),
    "logits of few rows": RNG.normal(size=(3, 10)) * np.array([1, 1, 1, 1, 1, 1, 1, 1, 1e-3, 100]),
    "hidden states": RNG.normal(size=(2, 16, 64)),
    "one huge element": np.where(np.arange(800).reshape(1, 8, 100) == 333, 1e4, RNG.normal(size=(1, 8, 100))),
    "rare classes": RNG.uniform(0, 1, (1, 80, 500)) ** 4 * 10.0 ** -np.linspace(0, 6, 80)[:, None],
    "equal rows": np.tile([1.0, 100.0], (50, 1)),
    "zeros": np.zeros((4, 5, 6)),
    "a scalar": 3.0,
    "a vector": np.array([1.0, 1e3, 1e6]),
    "nothing": np.zeros((0, 4)),
    "seven times as large": RNG.uniform(0.99, 1, (8, 2)) * np.array([1, 7]),
}


@pytest.mark.parametrize("array", ONE_RANGE.values(), ids=ONE_RANGE.keys())
def test_it_is_one_range(array):
    assert ranges(array) == {}


def test_probabilities_are_one_quantity_however_small_some_are():
    logits = RNG.normal(size=(50, 4)) + np.array([9, 0, 0, 0])
    odds = np.exp(logits)
    assert ranges(odds) != {}
    assert ranges(odds / odds.sum(axis=1, keepdims=True)) == {}


def test_rows_of_a_batch_are_not_ranges():
    array = RNG.uniform(0.5, 1, (2, 50)) * np.array([[1], [100]])
    assert ranges(array) == {}
    assert list(ranges(array, batched=False)) == ["0 of axis 0", "1 of axis 0"]


def test_an_outlier_channel_is_a_range_of_its_own():
    """As in the hidden states of language models: a few channels are always 20 times larger."""
    array = RNG.uniform(-1, 1, (2, 16, 64))
    array[..., 7] += 20
    assert list(ranges(array)) == ["0..6, 8..63 of axis 2", "7 of axis 2"]
