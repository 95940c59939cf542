import numpy as np
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from tests.unit.optimise.fp16_models import normal, values, write
from triton_toolkit.errors import ExportError
from triton_toolkit.optimise import ranges
from triton_toolkit.optimise.ranges import range_of, scan_ranges


@pytest.fixture
def chain(tmp_path):
    return write(tmp_path / "m.onnx", "(float[N] x) => (float[N] y) { a = Mul(x, x) b = Neg(a) y = Exp(b) }")


def test_the_figures_are_over_finite_values():
    found = range_of(np.array([[3.0, -5.0, 0.0], [1e-9, np.inf, np.nan]], np.float32))
    assert (found.low, found.high, found.absmax) == (-5.0, 3.0, 5.0)
    assert found.smallest_nonzero == np.float32(1e-9)
    assert (found.nan, found.inf, found.whole, found.elements) == (True, True, False, 6)


def test_whole_numbers_are_told():
    assert range_of(values(-4, 0, 4095)).whole
    assert not range_of(values(1, 2.5)).whole


def test_the_lowest_peak_is_that_of_the_row_with_the_smallest_maximum():
    assert range_of(np.array([[1, -9], [-4, -7], [5, 5]], np.float32)).lowest_peak == -4


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.float32), np.full((2, 2), np.nan, np.float32)])
def test_an_array_without_finite_values_has_no_range(array):
    found = range_of(array)
    assert (found.low, found.high, found.absmax, found.smallest_nonzero) == (0, 0, 0, 0)


def test_a_range_of_zeros_has_no_smallest_value():
    assert range_of(values(0, 0)).smallest_nonzero == 0
    joined = range_of(values(0, 0)).joined(range_of(values(0, 3)))
    assert (joined.smallest_nonzero, joined.high, joined.elements) == (3, 3, 2)


def test_every_input_and_computed_tensor_has_the_range_of_all_batches(chain):
    found = scan_ranges(chain, [{"x": values(1, 2)}, {"x": values(-3, 0, 1)}])
    assert set(found) == {"x", "a", "b", "y"}
    assert (found["x"].low, found["x"].high, found["x"].elements) == (-3, 2, 3)
    assert (found["a"].high, found["b"].low) == (9, -9)
    assert found["y"].smallest_nonzero == pytest.approx(np.exp(-9))


def test_the_result_is_the_same_where_memory_is_short(chain, monkeypatch):
    batches = [{"x": normal(1, 5)}, {"x": normal(2, 7)}]
    whole = scan_ranges(chain, batches)
    options = []
    monkeypatch.setattr(ranges, "_FIRST_TENSORS", 1)
    monkeypatch.setattr(ranges, "_MOST_BYTES", 1)
    real = ranges.Session
    monkeypatch.setattr(ranges, "Session", lambda *a, **k: options.append(k["optimized"]) or real(*a, **k))
    assert scan_ranges(chain, batches) == whole
    assert options == [False] * 3  # fused INT8 kernels would show values of their own


def test_values_are_those_before_any_optimization(tmp_path):
    path = write(tmp_path / "m.onnx", "(float[N] x) => (float[N] y) { a = Exp(x) y = Log(a) }")
    assert scan_ranges(path, [{"x": values(20)}])["a"].high == pytest.approx(np.exp(20), rel=1e-6)


def test_tensors_of_other_types_are_left_out(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        "(int64[N] i) => (float[N] y) { s = Shape(i) f = Cast<to = 1>(i) y = Neg(f) }",
    )
    assert set(scan_ranges(path, [{"i": np.array([1, 2])}])) == {"f", "y"}


def test_local_functions_are_looked_into(tmp_path):
    text = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
    g (float[N] x) => (float[N] y) { y = local.square_neg(x) }
    <domain: "local", opset_import: ["" : 18]> square_neg (a) => (b) { c = Mul(a, a) b = Neg(c) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    found = scan_ranges(path, [{"x": values(3)}])
    assert sorted(r.absmax for r in found.values()) == [3, 9, 9]


def test_external_data_is_found(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Relu(a) }",
        w=2 * np.eye(4, dtype=np.float32),
    )
    model = onnx.load(path)
    convert_model_to_external_data(model, location="w.bin", size_threshold=0)
    onnx.save(model, path)
    assert (tmp_path / "w.bin").exists()
    assert scan_ranges(path, [{"x": np.full((1, 4), 5, np.float32)}])["a"].high == 10


def test_no_batch_is_refused(chain):
    with pytest.raises(ExportError, match="no inputs to measure"):
        scan_ranges(chain, [])


def test_a_batch_that_the_model_cannot_run_is_told_with_the_node(tmp_path):
    path = write(
        tmp_path / "m.onnx",
        "(float[N] x, float[M] z) => (float[K] y) { a = Neg(x) [sum] y = Add(a, z) }",
    )
    with pytest.raises(ExportError, match=r"m\.onnx fails on batch 1 .* node 'sum' \(Add\)"):
        scan_ranges(path, [{"x": values(1), "z": values(1)}, {"x": values(1, 2), "z": values(1, 2, 3)}])
