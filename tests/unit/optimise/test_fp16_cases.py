"""Reported FP16 failures, each in small: what was wrong is right in the variant, computed in true FP16."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.unit.optimise.fp16_models import (
    compute,
    convert,
    convert_blindly,
    normal,
    runs_in_fp32,
    values,
    write,
)
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.groups import group_layers
from triton_toolkit.optimise.ranges import scan_ranges
from triton_toolkit.optimise.search import Judgement, find_kept
from triton_toolkit.optimise.trials import Trials

NORM = """(float[N,4] x) => (float[N,4] y) {
  h = MatMul(x, w)
  m = ReduceMean<keepdims = 1>(h, r)
  d = Sub(h, m)
  q = Pow(d, two)
  v = ReduceMean<keepdims = 1>(q, r)
  e = Add(v, eps)
  s = Sqrt(e)
  n = Div(d, s)
  y = MatMul(n, w) }"""


@pytest.fixture
def norm(tmp_path):
    """A normalization written out, of values in the hundreds."""
    weights = {"r": np.array([1]), "two": values(2), "eps": values(1e-12)}
    return write(tmp_path / "m.onnx", NORM, w=300 * np.eye(4, dtype=np.float32), **weights)


def test_a_layer_norm_that_overflows_in_fp16_is_kept(norm):
    """NVIDIA/TensorRT#2564: x * 300, squared, then the mean: infinite in FP16, so the result is 0."""
    x = normal(1, 3, 4)
    assert (convert_blindly(norm).run(x=x)[1] == 0).any()
    pair = convert(norm, x=x)
    assert pair.kept["q"].startswith("'q' reaches")
    assert runs_in_fp32(pair.half, "v")
    expected, found = pair.run(x=x)
    np.testing.assert_allclose(found, expected, rtol=3e-3, atol=0.3)
    assert {"h", "y"} <= set(pair.converted.lowered)


def test_onnx_runtime_on_a_cpu_would_not_have_shown_it(norm):
    """The trap: the same overflowing file looks right there, since it is computed in FP32."""
    session = ort.InferenceSession(str(convert_blindly(norm).half), providers=["CPUExecutionProvider"])
    given = session.run(None, {"x": normal(1, 3, 4)})[0]
    np.testing.assert_allclose(given, compute(norm, {"x": normal(1, 3, 4)})[0], rtol=1e-2, atol=1)


