"""The one rule by which outputs are compared."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triton_toolkit.core.compare import Tolerance, Tolerances, compare_outputs


def compare(actual, expected, absolute=0.0, relative=0.0):
    (difference,) = compare_outputs({"y": actual}, {"y": expected}, tolerances(absolute, relative))
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
