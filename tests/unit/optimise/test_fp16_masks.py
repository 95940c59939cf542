"""Masks and bounds beyond FP16: cut where that changes nothing, kept in FP32 where it would."""

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import compute, convert, convert_blindly, normal, values, write

LOWEST = float(np.finfo(np.float32).min)
ATTENTION = """(float[B,S,4] x, float[B,S] mask) => (float[B,S,4] y) {{
  t = Transpose<perm = [0, 2, 1]>(x)
  scores = MatMul(x, t)
  axes = Constant<value_ints = [1]>()
  rows = Unsqueeze(mask, axes)
  absent = Sub(one, rows)
  {mask}
  p = Softmax<axis = -1>(masked)
  y = MatMul(p, x) }}"""


def attention(tmp_path, mask, opset=18, **weights):
    return write(tmp_path / "m.onnx", ATTENTION.format(mask=mask), opset=opset, one=values(1), **weights)


@pytest.fixture
def feeds():
    mask = np.ones((2, 6), np.float32)
    mask[1, 3:] = 0
    return {"x": normal(1, 2, 6, 4), "mask": mask}


MASKS = {
    "product added": "far = Mul(absent, low) masked = Add(scores, far)",
    "choice added": "hide = Greater(absent, zero) far = Where(hide, low, zero) masked = Add(scores, far)",
    "choice": "hide = Greater(absent, zero) masked = Where(hide, low, scores)",
    "two added": "far = Mul(absent, low) first = Add(scores, causal) masked = Add(first, far)",
    "moved": "far = Mul(absent, low) sum = Add(scores, far) masked = Identity(sum)",
    "constant": "masked = Add(scores, causal)",
}


@pytest.mark.parametrize("low", [-1e12, LOWEST])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_mask_is_cut_and_softmax_runs_in_fp16(tmp_path, feeds, mask, low):
    causal = np.triu(np.full((6, 6), low, np.float32), 1)
    full = attention(tmp_path, mask, low=values(low), zero=values(0), causal=causal)
    pair = convert(full, **feeds)
    assert not {"scores", "masked", "p", "y"} & set(pair.kept)
    assert all("it is cut to -20000" in reason for reason in pair.converted.cut.values())
    assert pair.converted.cut
    expected, found = pair.run(**feeds)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_what_is_cut_is_told_with_its_figures(tmp_path, feeds):
    pair = convert(attention(tmp_path, MASKS["product added"], low=values(-1e12)), **feeds)
    assert pair.converted.cut == {
        "masked": "'far' reaches -1e+12 and goes into a Softmax only: it is cut to -20000, "
        "of which the Softmax makes 0 as well"
    }
    assert pair.kept["far"] == "constant 'low' holds -1e+12, FP16 ends at 65504"


def test_a_plain_cast_of_the_same_mask_gives_nan(tmp_path, feeds):
    full = attention(tmp_path, MASKS["product added"], low=values(-1e12))
    assert np.isnan(convert_blindly(full).run(**feeds)[1]).any()


def test_masked_positions_get_no_attention(tmp_path, feeds):
    pair = convert(attention(tmp_path, MASKS["choice added"], low=values(LOWEST), zero=values(0)), **feeds)
    changed = {**feeds, "x": feeds["x"].copy()}
    changed["x"][1, 3:] = 9  # in masked positions only
    np.testing.assert_array_equal(pair.run(**changed)[1][1, :3], pair.run(**feeds)[1][1, :3])


def test_a_row_that_is_masked_as_a_whole_keeps_its_mask(tmp_path, feeds):
    feeds["mask"][1] = 0
    pair = convert(attention(tmp_path, MASKS["product added"], low=values(LOWEST)), **feeds)
    assert pair.converted.cut == {}
    assert {"masked", "p"} <= set(pair.kept)
    expected, found = pair.run(**feeds)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_a_mask_that_another_node_reads_as_well_stays_in_fp32(tmp_path, feeds):
    text = ATTENTION.format(mask=MASKS["product added"]).replace(
        "(float[B,S,4] y)", "(float[B,S,4] y, float[B,S,S] masked)"
    )
    pair = convert(write(tmp_path / "m.onnx", text, one=values(1), low=values(-1e12)), **feeds)
    assert pair.converted.cut == {}
    assert (
        pair.kept["masked"] == "'masked' reaches -1e+12, FP16 ends at 65504" or "far" in pair.kept["masked"]
    )
    np.testing.assert_array_equal(compute(pair.half, feeds)[1] < -1e11, compute(pair.full, feeds)[1] < -1e11)


