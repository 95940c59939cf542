"""The conversion itself: what the file is afterwards, where it casts, what it says."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

from tests.unit.optimise.fp16_models import compute, convert, normal, runs_in_fp32, types, values, write
from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.ranges import scan_ranges

LINEAR = "(float[N,4] x) => (float[N,3] y) { a = MatMul(x, w) b = Add(a, v) y = Relu(b) }"


@pytest.fixture
def linear(tmp_path):
    full = write(tmp_path / "m.onnx", LINEAR, w=normal(1, 4, 3), v=normal(2, 3))
    return convert(full, x=normal(3, 5, 4))


def test_the_variant_computes_what_the_model_does(linear):
    full, half = linear.run(x=normal(4, 6, 4))
    np.testing.assert_allclose(half, full, rtol=2e-3, atol=2e-3)
    assert (half != full).any()


def test_everything_in_it_is_fp16_except_inputs_and_outputs(linear):
    assert linear.kept == {}
    assert linear.converted.lowered == ("a", "b", "y")
    assert {n for n, kind in types(linear.half).items() if kind == TensorProto.FLOAT} == {"x", "y"}
    assert linear.operators() == ["Cast", "MatMul", "Add", "Relu", "Cast"]


def test_inputs_outputs_node_names_and_versions_stay(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,3] y) { [product] a = MatMul(x, w) [rectified] y = Relu(a) }",
        opset=14,
        ir_version=7,
        w=normal(1, 4, 3),
    )
    before, after = onnx.load(full), convert(full, x=normal(2, 1, 4)).model()
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    assert (after.ir_version, list(after.opset_import)) == (7, list(before.opset_import))
    assert {"product", "rectified"} <= {node.name for node in after.graph.node}


def test_the_same_model_gives_the_same_bytes(linear):
    first = linear.half.read_bytes()
    assert convert(linear.full, x=normal(3, 5, 4)).half.read_bytes() == first


def test_onnx_checks_it_fully_and_the_runtime_takes_it(linear):
    onnx.checker.check_model(str(linear.half), full_check=True)
    session = ort.InferenceSession(str(linear.half), providers=["CPUExecutionProvider"])
    assert [(v.name, v.type) for v in session.get_inputs() + session.get_outputs()] == [
        ("x", "tensor(float)"),
        ("y", "tensor(float)"),
    ]


def test_a_node_that_is_asked_to_stay_reads_and_makes_fp32(linear):
    pair = convert(linear.full, keep=["b"], x=normal(3, 5, 4))
    assert pair.kept == {"b": "it was asked to stay", "y": "it lies between nodes that stay in FP32"}
    assert runs_in_fp32(pair.half, "b")
    assert pair.operators() == ["Cast", "MatMul", "Cast", "Add", "Relu"]


def test_keeping_a_node_that_is_not_there_is_refused(linear):
    with pytest.raises(ExportError, match="'bb' is to stay"):
        convert(linear.full, keep=["bb"], x=normal(3, 5, 4))


def test_keeping_all_nodes_writes_the_model_in_fp32(linear):
    pair = convert(linear.full, keep=["a", "b", "y"], x=normal(3, 5, 4))
    assert pair.converted.lowered == ()
    full, half = pair.run(x=normal(4, 6, 4))
    np.testing.assert_array_equal(half, full)


def test_a_tensor_wanted_in_both_precisions_is_cast_once(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x) => (float[N,4] y) {
          a = MatMul(x, w) p = Sin(a) q = Cos(a) r = Add(p, q) s = MatMul(a, w) y = Add(r, s) }""",
        w=np.eye(4, dtype=np.float32),
    )
    pair = convert(full, keep=["p", "q"], x=normal(1, 3, 4))
    casts = [n for n in pair.model().graph.node if n.op_type == "Cast"]
    assert sorted((n.input[0], n.output[0]) for n in casts) == [
        ("a_fp16", "a"),
        ("p", "p_fp16"),
        ("q", "q_fp16"),
        ("x", "x_fp16"),
        ("y_fp16", "y"),
    ]


def test_an_output_that_others_read_is_computed_once(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,4] h, float[N,4] y) { h = MatMul(x, w) y = MatMul(h, w) }",
        w=np.eye(4, dtype=np.float32),
    )
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.operators().count("MatMul") == 2
    half = normal(1, 3, 4).astype(np.float16).astype(np.float32)
    for found in compute(pair.half, {"x": normal(1, 3, 4)}):
        np.testing.assert_array_equal(found, half)


def test_a_weight_wanted_in_both_precisions_stays_and_gets_a_copy(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[4,4] x) => (float[4,4] y) { a = MatMul(x, w) b = MatMul(w, w) y = Add(a, b) }",
        w=normal(1, 4, 4),
    )
    weights = {
        t.name: t.data_type for t in convert(full, keep=["b"], x=normal(2, 4, 4)).model().graph.initializer
    }
    assert weights == {"w": TensorProto.FLOAT, "w_fp16": TensorProto.FLOAT16}


