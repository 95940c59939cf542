"""Which nodes stay in FP32, and that the variant is right for it: computed in true FP16."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.optimise.fp16_models import (
    compute,
    convert,
    convert_blindly,
    normal,
    runs_in_fp32,
    types,
    values,
    write,
)
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.ranges import scan_ranges

EYE = {"w": np.eye(4, dtype=np.float32)}


def linear_then(tmp_path, nodes, opset=18, **weights):
    """Write a model of a linear layer, which is worth FP16, and some nodes that make ``y`` from ``a``."""
    text = f"(float[N,4] x) => (float[N,K] y) {{ a = MatMul(x, w) {nodes} }}"
    return write(tmp_path / "m.onnx", text, opset=opset, **EYE, **weights)


def test_values_that_overflow_stay_and_the_sums_behind_a_mean(tmp_path):
    full = linear_then(tmp_path, "b = Mul(a, c) d = Mul(b, b) y = ReduceMean<keepdims=1>(d)", c=values(300))
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.kept["d"].startswith("'d' reaches")
    assert "y" in pair.kept
    assert "b" not in pair.kept
    expected, found = pair.run(x=normal(1, 3, 4))
    np.testing.assert_allclose(found, expected, rtol=5e-3)
    assert np.isinf(convert_blindly(full).run(x=normal(1, 3, 4))[1]).any()


def test_a_mean_whose_sum_overflows_stays(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[1,C,H,W] x) => (float[1,C,1,1] y) { a = Conv(x, w) y = GlobalAveragePool(a) }",
        w=np.ones((1, 1, 1, 1), np.float32),
    )
    pair = convert(full, x=np.full((1, 1, 30, 30), 70, np.float32))
    assert pair.kept == {"y": "the sums behind its means reach 6.3e+04, too near to 65504, where FP16 ends"}


def test_a_sum_of_very_many_values_stays(tmp_path):
    full = linear_then(tmp_path, "y = ReduceSum<keepdims=1>(a)")
    assert convert(full, x=normal(1, 1024, 4)).kept == {}
    assert convert(full, x=normal(1, 1025, 4)).kept == {"y": "it adds up 4100 values"}


@pytest.mark.parametrize("scale", [100, 200])
def test_a_fused_normalization_stays_where_its_squares_overflow(tmp_path, scale):
    full = linear_then(
        tmp_path, "b = Mul(a, c) y = LayerNormalization(b, g)", c=values(scale), g=np.ones(4, np.float32)
    )
    x = np.array([[1, -1, 0.5, 0]], np.float32)
    expected = (
        {}
        if scale == 100
        else {"y": "the squares inside of it reach 4e+04, too near to 65504, where FP16 ends"}
    )
    assert convert(full, x=x).kept == expected


def test_softplus_stays_where_its_exponential_overflows(tmp_path):
    pair = convert(linear_then(tmp_path, "y = Softplus(a)"), x=values(30, -30, 0, 1)[None])
    assert list(pair.kept) == ["y"]
    np.testing.assert_allclose(*reversed(pair.run(x=values(30, -30, 0, 1)[None])), rtol=1e-3)


def test_a_constant_beyond_fp16_is_not_clamped_in_silence(tmp_path):
    full = linear_then(tmp_path, "b = Mul(a, c) y = Div(b, d)", c=values(3e5), d=values(3e5))
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.kept["b"] == "constant 'c' holds 3e+05, FP16 ends at 65504"
    assert pair.converted.cut == {}
    expected, found = pair.run(x=normal(1, 3, 4))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-3)


def test_whole_numbers_that_fp16_rounds_stay(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(int64[N] i, float[4,4] z) => (float[N] y, float[4,4] v) {
          f = Cast<to=1>(i) y = Neg(f) v = MatMul(z, w) }""",
        **EYE,
    )
    feeds = {"i": np.array([5, 4097]), "z": normal(1, 4, 4)}
    pair = convert(full, **feeds)
    assert sorted(pair.kept) == ["f", "y"]
    np.testing.assert_array_equal(compute(pair.half, feeds)[0], values(-5, -4097))


def test_what_becomes_an_index_is_computed_in_fp32(tmp_path):
    full = linear_then(
        tmp_path, "b = Sigmoid(a) c = Mul(b, k) i = Cast<to=7>(c) y = Cast<to=1>(i)", k=values(1000.3)
    )
    pair = convert(full, x=normal(1, 64, 4))
    assert {"b", "c", "i"} <= set(pair.kept)
    assert pair.kept["b"] == "it feeds 'i', which converts to whole numbers or truth values"
    x = normal(1, 64, 4).astype(np.float16).astype(np.float32)  # exact in FP16, and so is x @ 1
    np.testing.assert_array_equal(*pair.run(x=x))