@pytest.mark.parametrize("square", ["Pow(h, two)", "Mul(h, h)"])
def test_an_encoder_whose_activations_grow_keeps_its_rms_norm_in_fp32(tmp_path, square):
    """NVIDIA/TensorRT#2922: a T5 encoder, right in ONNX Runtime in FP16, is useless in an FP16 engine."""
    text = f"""(float[N,4] x) => (float[N,4] y) {{
      h = MatMul(x, up) q = {square} v = ReduceMean<keepdims = 1>(q, r) e = Add(v, eps) s = Sqrt(e)
      n = Div(h, s) f = MatMul(n, w) y = Add(f, n) }}"""
    weights = {"up": 2000 * np.eye(4, dtype=np.float32), "w": normal(3, 4, 4), "r": np.array([1])}
    weights |= {"eps": values(1e-6)} | ({"two": values(2)} if "two" in square else {})
    full = write(tmp_path / "m.onnx", text, **weights)
    feeds = {"x": normal(1, 5, 4)}
    blind = convert_blindly(full)
    expected, useless = blind.run(**feeds)
    on_cpu = ort.InferenceSession(str(blind.half), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    np.testing.assert_allclose(on_cpu, expected, atol=0.02)
    assert (useless == 0).any()
    pair = convert(full, **feeds)
    assert {"q", "v", "e", "s"} == set(pair.kept)
    np.testing.assert_allclose(pair.run(**feeds)[1], expected, atol=0.02)


@pytest.mark.parametrize("constant", [-1e12, float(np.finfo(np.float32).min)])
def test_a_mask_constant_beyond_fp16_neither_overflows_nor_is_clamped_in_silence(tmp_path, constant):
    """NVIDIA/TensorRT#2466: (1 - mask) * -1e12 is 0 * -inf = NaN where nothing is masked."""
    text = """(float[N,4] x, float[N,4] mask) => (float[N,4] y) {
      a = MatMul(x, w) z = Sub(one, mask) b = Mul(z, far) c = Add(a, b) y = Softmax(c) }"""
    full = write(
        tmp_path / "m.onnx", text, w=np.eye(4, dtype=np.float32), one=values(1), far=values(constant)
    )
    feeds = {"x": normal(1, 2, 4), "mask": np.array([[1, 1, 0, 1], [1, 1, 1, 1]], np.float32)}
    assert np.isnan(convert_blindly(full).run(**feeds)[1]).any()
    pair = convert(full, **feeds)
    expected, found = pair.run(**feeds)
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert found[0, 2] == 0
    assert f"{constant:.4g}" in pair.kept["b"]
    assert "cut to -20000" in pair.converted.cut["c"]


def test_infinity_in_min_stays_infinity(tmp_path):
    """NVIDIA/TensorRT#2466: as a bound of Min it is no overflow."""
    full = write(
        tmp_path / "m.onnx",
        "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Min(a, far) }",
        w=np.eye(4, dtype=np.float32),
        far=values(np.inf),
    )
    pair = convert(full, x=normal(1, 2, 4))
    assert pair.kept == {}
    np.testing.assert_allclose(*reversed(pair.run(x=normal(1, 2, 4))), atol=2e-3)


def test_where_a_fixed_list_does_not_do_the_search_finds_the_two_bad_layers(tmp_path):
    """NVIDIA/TensorRT#4493: layer norms kept, accuracy still insufficient."""
    nodes = ["h0 = Identity(x)"]
    for i in range(8):
        lossy = f"b{i} = Add(a{i}, big) c{i} = Sub(b{i}, big) h{i + 1} = Tanh(c{i})"
        nodes.append(f"a{i} = MatMul(h{i}, w{i}) " + (lossy if i in {2, 5} else f"h{i + 1} = Tanh(a{i})"))
    text = f"(float[N,6] x) => (float[N,6] y) {{ {' '.join(nodes)} y = Identity(h8) }}"
    weights = {f"w{i}": normal(i, 6, 6, scale=0.4) for i in range(8)}
    full = write(tmp_path / "m.onnx", text, big=values(1000.5), **weights)
    feeds = {"x": normal(50, 16, 6)}
    ranges = scan_ranges(full, [feeds])
    expected = compute(full, feeds)[0]

    def judge(path):
        worst = float(np.abs(compute(path, feeds)[0] - expected).max())
        return Judgement(ok=worst <= 0.02, score=-worst, text=f"{worst:.3g}")

    trials = Trials(
        reference=full,
        make=lambda kept, out: to_fp16(full, out, ranges=ranges, keep=kept),
        judge=judge,
        folder=tmp_path / "search",
    )
    found = find_kept(group_layers(full), trials, attempts=40)
    assert found.curve[0].kept == 0
    assert not found.curve[0].ok
    assert found.ok
    assert set(found.kept_groups) == {"a2", "a5"}


def test_pow_in_a_layer_norm_of_large_activations_is_kept(norm):
    """microsoft/onnxruntime#13639: the square overflows; its relatives that hold no square stay FP16."""
    pair = convert(norm, x=normal(1, 3, 4))
    assert {"q", "v", "e", "s"} <= set(pair.kept)
    assert {"h", "m", "d"} <= set(pair.converted.lowered)


def test_a_layer_norm_of_ordinary_activations_is_not(tmp_path):
    weights = {"r": np.array([1]), "two": values(2), "eps": values(1e-5)}
    full = write(tmp_path / "m.onnx", NORM, w=np.eye(4, dtype=np.float32), **weights)
    assert convert(full, x=normal(1, 3, 4)).kept == {}


def test_weights_above_a_size_lie_beside_the_file(tmp_path):
    """onnxruntime#4424, transformer-deploy#183: a message of 2 GB cannot be written; lowered to 1 MB here."""
    full = write(
        tmp_path / "m.onnx",
        "(float[N,800] x) => (float[N,800] y) { a = MatMul(x, w) y = Relu(a) }",
        w=normal(1, 800, 800, scale=0.03),
    )
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    to_fp16(full, out, ranges=scan_ranges(full, [{"x": normal(2, 1, 800)}]), external_data_bytes=2**20)
    assert out.stat().st_size < 2000
    assert (out.parent / "model.onnx.data").stat().st_size == 800 * 800 * 2
    onnx.checker.check_model(str(out), full_check=True)
    moved = tmp_path / "moved"
    out.parent.rename(moved)
    session = ort.InferenceSession(str(moved / "model.onnx"), providers=["CPUExecutionProvider"])
    expected = compute(full, {"x": normal(2, 1, 800)})[0]
    np.testing.assert_allclose(session.run(None, {"x": normal(2, 1, 800)})[0], expected, atol=1e-2)