def test_a_mask_that_is_no_output_but_read_twice_stays_too(tmp_path, feeds):
    more = "v = MatMul(p, x) t2 = Tanh(masked) u = MatMul(t2, x) y = Add(u, v)"
    text = ATTENTION.format(mask=MASKS["product added"]).replace("y = MatMul(p, x)", more)
    pair = convert(write(tmp_path / "m.onnx", text, one=values(1), low=values(-1e12)), **feeds)
    assert pair.converted.cut == {}
    np.testing.assert_allclose(*reversed(pair.run(**feeds)), atol=5e-3)


def test_a_mask_that_two_softmaxes_share_is_cut_once(tmp_path, feeds):
    mask = f"{MASKS['product added']} s2 = Neg(scores) m2 = Add(s2, far) p2 = Softmax(m2)"
    text = ATTENTION.format(mask=mask).replace("y = MatMul(p, x)", "p3 = Add(p, p2) y = MatMul(p3, x)")
    pair = convert(write(tmp_path / "m.onnx", text, one=values(1), low=values(-1e12)), **feeds)
    assert sorted(pair.converted.cut) == ["m2", "masked"]
    assert pair.operators().count("Max") == 1
    np.testing.assert_allclose(*reversed(pair.run(**feeds)), atol=5e-3)


def test_large_values_that_are_no_mask_stay_in_fp32(tmp_path, feeds):
    full = attention(tmp_path, "far = Mul(scores, big) masked = Add(scores, far)", big=values(1e6))
    pair = convert(full, **feeds)
    assert pair.converted.cut == {}
    assert {"far", "masked", "p"} <= set(pair.kept)


def test_where_one_node_of_a_mask_must_stay_all_of_them_do(tmp_path, feeds):
    pair = convert(attention(tmp_path, MASKS["moved"], low=values(-1e12)), keep=["p"], **feeds)
    assert pair.converted.cut == {}
    assert pair.kept["sum"] == "it handles the mask of 'p', which stays in FP32"
    expected, found = pair.run(**feeds)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_an_old_softmax_over_several_axes_is_no_place_for_a_cut(tmp_path, feeds):
    mask = "far = Mul(absent, low) masked = Add(scores, far)"
    text = ATTENTION.replace("Softmax<axis = -1>", "Softmax<axis = 1>").replace(
        "axes = Constant<value_ints = [1]>()\n  rows = Unsqueeze(mask, axes)",
        "rows = Unsqueeze<axes = [1]>(mask)",
    )
    full = write(tmp_path / "m.onnx", text.format(mask=mask), opset=11, one=values(1), low=values(-1e12))
    assert convert(full, **feeds).converted.cut == {}


def test_minus_infinity_is_fp16_as_well(tmp_path, feeds):
    full = attention(tmp_path, MASKS["choice"], low=values(-np.inf), zero=values(0))
    pair = convert(full, **feeds)
    assert (pair.kept, pair.converted.cut) == ({}, {})
    expected, found = pair.run(**feeds)
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        ("y = Min(a, b)", {"b": values(3e38)}),
        ("y = Max(a, b)", {"b": values(LOWEST)}),
        ("y = Clip(a, b, c)", {"b": np.float32(0), "c": np.float32(3.4e38)}),
        ("y = Min(a, b)", {"b": values(np.inf)}),
    ],
)
def test_a_bound_that_nothing_reaches_is_cut(tmp_path, nodes, weights):
    full = write(
        tmp_path / "m.onnx",
        f"(float[N,4] x) => (float[N,4] y) {{ a = MatMul(x, w) {nodes} }}",
        w=np.eye(4, dtype=np.float32),
        **weights,
    )
    pair = convert(full, x=normal(1, 3, 4))
    assert pair.kept == {}
    assert len(pair.converted.cut) == (not np.isinf(weights["b"]).any())
    expected, found = pair.run(x=np.array([[1, -2, 60000, -60000]], np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_a_bound_that_is_reached_stays(tmp_path):
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Max(a, b) }",
        w=np.eye(4, dtype=np.float32),
        b=values(1e5),
    )
    pair = convert(full, x=normal(1, 3, 4))
    assert list(pair.kept) == ["y"]
    assert (pair.run(x=normal(1, 3, 4))[1] == 1e5).all()