def test_large_angles_and_what_makes_them_stay(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x, int64[N,1] p) => (float[N,4] y) {
          q = Cast<to=1>(p) t = MatMul(q, f) c = Cos(t) a = MatMul(x, w) y = Mul(a, c) }""",
        f=values(1, 0.3, 0.1, 0.03)[None],
        **EYE,
    )
    feeds = {"x": np.ones((512, 4), np.float32), "p": np.arange(512)[:, None]}
    pair = convert(full, **feeds)
    assert pair.kept["c"] == "its angle reaches 511 rad, which FP16 rounds by 0.25"
    assert pair.kept["t"] == pair.kept["q"] == "it makes the angle of 'c'"
    expected, found = pair.run(**feeds)
    assert np.abs(found - expected).max() < 2e-3
    assert np.abs(convert_blindly(full).run(**feeds)[1] - expected).max() > 0.05


def test_small_angles_do_not(tmp_path):
    assert convert(linear_then(tmp_path, "y = Sin(a)"), x=normal(1, 3, 4)).kept == {}


@pytest.mark.parametrize(
    "nodes",
    [
        "n = ReduceL2<keepdims=1>(a, r) e = Clip(n, eps) f = Expand(e, s) y = Div(a, f)",
        "n = ReduceL2<keepdims=1>(a, r) e = Max(n, eps) y = Div(a, e)",
        "q = Mul(a, a) m = ReduceMean<keepdims=1>(q, r) v = Add(m, eps) e = Sqrt(v) y = Div(a, e)",
        "q = Mul(a, a) m = ReduceMean<keepdims=1>(q, r) v = Add(m, eps) e = Sqrt(v) i = Reciprocal(e) "
        "y = Mul(a, i)",
    ],
)
def test_an_epsilon_that_would_vanish_still_protects_from_a_division_by_zero(tmp_path, nodes):
    full = linear_then(
        tmp_path,
        nodes,
        eps=np.float32(1e-12),
        r=np.array([1]),
        s=np.array([1, 4]),
    )
    x = np.concatenate([normal(1, 2, 4), np.zeros((1, 4), np.float32)])
    pair = convert(full, x=normal(1, 2, 4))  # no sample has a row of zeros: the constant tells enough
    expected, found = pair.run(x=x)
    np.testing.assert_allclose(found, expected, rtol=3e-3, atol=3e-3)
    assert (found[2] == 0).all()
    assert np.isnan(convert_blindly(full).run(x=x)[1]).any()


def test_a_usual_epsilon_needs_nothing(tmp_path):
    nodes = "v = Add(a, eps) y = Sqrt(v)"
    assert convert(linear_then(tmp_path, nodes, eps=values(1e-5)), x=np.abs(normal(1, 3, 4))).kept == {}


def test_small_values_that_are_divided_by_or_logged_stay_back_to_where_they_are_made(tmp_path):
    full = linear_then(tmp_path, "p = Softmax(a) y = Log(p)")
    x = values(0, -1, -20, 3)[None]
    pair = convert(full, x=x)
    assert sorted(pair.kept) == ["p", "y"]
    expected, found = pair.run(x=x)
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    assert np.isinf(convert_blindly(full).run(x=x)[1]).any()


@pytest.mark.parametrize(
    ("order", "stays"), [((1, 0, 2), True), ((1, 2, 0), True), ((0, 2, 1), False), ((2, 1, 0), False)]
)
def test_a_transpose_that_crashes_onnx_runtime_before_a_matmul_stays(tmp_path, order, stays):
    nodes = f"t = Transpose<perm=[{', '.join(map(str, order))}]>(x) y = MatMul(t, w)"
    text = f"(float[4,4,4] x) => (float[4,4,4] y) {{ {nodes} }}"
    pair = convert(write(tmp_path / "m.onnx", text, **EYE), x=normal(1, 4, 4, 4))
    assert ("t" in pair.kept) == stays
    code = "import sys, onnxruntime as o; o.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"
    subprocess.run([sys.executable, "-c", code, str(pair.half)], check=True, timeout=60)


def test_light_nodes_between_nodes_in_fp32_stay_too(tmp_path):
    full = linear_then(tmp_path, "b = Mul(a, c) d = Relu(b) e = Neg(d) y = Mul(e, c)", c=values(1e5))
    pair = convert(full, x=normal(1, 3, 4) * 1e-3)
    assert {pair.kept[n] for n in ("d", "e")} == {"it lies between nodes that stay in FP32"}
    assert pair.operators().count("Cast") == 2  # x, and the result of the layer


def test_a_layer_between_nodes_in_fp32_is_worth_the_casts(tmp_path):
    full = linear_then(tmp_path, "b = Mul(a, c) d = MatMul(b, w) y = Mul(d, c)", c=values(1e5))
    assert sorted(convert(full, x=normal(1, 3, 4) * 1e-3).kept) == ["b", "y"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            "g = com.microsoft.FastGelu(a) y = MatMul(g, w)",
            "com.microsoft:FastGelu is no operator of ONNX's own",
        ),
        ("s = Shape(a) g = RandomNormalLike(a) y = Add(a, g)", "it draws random numbers"),
        ("g = CumSum(a, axis) y = MatMul(g, w)", "it adds up a running total"),
        ("g = Round(a) y = MatMul(g, w)", "it rounds to whole numbers"),
        ('g = ScatterElements<reduction="add">(a, i, u) y = MatMul(g, w)', "it adds up or compares"),
        (
            "q = SplitToSequence(a, axis) g = ConcatFromSequence<axis=0>(q) y = MatMul(g, w)",
            "it handles sequences",
        ),
    ],
)
def test_operators_without_a_safe_fp16_form_stay_and_say_why(tmp_path, nodes, reason):
    full = linear_then(tmp_path, nodes, axis=np.array(1), i=np.array([[0, 0, 0, 0]]), u=normal(3, 1, 4))
    pair = convert(full, x=normal(1, 2, 4))
    assert pair.kept["g"].startswith(reason)
    assert "a" not in pair.kept


def test_what_reads_a_tensor_of_unknown_type_stays(tmp_path):
    full = linear_then(tmp_path, "g = com.microsoft.FastGelu(a) b = MatMul(g, w) y = MatMul(b, w)")
    ranges = scan_ranges(full, [{"x": normal(1, 2, 4)}])
    del ranges["g"]
    kept = to_fp16(full, tmp_path / "h.onnx", ranges=ranges).kept
    assert kept["b"] == "the type of its input 'g' is unknown"


def test_an_operator_without_an_fp16_form_at_this_opset_stays(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x, float n) => (float[N,4] y) {
          g = Range(zero, n, one) a = MatMul(x, w) y = Add(a, g) }""",
        zero=np.float32(0),
        one=np.float32(1),
        **EYE,
    )
    assert convert(full, x=normal(1, 2, 4), n=np.array(4, np.float32)).kept == {"g": "it counts"}
    full = linear_then(tmp_path, "g = Celu(a) y = MatMul(g, w)")
    assert convert(full, x=normal(1, 2, 4)).kept == {"g": "Celu has no FP16 form at opset 18"}


