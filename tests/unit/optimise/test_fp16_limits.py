import numpy as np
import pytest

from tests.unit.optimise.fp16_models import values
from triton_toolkit.optimise import fp16_limits
from triton_toolkit.optimise.fp16_limits import LIMIT, constant_problem, range_problem, scale_problem
from triton_toolkit.optimise.ranges import range_of


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([1.5, -3.0], ""),
        ([0.0, 0.0], ""),
        ([LIMIT, 0.5], ""),
        ([-16400.5], "'t' reaches 1.64e+04, too near to 65504, where FP16 ends"),
        ([2e-6, 1e-9], ""),
        ([1e-6, -1e-9], "'t' is at most 1e-06, which FP16 rounds to steps of 6e-08"),
        ([2048.0, 7.0], ""),
        ([2049.0, 7.0], "'t' holds whole numbers up to 2049, FP16 is exact up to 2048"),
        ([2049.5, 7.0], ""),
        ([np.inf, 1.0], ""),
    ],
)
def test_a_measured_tensor(numbers, problem):
    assert range_problem("t", range_of(values(*numbers))) == problem


def test_a_tensor_that_was_not_measured():
    assert range_problem("t", None) == "'t' was not measured"


@pytest.mark.parametrize(
    ("numbers", "each", "problem"),
    [
        ([0.1, -65504.0], True, ""),
        ([3e5], False, "constant 'c' holds 3e+05, FP16 ends at 65504"),
        ([-1e12, 0.0], True, "constant 'c' holds -1e+12, FP16 ends at 65504"),
        ([-np.inf, 1.0, np.nan], True, ""),
        ([1e-5], True, ""),
        ([1e-6], True, ""),
        ([1e-7], True, "constant 'c' holds 1e-07, which FP16 makes 1.192e-07"),
        ([1e-12], False, "constant 'c' holds 1e-12, which FP16 makes 0"),
        ([1.0, 1e-12], False, ""),
        ([1.0, 1e-12], True, "constant 'c' holds 1e-12, which FP16 makes 0"),
        ([4095.0, 1.0], True, "constant 'c' holds whole numbers up to 4095, FP16 is exact up to 2048"),
        ([4096.0, 1.0], True, ""),
        ([], True, ""),
    ],
)
def test_a_constant(numbers, each, problem):
    assert constant_problem("c", values(*numbers), each=each) == problem


def test_a_large_constant_is_looked_at_in_parts(monkeypatch):
    monkeypatch.setattr(fp16_limits, "_CHUNK_VALUES", 3)
    found = constant_problem("c", np.array([[1, 2, 3], [4, -9e9, 5], [6, 7, 8]], np.float32), each=True)
    assert found == "constant 'c' holds -9e+09, FP16 ends at 65504"


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([2.0**-7, 2.0**-20], ""),
        ([0.0], ""),
        ([0.01, 3.3e-6], "scale 's' is 3.3e-06, which FP16 makes 3.278e-06"),
        ([7e4], "scale 's' is 7e+04, which FP16 makes inf"),
        ([1e-9], "scale 's' is 1e-09, which FP16 makes 0"),
    ],
)
def test_the_scale_of_a_quantized_tensor(numbers, problem):
    assert scale_problem("s", values(*numbers)) == problem
