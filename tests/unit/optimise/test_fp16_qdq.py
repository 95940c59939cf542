"""Q/DQ models with the rest in FP16: scales, types, and what their integers can amount to."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.unit.optimise.fp16_models import compute, convert, normal, types, values, write
from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.ranges import scan_ranges

QDQ = """(float[N,4] x) => (float[N,3] y) {
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  e = DequantizeLinear<axis = 1>(w, t)
  a = MatMul(d, e)
  y = Relu(a) }"""
WEIGHT = np.array([[100, -50, 3], [4, 5, -127], [7, 8, 9], [-1, 0, 1]], np.int8)


def quantized(tmp_path, *, opset=19, s=2.0**-5, t=(2.0**-7, 2.0**-8, 2.0**-6), z=0):
    return write(
        tmp_path / "m.onnx",
        QDQ,
        opset=opset,
        s=np.float32(s),
        z=np.int8(z),
        t=values(*t),
        w=WEIGHT,
    )


@pytest.mark.parametrize(("opset", "ir_version"), [(19, 9), (21, 10), (23, 11)])
def test_all_of_a_quantized_model_but_its_ends_is_fp16_or_int8(tmp_path, opset, ir_version):
    full = quantized(tmp_path, opset=opset)
    model = onnx.load(full)
    model.ir_version = ir_version
    onnx.save(model, full)
    pair = convert(full, x=normal(1, 5, 4))
    assert pair.kept == {}
    found = types(pair.half)
    assert {name for name, kind in found.items() if kind == TensorProto.FLOAT} == {"x", "y"}
    assert {found[name] for name in ("s", "t", "d", "e", "a")} == {TensorProto.FLOAT16}
    assert {found[name] for name in ("q", "w", "z")} == {TensorProto.INT8}
    x = normal(1, 5, 4).astype(np.float16).astype(np.float32)  # so that both round to the same integers
    np.testing.assert_allclose(*reversed(pair.run(x=x)), rtol=2e-3, atol=2e-3)
    assert pair.operators() == [
        "Cast",
        "QuantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "MatMul",
        "Relu",
        "Cast",
    ]


def test_a_result_type_that_is_spelled_out_is_changed(tmp_path):
    full = quantized(tmp_path, opset=23)
    model = onnx.load(full)
    model.ir_version = 11
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            node.attribute.append(onnx.helper.make_attribute("output_dtype", TensorProto.FLOAT))
    onnx.save(model, full)
    pair = convert(full, x=normal(1, 5, 4))
    assert types(pair.half)["d"] == TensorProto.FLOAT16


def test_q_dq_before_opset_19_is_refused_with_what_would_do(tmp_path):
    full = quantized(tmp_path, opset=18)
    with pytest.raises(ExportError, match="QuantizeLinear nodes at opset 18, which take FP32 only") as caught:
        to_fp16(full, tmp_path / "h.onnx", ranges=scan_ranges(full, [{"x": normal(1, 2, 4)}]))
    assert "opset 19" in caught.value.hint


def test_a_scale_that_fp16_would_change_leaves_its_node_in_fp32(tmp_path):
    pair = convert(quantized(tmp_path, t=(3.3e-6, 2.0**-8, 2.0**-6)), x=normal(1, 5, 4))
    assert pair.kept == {"e": "scale 't' is 3.3e-06, which FP16 makes 3.278e-06"}
    assert types(pair.half)["t"] == TensorProto.FLOAT


def test_a_range_that_was_not_measured_follows_from_the_scale(tmp_path):
    full = quantized(tmp_path, s=2.0**8)
    ranges = scan_ranges(full, [{"x": normal(1, 5, 4)}])
    del ranges["d"]
    kept = to_fp16(full, tmp_path / "h.onnx", ranges=ranges).kept
    assert kept["d"] == "'d' reaches 3.277e+04, too near to 65504, where FP16 ends"  # 128 * 256


def test_zero_points_count_in_that_range(tmp_path):
    full = quantized(tmp_path, s=2.0**7, z=-128)
    ranges = scan_ranges(full, [{"x": normal(1, 5, 4)}])
    del ranges["d"]
    kept = to_fp16(full, tmp_path / "h.onnx", ranges=ranges).kept
    assert kept["d"] == "'d' reaches 3.264e+04, too near to 65504, where FP16 ends"  # (127 + 128) * 128


def test_a_weight_without_a_range_is_judged_by_its_scales(tmp_path):
    full = quantized(tmp_path)
    ranges = scan_ranges(full, [{"x": normal(1, 5, 4)}])
    del ranges["e"]
    assert to_fp16(full, tmp_path / "h.onnx", ranges=ranges).kept == {}
    compute(tmp_path / "h.onnx", {"x": normal(1, 5, 4)})
