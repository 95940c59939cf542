"""Biases whose fusion makes ONNX Runtime refuse an INT8 layer: what it loads, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.optimise.int8_models import named, node, normal, operators, save
from triton_toolkit.errors import ExportError
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.calibration import calibrate
from triton_toolkit.optimise.int8 import to_int8
from triton_toolkit.optimise.int8_fp16 import to_int8_fp16
from triton_toolkit.optimise.placement import read_placement
from triton_toolkit.optimise.ranges import scan_ranges

BIAS = {"w": normal(1, 16, 4), "b": normal(2, 4)}


def linear(path, shape, opset=21, after=()):
    """Write x @ w + b, as the exporter writes a linear layer whose input is no matrix."""
    nodes = [node("MatMul", "x w", "product"), node("Add", "product b", "h" if after else "y", "sum"), *after]
    weights = BIAS | ({"v": normal(3, 4, 4)} if after else {})
    outputs = {"y": [*shape[:-1], 4]}
    return save(path, {"x": shape}, nodes, weights, outputs, opset=opset, ir_version=10)


def data(*shape):
    return [{"x": normal(seed, *shape)} for seed in range(40)]


def convert(precision, path, batches):
    out = path.with_name("out.onnx")
    table = calibrate(path, batches, ["minmax"])["minmax"]
    if precision == "int8":
        return out, to_int8(path, out, table)
    return out, to_int8_fp16(path, out, table, ranges=scan_ranges(path, batches))


@pytest.mark.parametrize("precision", ["int8", "int8-fp16"])
@pytest.mark.parametrize("opset", [18, 21])
def test_a_linear_layer_of_fixed_sizes_runs_with_its_bias(tmp_path, precision, opset):
    """As in a transformer exported without dynamic sizes."""
    path, batches = linear(tmp_path / "m.onnx", [2, 3, 16], opset), data(2, 3, 16)
    out, _ = convert(precision, path, batches)
    assert read_placement(out).text.startswith("1 of 1 layers in INT8")
    expected, found = (Session(one).predict(batches[0])["y"] for one in (path, out))
    assert found.shape == (2, 3, 4)
    np.testing.assert_allclose(found, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("precision", ["int8", "int8-fp16"])
def test_a_linear_layer_of_one_vector_stays_and_says_why(tmp_path, precision):
    path = linear(tmp_path / "m.onnx", [16], after=[node("MatMul", "h v", "y", "head")])
    out, converted = convert(precision, path, data(16))
    assert converted.kept["product"] == (
        "its input has 1 dimension, and 'sum' adds a bias to its result, which ONNX Runtime on x86 refuses "
        "in INT8 (a batch dimension avoids this)"
    )
    assert read_placement(out, converted.kept).text.startswith("1 of 2 layers in INT8")
    assert Session(out).predict(data(16)[0])["y"].shape == (4,)


def test_a_model_of_nothing_else_is_refused_with_the_reason(tmp_path):
    with pytest.raises(ExportError, match=r"no layer that can run in INT8: 'product': its input has 1 dim"):
        convert("int8", linear(tmp_path / "m.onnx", [16]), data(16))


def test_a_bias_of_a_layer_with_dynamic_sizes_is_left_as_it_is(tmp_path):
    path = linear(tmp_path / "m.onnx", ["N", "T", 16])
    out, _ = convert("int8", path, data(2, 3, 16))
    assert list(named(out, "sum").input) == ["product", "b"]
    assert operators(out)[-2:] == ["MatMul", "Add"]
