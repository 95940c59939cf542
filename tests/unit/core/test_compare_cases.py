"""Wrong outputs that people shipped, and what the rule says of each at the tolerances of INT8.

The numbers are of the kind that the reports tell: what was lost, and how well it hid.
"""

from __future__ import annotations

import numpy as np
import pytest

from triton_toolkit.core.compare import Difference, Tolerance, Tolerances, compare_outputs, default_tolerances

INT8 = default_tolerances("int8")


def compare(actual: np.ndarray, expected: np.ndarray, tolerances: Tolerances = INT8) -> Difference:
    (found,) = compare_outputs(
        {"y": actual.astype(np.float32)}, {"y": expected.astype(np.float32)}, tolerances
    )
    return found


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def in_int8(values: np.ndarray) -> np.ndarray:
    """Return values in symmetric INT8 steps of one scale for all of them."""
    step = np.abs(values).max() / 127
    return np.round(values / step) * step


@pytest.fixture
def head() -> np.ndarray:
    """Return a detector's output [1, 84, 400]: 4 rows of boxes (0..640), 80 of scores (0..1)."""
    rng = np.random.default_rng(0)
    boxes, scores = rng.uniform(0, 640, (1, 4, 400)), rng.uniform(0, 1, (1, 80, 400)) ** 6
    boxes[0, 0, 0], scores[0, 0, 0] = 640, 1
    return np.concatenate([boxes, scores], axis=1)


@pytest.mark.parametrize("constant", [0.0, 0.14], ids=["zero", "their mean"])
def test_scores_that_all_became_equal_fail_though_the_cosine_is_near_1(head, constant):
    """YOLOv6 issue 969: static INT8 left all class scores 0, and everything else as it was."""
    lost = head.copy()
    lost[:, 4:] = constant
    found = compare(lost, head)
    assert cosine(lost, head) > 0.99995
    assert found.max_absolute / np.abs(head).max() < 0.002
    assert not found.ok
    assert found.ranges == {"4..83 of axis 1": 1.0, "0..3 of axis 1": 640.0}
    assert "the largest in 4..83 of axis 1" in found.problem
    assert "has 1 distinct value in 4..83 of axis 1, expected 64 or more" in found.problem
    assert found.distinct == 0


def test_scores_that_share_a_scale_with_boxes_fail(head):
    """The same by its cause: one scale of 640 / 127 for the joined tensor."""
    lost = in_int8(head)
    assert np.unique(lost[:, 4:]).size == 1
    found = compare(lost, head)
    assert not found.ok
    assert found.zero_share_rise == pytest.approx(1, abs=0.01)


def test_scores_with_a_scale_of_their_own_pass(head):
    found = compare(np.concatenate([in_int8(head[:, :4]), in_int8(head[:, 4:])], axis=1), head)
    assert found.ok, found.problem
    assert found.distinct == 1.0


def test_scores_near_one_half_that_became_equal_fail(head):
    """Errors of 0.05 are 9 % of the largest score, but half of how far scores are apart."""
    head[:, 4:] = 0.5 + 0.05 * np.sin(np.arange(80 * 400)).reshape(80, 400)
    lost = head.copy()
    lost[:, 4:] = 0.5
    problems = compare(lost, head).problem.split("; ")
    assert problems[0].endswith("+ 0.15 x 0.0999999, from smallest to largest in 4..83 of axis 1)")
    assert problems[1].startswith("has noise of 1 x the spread expected in 4..83 of axis 1")
    assert problems[2] == (
        "has 1 distinct value in 4..83 of axis 1, expected 64 or more "
        "(the share that stays is to be 0.05 at least)"
    )


OFFSETS = {"temperatures in kelvin": (290.0, 3.0), "latitudes of one town": (52.0, 0.5)}


@pytest.mark.parametrize(("offset", "spread"), OFFSETS.values(), ids=OFFSETS.keys())
@pytest.mark.parametrize("precision", ["fp16", "int8", "int8-fp16", "int8-dynamic"])
def test_an_offset_hides_no_lost_signal(precision, offset, spread):
    """An error of 0.94 of the standard deviation is 1 % of 290: all that the model says is lost."""
    signal, error = spread * np.random.default_rng(4).normal(size=(2, 64, 1))
    found = compare(offset + signal + 0.94 * error, offset + signal, default_tolerances(precision))
    assert found.noise == pytest.approx(0.94, abs=0.1)
    assert found.problem.startswith("differs in ")
    assert "; has noise of " in found.problem


@pytest.mark.parametrize(("offset", "spread"), OFFSETS.values(), ids=OFFSETS.keys())
def test_what_eight_bits_make_of_the_signal_beside_an_offset_passes(offset, spread):
    """A last layer in INT8, whose bias is the offset."""
    signal = spread * np.random.default_rng(4).normal(size=(64, 1))
    found = compare(offset + in_int8(signal), offset + signal)
    assert found.ok, found.problem


def test_a_small_signal_beside_an_offset_keeps_distinct_values():
    """290 +- 0.5: within 1 % of the magnitude, which is no reason to be constant."""
    expected = 290 + np.linspace(-0.5, 0.5, 100)[:, None]
    asked = Tolerances(default=Tolerance(absolute=1, relative=0, min_distinct=0.05))
    found = compare(np.full((100, 1), 290.0), expected, asked)
    assert found.problem.startswith("has 1 distinct value, expected 64 or more")


