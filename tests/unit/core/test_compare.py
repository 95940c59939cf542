"""The one rule by which outputs are compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triton_toolkit.core.compare import Tolerance, Tolerances, compare_outputs


def compare(actual, expected, absolute=0.0, relative=0.0, **more):
    (difference,) = compare_outputs({"y": actual}, {"y": expected}, tolerances(absolute, relative, **more))
    return difference


def tolerances(absolute=0.0, relative=0.0, **more):
    return Tolerances(default=Tolerance(absolute=absolute, relative=relative, **more))


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_equal_outputs_are_right():
    found = compare(floats(1, 2), floats(1, 2))
    assert (found.ok, found.max_absolute, found.max_relative) == (True, 0.0, 0.0)


def test_the_figures_are_the_largest_errors():
    found = compare(floats(1.5, 10), floats(1, 8), absolute=5)
    assert (found.ok, found.max_absolute, found.max_relative) == (True, 2.0, 0.5)


def test_the_tolerance_is_absolute_plus_relative_times_expected():
    assert compare(floats(11.9), floats(10), absolute=1, relative=0.1).ok
    assert not compare(floats(12.1), floats(10), absolute=1, relative=0.1).ok


def test_a_wrong_element_is_named_with_both_values():
    found = compare(np.zeros((2, 3), np.float32), np.array([[0, 0, 0], [0, 0, 3]], np.float32), absolute=1)
    assert found.problem == (
        "differs in 1 of 6 elements, most at [1, 2]: 0, expected 3 (tolerance 1 + 0 x |expected|)"
    )


def test_an_expected_zero_has_no_relative_error():
    assert compare(floats(0.5), floats(0), absolute=1).max_relative == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_values_equal_themselves(value):
    assert compare(floats(value), floats(value)).ok


@pytest.mark.parametrize(
    ("got", "wanted"),
    [(np.nan, 1), (1, np.nan), (np.inf, 1), (1, np.inf), (np.inf, -np.inf), (np.nan, np.inf)],
)
def test_special_values_never_pass_for_others(got, wanted):
    found = compare(floats(got), floats(wanted), absolute=1e9, relative=1e9)
    assert not found.ok
    assert found.max_absolute == np.inf


def test_a_missing_output_is_a_difference():
    (found,) = compare_outputs({}, {"y": floats(1)}, tolerances(1, 1))
    assert (found.output, found.problem) == ("y", "is missing")


def test_further_outputs_are_ignored():
    assert compare_outputs({"y": floats(1), "z": floats(2)}, {"y": floats(1)}, tolerances())[0].ok


def test_shapes_must_agree_even_where_they_would_broadcast():
    assert (
        compare(np.zeros((1, 3)), np.zeros((2, 3)), absolute=1).problem == "has shape [1, 3], expected [2, 3]"
    )


def test_types_must_agree():
    found = compare(np.zeros(2, np.float64), np.zeros(2, np.float32), absolute=1)
    assert found.problem == "has type float64, expected float32"


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (np.array([1, 2], np.int64), np.array([1, 3], np.int64)),
        (np.array([True, False]), np.array([True, True])),
        (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)),
    ],
    ids=["integers", "booleans", "bytes"],
)
def test_exact_types_know_no_tolerance(got, wanted):
    assert compare(got, wanted, absolute=9, relative=9).problem == "differs in 1 of 2 elements"
    assert compare(wanted, wanted).ok


def test_half_precision_is_compared_without_overflow():
    big = np.array([60000], np.float16)
    assert compare(big, -big, absolute=1).max_absolute == 120000.0


def test_empty_outputs_agree():
    assert compare(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).ok


def test_a_report_is_json_even_with_infinite_figures():
    found = compare(floats(np.nan), floats(1)).as_dict()
    assert json.loads(json.dumps(found, allow_nan=False))["max_absolute"] is None


ARRAYS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(width=32))


@given(ARRAYS)
def test_every_array_agrees_with_itself(array):
    found = compare(array, array.copy())
    assert (found.ok, found.max_absolute, found.max_relative) == (True, 0.0, 0.0)


@given(ARRAYS, st.floats(0, 1), st.floats(0, 1))
def test_the_verdict_is_numpys_isclose(array, absolute, relative):
    other = np.roll(array, 1).reshape(array.shape)
    with np.errstate(invalid="ignore"):
        wide, wide_other = array.astype(np.float64), other.astype(np.float64)
        wanted = np.isclose(wide_other, wide, atol=absolute, rtol=relative, equal_nan=True).all()
    assert compare(other, array, absolute, relative).ok == wanted


def test_the_range_allows_a_share_of_the_largest_expected_element():
    assert compare(floats(100, 10), floats(100, 0), range=0.1).ok
    found = compare(floats(100, 11), floats(100, 0), range=0.1)
    assert found.problem == (
        "differs in 1 of 2 elements, most at [1]: 11, expected 0 "
        "(tolerance 0 + 0 x |expected| + 0.1 x 100, the largest)"
    )


def test_the_element_that_is_named_exceeds_its_tolerance_most():
    """Not the one of the largest error: 30 of 1000 is less than 2 of 1."""
    found = compare(floats(1030, 3), floats(1000, 1), relative=0.01)
    assert found.problem.startswith("differs in 2 of 2 elements, most at [1]: 3, expected 1 ")


def test_without_any_tolerance_the_largest_error_is_named():
    found = compare(floats(1, 3), floats(0, 1))
    assert found.problem.startswith("differs in 2 of 2 elements, most at [1]: 3, expected 1 ")


def test_each_output_has_its_own_tolerance():
    strict, loose = Tolerance(absolute=0, relative=0), Tolerance(absolute=1, relative=0)
    both = {"y": floats(1), "z": floats(1)}
    y, z = compare_outputs(
        both, {"y": floats(2), "z": floats(2)}, Tolerances(default=strict, outputs={"z": loose})
    )
    assert (y.ok, z.ok) == (False, True)


@pytest.mark.parametrize(
    ("actual", "excess"),
    [(floats(10), 0.0), (floats(11), 0.5), (floats(12), 1.0), (floats(16), 3.0)],
    ids=["equal", "half", "all", "three times"],
)
def test_the_excess_is_the_share_of_the_tolerance_that_is_used(actual, excess):
    found = compare(actual, floats(10), absolute=2)
    assert (found.excess, found.ok) == (excess, excess <= 1)


def test_nothing_is_used_of_a_tolerance_of_0_by_equal_outputs():
    assert compare(floats(1, 2), floats(1, 2)).excess == 0
    assert compare(floats(1, 3), floats(1, 2)).excess == np.inf


def test_noise_is_the_root_mean_square_of_the_error_by_that_of_the_expected_values():
    found = compare(floats(3, 5), floats(3, 4), absolute=9)
    assert found.noise == pytest.approx(np.sqrt(1 / 25))


def test_noise_is_measured_beyond_the_absolute_tolerance():
    found = compare(floats(3, 5), floats(3, 4), range=1, max_noise=0.1)
    assert found.problem == "has noise of 0.2 x the spread expected, by root mean squares (tolerance 0.1)"
    assert found.excess == pytest.approx(2)
    assert compare(floats(3, 5), floats(3, 4), absolute=0.36, range=1, max_noise=0.1).ok


def test_noise_is_measured_beyond_the_relative_tolerance():
    found = compare(floats(3, 5), floats(3, 4), relative=0.1, range=1, max_noise=0.1)
    assert found.excess == pytest.approx((np.sqrt(0.5) - 0.1 * np.sqrt(12.5)) / (0.1 * np.sqrt(12.5)))


def test_the_noise_of_many_values_is_measured_by_how_they_spread_around_their_mean():
    wanted = np.repeat([9.0, 11.0], 8)
    assert compare(wanted + 0.5, wanted, absolute=1).noise == pytest.approx(0.5)
    assert compare(wanted[::2] + 0.5, wanted[::2], absolute=1).noise == pytest.approx(0.5 / np.sqrt(101))


def test_values_far_from_zero_are_measured_by_how_far_they_are_apart():
    wanted = np.linspace(290, 300, 16)
    assert compare(wanted + 0.9, wanted, range=0.1).ok
    assert compare(wanted + 1.1, wanted, range=0.1).problem.endswith(
        "(tolerance 0 + 0 x |expected| + 0.1 x 10, from smallest to largest)"
    )
    assert compare(wanted[:15] + 20, wanted[:15], range=0.1).ok


def test_an_output_of_zeros_is_all_noise_once_anything_is_wrong():
    assert compare(np.zeros(4), np.zeros(4), max_noise=0.1).noise == 0
    assert compare(floats(1, 0), floats(0, 0), absolute=2, max_noise=0.1).noise == np.inf


def test_a_lost_majority_is_noise_though_one_large_element_hides_its_errors():
    wanted = np.r_[np.full(1000, 1.0), 1e2]
    lost = np.r_[np.zeros(1000), 1e2]
    assert compare(lost, wanted, range=0.1).ok
    assert not compare(lost, wanted, range=0.1, max_noise=0.15).ok


ROWS = floats([0, 1, 0], [2, 0, 0], [0, 0, 3], [1, 0, 0])


def test_top1_is_the_share_of_rows_whose_largest_element_is_where_it_should_be():
    found = compare(floats([1, 0, 0], [2, 0, 0], [3, 0, 0], [1, 0, 0]), ROWS, absolute=9, top1=0.9)
    assert found.top1 == 0.5
    assert found.problem == (
        "has its largest element where it should be in 0.5 of 4 rows, at least 0.9 should "
        "(4 of them choose index 0)"
    )
    assert found.excess == pytest.approx(5)


def test_top1_does_not_decide_between_expected_values_that_are_equal():
    assert compare(floats([1, 2, 0]), floats([2, 2, 0]), absolute=9, top1=1.0).ok


@pytest.mark.parametrize(
    "array", [np.float32(1), floats([1], [2]), np.zeros((0, 3))], ids=["scalar", "one", "none"]
)
def test_top1_means_nothing_without_rows_of_several_elements(array):
    found = compare(np.asarray(array), np.asarray(array), top1=1.0)
    assert (found.ok, found.top1) == (True, None)


def test_of_integers_top1_is_the_share_that_is_equal():
    got, wanted = np.array([1, 2, 3, 4]), np.array([1, 2, 3, 9])
    assert compare(got, wanted, top1=0.75).ok
    found = compare(got, wanted, top1=0.8)
    assert found.top1 == 0.75
    assert found.problem == "differs in 1 of 4 elements (0.75 agree, at least 0.8 should)"


def test_distinct_values_are_counted_beyond_the_first():
    wanted = np.arange(5.0)
    found = compare(np.array([0.0, 0, 0, 3, 3]), wanted, absolute=9, min_distinct=0.5)
    assert found.distinct == 0.25
    assert found.problem == "has 2 distinct values, expected 5 (the share that stays is to be 0.5 at least)"


def test_what_became_constant_has_kept_nothing():
    found = compare(np.full(4, 2.0), np.arange(4.0), absolute=9, min_distinct=1e-6)
    assert (found.distinct, found.ok, found.excess) == (0, False, np.inf)


def test_more_than_64_distinct_values_are_not_asked_for():
    wanted = np.linspace(0, 1, 1000)
    found = compare(np.round(wanted * 63) / 63, wanted, absolute=1, min_distinct=1.0)
    assert (found.ok, found.distinct) == (True, 1.0)


def test_an_output_that_hardly_varies_has_no_distinct_values_to_lose():
    wanted = 100 + np.linspace(0, 0.1, 50)
    assert compare(np.full(50, 100.05), wanted, absolute=1, min_distinct=1.0).distinct == 1.0
    assert compare(np.full(50, 100.05), wanted * 1.1 - 10, absolute=9, min_distinct=0.1).distinct == 0


def test_distinct_values_are_found_wherever_they_are():
    wanted = np.zeros(100_000)
    wanted[-100:] = np.arange(1, 101)
    assert compare(np.zeros(100_000), wanted, absolute=999, min_distinct=0.1).distinct == 0


def test_the_share_of_zeros_may_rise_as_far_as_allowed():
    wanted = floats(0, 1, 2, 3)
    assert compare(floats(0, 0, 2, 3), wanted, absolute=9, max_zero_share_rise=0.25).ok
    found = compare(floats(0, 0, 0, 3), wanted, absolute=9, max_zero_share_rise=0.25)
    assert (found.zero_share_rise, found.excess) == (0.5, 2.0)
    assert found.problem == "is 0 in 0.75 of the elements, expected 0.25 (it may rise by 0.25)"


def test_fewer_zeros_than_expected_are_no_rise():
    found = compare(floats(1, 1), floats(0, 1), absolute=9, max_zero_share_rise=0.0)
    assert (found.ok, found.zero_share_rise) == (True, -0.5)


def test_all_that_is_wrong_is_told():
    found = compare(
        np.zeros((8, 3), np.float32), np.tile(ROWS[1:3], (4, 1)), max_noise=0.1, top1=1.0, min_distinct=0.1
    )
    assert [part.split()[0] for part in found.problem.split("; ")] == ["differs", "has", "has", "has"]


def test_a_plain_tolerance_makes_a_plain_report():
    assert set(compare(floats(1), floats(1)).as_dict()) == {
        "output",
        "max_absolute",
        "max_relative",
        "problem",
    }


def test_a_report_beyond_plain_has_all_figures():
    found = compare(floats([1, 0], [1, 1]), floats([1, 0], [0, 1]), absolute=4, max_noise=0.5)
    assert found.as_dict() == {
        "output": "y",
        "max_absolute": 1.0,
        "max_relative": 0.0,
        "problem": "",
        "excess": 0.25,
        "noise": pytest.approx(np.sqrt(0.5)),
        "top1": 0.5,
        "distinct": 1.0,
        "zero_share_rise": -0.25,
        "ranges": {},
    }
