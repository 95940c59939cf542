"""What constants say of values that no measured input reached."""

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import convert, normal, values, write
from triton_toolkit.optimise.fp16_bounds import bounds_by_constants
from triton_toolkit.optimise.layers import Graph
from triton_toolkit.optimise.model_file import read_model
from triton_toolkit.optimise.ranges import scan_ranges

SMALL = np.arange(10)
"""Ids whose rows are of ordinary size."""


def table(factor=4e4):
    """Return an embedding [100, 16] whose rows from 50 on are ``factor`` times larger."""
    rows = normal(1, 100, 16)
    rows[50:] *= factor
    return rows


def embedding_then(tmp_path, nodes, **weights):
    """Write a model of an embedding ``g``, then nodes that make ``y``, beside a layer that runs in FP16."""
    text = f"""(int64[N] i, float[4,4] x) => (float[A,B] y, float[4,4] z) {{
      z = MatMul(x, e) g = Gather(t, i) {nodes} }}"""
    used = {"t": table(), "w": normal(2, 16, 4), "e": np.eye(4, dtype=np.float32)} | weights
    return write(tmp_path / "m.onnx", text, **used)


def feeds(ids=SMALL):
    return {"i": ids, "x": normal(3, 4, 4)}


def test_rows_that_no_sample_asked_for_keep_what_follows_in_fp32(tmp_path):
    """Seen as NaN on a GPU: the Gather was kept, its readers were FP16."""
    full = embedding_then(tmp_path, "m = Mul(g, c) y = Gemm(m, w, b)", c=values(8), b=normal(4, 4))
    pair = convert(full, **feeds())
    assert {"g", "m", "y"} <= set(pair.kept)
    assert pair.kept["m"].startswith("'g' reaches ")
    assert pair.kept["m"].endswith("FP16 ends at 65504 (by the constants that it comes from)")
    expected, found = pair.run(**feeds(np.arange(50, 58)))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1)


CHAINS = {
    "moved": "m = Transpose<perm=[1, 0]>(g) y = Neg(m)",
    "scaled": "y = Mul(g, c)",
    "shifted": "m = Add(g, c) y = Identity(m)",
    "multiplied": "y = MatMul(g, w)",
    "squared": "y = Mul(g, g)",
    "gated": "s = Sigmoid(g) y = Mul(g, s)",
    "joined": "y = Concat<axis=1>(g, g)",
    "averaged": "y = ReduceMean<keepdims=1>(g)",
    "activated": "y = LeakyRelu(g)",
    "divided": "y = Div(g, c)",
    "raised": "y = Pow(g, c)",
}


@pytest.mark.parametrize("nodes", CHAINS.values(), ids=CHAINS.keys())
def test_the_range_after_a_constant_holds_what_any_of_its_rows_gives(tmp_path, nodes):
    full = embedding_then(tmp_path, nodes, c=values(2))
    graph = Graph(read_model(full))
    bounds = bounds_by_constants(graph, scan_ranges(full, [feeds()]))
    reached = scan_ranges(full, [feeds(np.arange(50, 100))])["y"]
    rounding = 1e-6 * reached.absmax
    assert bounds["y"].low <= reached.low + rounding
    assert bounds["y"].high >= reached.high - rounding


STOPS = {
    "sigmoid": "y = Sigmoid(g)",
    "normalized": "y = LayerNormalization(g, n)",
    "clipped": "y = Clip(g, lo, hi)",
    "a computed factor": "r = ReduceMax<keepdims=1>(g) q = Reciprocal(r) y = Mul(g, q)",
}


@pytest.mark.parametrize("nodes", STOPS.values(), ids=STOPS.keys())
def test_what_is_bounded_anyway_is_as_measured(tmp_path, nodes):
    full = embedding_then(tmp_path, nodes, n=np.ones(16, np.float32), lo=np.float32(-1), hi=np.float32(1))
    graph = Graph(read_model(full))
    assert "y" not in bounds_by_constants(graph, scan_ranges(full, [feeds()]))


def test_rows_somewhat_larger_than_those_seen_change_nothing(tmp_path):
    full = embedding_then(tmp_path, "m = Mul(g, c) y = MatMul(m, w)", t=table(2), c=values(8))
    pair = convert(full, **feeds())
    assert pair.kept == {}
    bounds = bounds_by_constants(Graph(read_model(full)), scan_ranges(full, [feeds()]))
    assert list(bounds) == ["g"]


def test_a_part_of_a_constant_that_is_chosen_by_constants_is_as_measured(tmp_path):
    """It is the same for every input: rows that it leaves out are never read."""
    text = "(float[4,16] x) => (float[4,16] y) { g = Gather(t, k) a = MatMul(x, w) y = Add(a, g) }"
    full = write(tmp_path / "m.onnx", text, t=table(), k=np.arange(4), w=normal(2, 16, 16))
    assert list(convert(full, x=normal(3, 4, 16)).kept) == ["g"]  # for the constant that it reads