def test_a_graph_in_a_node_stays_and_reads_what_it_did(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x, bool c) => (float[N,4] y) {
          a = MatMul(x, w)
          b = If(c) <then_branch = t () => (float[N,4] p) { p = Mul(a, a) },
                     else_branch = e () => (float[N,4] q) { q = MatMul(a, w) }>
          y = MatMul(b, w) }""",
        **EYE,
    )
    pair = convert(full, x=normal(1, 3, 4), c=np.array(True))
    assert pair.kept == {"b": "what the graphs inside of If compute cannot be measured"}
    for condition in (True, False):
        expected, found = pair.run(x=normal(1, 3, 4), c=np.array(condition))
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)


def test_scales_of_resize_and_results_of_topk_have_their_types(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[1,2,H,W] x) => (float[1,2,P,Q] y, float[1,K] t, int64[1,K] i) {
          a = Conv(x, k) y = Resize<mode="linear">(a, , s) f = Flatten(a) t, i = TopK(f, n) }""",
        k=normal(1, 2, 2, 1, 1),
        s=values(1, 1, 2, 2),
        n=np.array([3]),
    )
    feeds = {"x": normal(2, 1, 2, 4, 4)}
    pair = convert(full, **feeds)
    assert pair.kept == {}
    assert types(pair.half)["s"] == TensorProto.FLOAT
    for expected, found in zip(compute(full, feeds), compute(pair.half, feeds), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-2)


def test_a_fill_is_made_in_fp16(tmp_path):
    full = linear_then(
        tmp_path,
        "s = Shape(a) z = ConstantOfShape<value=float {1.5}>(s) o = ConstantOfShape(s) p = Add(z, o) "
        "y = Add(a, p)",
    )
    model = onnx.load(full)
    fill = next(node for node in model.graph.node if node.output[0] == "z")
    del fill.attribute[:]
    fill.attribute.append(
        helper.make_attribute("value", helper.make_tensor("", TensorProto.FLOAT, [1], [1.5]))
    )
    onnx.save(model, full)
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.kept == {}
    np.testing.assert_allclose(*reversed(pair.run(x=normal(1, 3, 4))), atol=5e-3)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_run_in_fp16(tmp_path, kind):
    gates = {"LSTM": 4, "GRU": 3}[kind]
    full = write(
        tmp_path / "m.onnx",
        f"(float[T,N,3] x) => (float[T,1,N,2] y) {{ y, h = {kind}<hidden_size=2>(x, w, r) }}",
        w=normal(1, 1, gates * 2, 3),
        r=normal(2, 1, gates * 2, 2),
    )
    pair = convert(full, x=normal(3, 5, 2, 3))
    assert pair.kept == {}
    assert types(pair.half)["r"] == TensorProto.FLOAT16
    np.testing.assert_allclose(*reversed(pair.run(x=normal(3, 5, 2, 3))), atol=5e-3)


def test_doubles_stay_doubles(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        """(float[N,4] x) => (double[N,4] y, float[N,4] z) {
          a = MatMul(x, w) d = Cast<to=11>(a) y = Mul(d, d) e = Cast<to=1>(y) z = MatMul(e, w) }""",
        **EYE,
    )
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.kept["d"] == "it converts FP32 to another type"
    assert types(pair.half)["y"] == TensorProto.DOUBLE
    assert runs_in_fp32(pair.half, "d")