def test_a_name_that_is_taken_is_not_used_again(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x, float[N,4] x_fp16) => (float[N,4] y) { a = MatMul(x, w) y = Add(a, x_fp16) }",
        w=np.eye(4, dtype=np.float32),
    )
    pair = convert(full, x=normal(1, 2, 4), x_fp16=normal(2, 2, 4))
    full_y, half_y = pair.run(x=normal(1, 2, 4), x_fp16=normal(2, 2, 4))
    np.testing.assert_allclose(half_y, full_y, atol=1e-2)


def test_constants_inside_nodes_are_converted(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,2] x) => (float[N,2] y) {
          c = Constant<value_floats = [0.5, 3.0]>() a = MatMul(x, w) y = Mul(a, c) }""",
        w=np.eye(2, dtype=np.float32),
    )
    pair = convert(full, x=normal(1, 3, 2))
    assert types(pair.half)["c"] == TensorProto.FLOAT16
    np.testing.assert_allclose(*pair.run(x=normal(1, 3, 2)), atol=1e-2)


def test_shapes_are_read_without_a_cast(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x) => (int64[K] s, float[N,4] y) {
          a = MatMul(x, w) s = Shape(a) y = Relu(a) }""",
        w=np.eye(4, dtype=np.float32),
    )
    assert convert(full, x=normal(1, 3, 4)).operators() == ["Cast", "MatMul", "Shape", "Relu", "Cast"]


def test_weights_that_are_listed_as_inputs_change_their_type_there_too(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x, float[4,4] w) => (float[N,4] y) { y = MatMul(x, w) }",
        w=normal(1, 4, 4),
    )
    pair = convert(full, x=normal(2, 3, 4))
    assert types(pair.half)["w"] == TensorProto.FLOAT16
    np.testing.assert_allclose(*pair.run(x=normal(2, 3, 4)), atol=1e-2)


def test_weights_that_are_inputs_as_well_and_wanted_in_both_precisions_are_not_cast(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[4,4] x, float[4,4] w) => (float[4,4] y) { a = MatMul(x, w) b = MatMul(w, w) y = Add(a, b) }",
        w=normal(1, 4, 4),
    )
    pair = convert(full, keep=["b"], x=normal(2, 4, 4))
    assert [n.input[0] for n in pair.model().graph.node if n.op_type == "Cast"] == ["x", "b", "y_fp16"]


def test_inner_shapes_that_the_file_names_stay_with_their_new_type(tmp_path):
    full = write(tmp_path / "m.onnx", LINEAR, w=normal(1, 4, 3), v=normal(2, 3))
    model = onnx.shape_inference.infer_shapes(onnx.load(full))
    onnx.save(model, full)
    infos = {v.name: v for v in convert(full, x=normal(3, 5, 4)).model().graph.value_info}
    assert infos["a"].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert infos["a"].type.tensor_type.shape.dim[0].dim_param == "N"
    infos = {v.name: v for v in convert(full, keep=["b"], x=normal(3, 5, 4)).model().graph.value_info}
    kinds = {name: infos[name].type.tensor_type.elem_type for name in ("a", "a_fp16")}
    assert kinds == {"a": TensorProto.FLOAT, "a_fp16": TensorProto.FLOAT16}


def test_local_functions_are_inlined(tmp_path):
    text = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
    g (float[2,2] x) => (float[2,2] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { c = MatMul(a, a) b = Add(c, c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    pair = convert(tmp_path / "m.onnx", x=normal(1, 2, 2))
    assert pair.kept == {}
    assert pair.operators() == ["Cast", "MatMul", "Add", "Cast"]


def test_large_weights_go_beside_the_file_and_are_found_from_anywhere(tmp_path, monkeypatch):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }",
        w=normal(1, 64, 64),
    )
    out = tmp_path / "half" / "model.onnx"
    out.parent.mkdir()
    to_fp16(full, out, ranges=scan_ranges(full, [{"x": normal(2, 1, 64)}]), external_data_bytes=1024)
    assert sorted(path.name for path in out.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert out.stat().st_size < 1024
    assert (tmp_path / "half" / "model.onnx.data").stat().st_size == 64 * 64 * 2
    monkeypatch.chdir("/")
    onnx.checker.check_model(str(out), full_check=True)
    session = ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    expected = normal(2, 1, 64) @ normal(1, 64, 64)
    np.testing.assert_allclose(session.run(None, {"x": normal(2, 1, 64)})[0], expected, atol=0.05)


def test_a_model_without_float_nodes_is_refused(tmp_path):
    full = write(tmp_path / "m.onnx", "(int64[N] x) => (int64[N] y) { y = Neg(x) }")
    with pytest.raises(ExportError, match="nothing of it can run in FP16: it has no float32 nodes"):
        to_fp16(full, tmp_path / "h.onnx", ranges={})


def test_a_model_of_which_nothing_fits_is_refused_with_the_commonest_reason(tmp_path):
    full = write(tmp_path / "m.onnx", "(float[N] x) => (float[N] y) { a = Neg(x) y = Exp(a) }")
    with pytest.raises(ExportError, match=r"for example 'a', since 'x' reaches 1e\+05, FP16 ends"):
        convert(full, x=values(1e5))
    assert not (tmp_path / "half.onnx").exists()


def test_ranges_of_another_model_convert_nothing(linear):
    with pytest.raises(ExportError, match="'x' was not measured"):
        to_fp16(linear.full, linear.half, ranges={})