def test_a_constant_output_is_judged_by_what_fp32_may_differ_by():
    """It has no signal that could be worth an error of 15 %."""
    expected = np.full((32, 1), 290.0)
    assert compare(expected + 0.2, expected).ok
    assert not compare(expected + 0.4, expected).ok


def test_a_single_row_of_few_values_says_nothing_of_their_spread():
    """Two logits that are nearly equal for one row: they are not for others."""
    expected = np.array([[3.0, 3.1]])
    found = compare(expected + 0.2, expected)
    assert (found.ok, found.noise) == (True, pytest.approx(0.2 / np.sqrt((9 + 3.1**2) / 2), rel=1e-4))


def test_an_output_that_comes_near_zero_is_judged_by_its_largest_value():
    expected = np.maximum(np.random.default_rng(5).normal(size=(64, 10)), 0)
    found = compare(expected + expected.max(), expected)
    assert f"0.15 x {expected.max():.6g}, the largest)" in found.problem


def test_confidences_below_a_twentieth_fail_though_boxes_are_good(head):
    """TensorRT issue 1401: an INT8 engine gave no confidence above 0.05."""
    weak = head.copy()
    weak[:, 4:] *= 0.05
    found = compare(weak, head)
    assert cosine(weak, head) > 0.99995
    assert found.problem.startswith("differs in ")
    assert ": 0.05, expected 1 " in found.problem
    assert "has noise of 1.108 x the spread expected in 4..83 of axis 1" in found.problem


def test_wrong_boxes_fail_though_scores_are_good(head):
    """TensorRT issue 1179: an mAP of 0, from box coordinates alone."""
    wrong = head.copy()
    wrong[:, :4] = 640 - wrong[:, :4]
    found = compare(wrong, head)
    assert found.max_absolute == 640
    assert "from smallest to largest in 0..3 of axis 1" in found.problem
    assert found.distinct == 1.0


def test_outputs_are_judged_one_by_one(head):
    expected = {"boxes": head[:, :4], "scores": head[:, 4:]}
    found = compare_outputs({**expected, "boxes": expected["boxes"] * 2}, expected, INT8)
    assert {each.output: each.ok for each in found} == {"boxes": False, "scores": True}


def test_a_cosine_of_0_55_fails():
    """ONNX Runtime issue 21000: 16-bit weights and activations, per channel."""
    rng = np.random.default_rng(1)
    b, other = rng.normal(size=(2, 64, 1000))
    other -= b * (b * other).sum() / (b * b).sum()
    a = 0.55 * b + np.sqrt(1 - 0.55**2) * other * np.linalg.norm(b) / np.linalg.norm(other)
    assert cosine(a, b) == pytest.approx(0.55)
    found = compare(a, b)
    assert found.noise == pytest.approx(np.sqrt(2 - 2 * 0.55), rel=1e-3)
    assert "has noise of 0.9487 x the spread expected" in found.problem


def classes(rows: int, count: int) -> np.ndarray:
    """Return logits: row i is of class i modulo count, by a margin."""
    logits = np.random.default_rng(2).normal(size=(rows, count))
    logits[np.arange(rows), np.arange(rows) % count] += 8
    return logits


def test_a_top1_of_0_0003_fails_and_names_the_class_that_all_rows_choose():
    """ONNX Runtime issue 12072: S8S8 per channel on a CPU whose kernels saturate."""
    expected = classes(10_000, 100)
    expected[expected.argmax(axis=1) == 7, 7] = -9  # no row is of class 7 now ...
    expected[:3, 7] = 20  # ... but these
    degenerate = np.random.default_rng(3).normal(size=expected.shape)
    degenerate[:, 7] += 20
    asked = Tolerances(default=Tolerance(absolute=100, relative=0, top1=0.98))
    found = compare(degenerate, expected, asked)
    assert found.top1 == 0.0003
    assert found.problem == (
        "has its largest element where it should be in 0.0003 of 10000 rows, at least 0.98 should "
        "(10000 of them choose index 7)"
    )
    assert not compare(degenerate, expected).ok


def test_logits_that_no_longer_depend_on_the_input_fail_without_a_top1_being_asked():
    """ability-draft-plus issue 80: dynamic INT8 of depthwise convolutions, 0.09 % accuracy."""
    expected = classes(1111, 1111)
    found = compare(np.tile(expected.mean(axis=0), (1111, 1)), expected, default_tolerances("int8-dynamic"))
    assert found.top1 == pytest.approx(0.0009, abs=1e-5)
    assert not found.ok
    assert found.noise > 0.9


def test_what_static_int8_of_that_model_keeps_passes():
    """The same issue: static, per channel, it keeps 98.8 %."""
    expected = classes(1000, 20)
    asked = Tolerances(default=INT8.default, outputs={"y": Tolerance(absolute=0.5, relative=0, top1=0.98)})
    found = compare(in_int8(expected), expected, asked)
    assert (found.ok, found.top1) == (True, 1.0)
