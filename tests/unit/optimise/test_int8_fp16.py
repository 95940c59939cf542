"""INT8 layers with the rest in FP16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.unit.optimise.int8_models import (
    Array,
    batches,
    convnet,
    detector,
    made_by,
    named,
    node,
    normal,
    operators,
    save,
    weight,
)
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import graph_inputs, graph_outputs, load_graph, versions_of
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.calibration import calibrate
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.int8_fp16 import to_int8_fp16
from triton_toolkit.optimise.placement import read_placement
from triton_toolkit.optimise.ranges import scan_ranges

IMAGE = (8, 3, 8, 8)
AS_WRITTEN = {"session.disable_quant_qdq": "1"}


def convert(path: Path, out: Path, data: list[dict[str, Array]], **options: Any) -> Converted:
    table = calibrate(path, data, ["minmax"])["minmax"]
    return to_int8_fp16(path, out, table, ranges=scan_ranges(path, data), **options)


def error(path: Path, out: Path, inputs: dict[str, Array]) -> float:
    expected = Session(path).predict(inputs)["y"]
    actual = Session(out, entries=AS_WRITTEN).predict(inputs)["y"]
    assert actual.dtype == np.float32
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = convnet(tmp_path_factory.mktemp("net") / "model.onnx", opset=21, ir_version=10)
    convert(path, path.with_name("int8.onnx"), batches(IMAGE))
    return path.with_name("int8.onnx")


def test_the_variant_computes_what_the_model_does(net):
    assert error(net.with_name("model.onnx"), net, batches(IMAGE, 1, seed=5)[0]) < 0.02


def test_layers_are_in_int8_and_scales_and_biases_in_fp16(net):
    assert read_placement(net).text == "3 of 3 layers in INT8, 1 of them hand INT8 on"
    assert read_placement(net).refused == ()
    kinds = {t.data_type for t in onnx.load(net).graph.initializer}
    assert kinds == {TensorProto.INT8, TensorProto.FLOAT16}


def test_there_are_casts_at_the_ends_only(net):
    """A cast between DequantizeLinear and its layer would keep the layer from running in INT8."""
    assert operators(net).count("Cast") == 2


def test_inputs_outputs_and_versions_stay(net):
    before, after = load_graph(net.with_name("model.onnx")), load_graph(net)
    assert graph_inputs(after) == graph_inputs(before)
    assert graph_outputs(after) == graph_outputs(before)
    assert versions_of(after) == versions_of(before)


def test_weights_are_rounded_with_the_scales_that_fp16_has(net):
    """Scales of FP32 that are rounded afterwards shift every value of a channel by up to 0.05 %."""
    integers, scales = (weight(net, name) for name in ("w2/int8", "w2/int8_scale"))
    original = weight(net.with_name("model.onnx"), "w2")
    scales = scales.astype(np.float32).reshape(8, 1, 1, 1)
    assert (np.abs(integers * scales - original) <= scales * 0.5001).all()


def test_scales_of_activations_are_rounded_up(net):
    """Rounded down, the largest value that calibration saw would be clipped."""
    largest = max(np.abs(batch["x"]).max() for batch in batches(IMAGE))
    scale = weight(net, "x/int8_scale").astype(np.float64)
    assert largest <= scale * 127 * (1 + 1e-7)
    assert scale * 127 < largest * 1.001


def test_small_weights_keep_their_precision(tmp_path):
    """Weights of 1e-5 have scales of 8e-8, where FP16 has steps of 6e-8."""
    path = save(
        tmp_path / "model.onnx",
        {"x": ["N", 64]},
        [node("Relu", "x", "r"), node("MatMul", "r w", "m"), node("Mul", "m large", "y")],
        {"w": normal(1, 64, 4, scale=1e-5), "large": np.float32(1e4)},
        {"y": ["N", 4]},
        opset=21,
        ir_version=10,
    )
    convert(path, tmp_path / "out.onnx", batches((8, 64)))
    assert error(path, tmp_path / "out.onnx", batches((8, 64), 1, seed=5)[0]) < 0.02


def test_the_same_inputs_give_the_same_bytes(net, tmp_path):
    convert(net.with_name("model.onnx"), tmp_path / "again.onnx", batches(IMAGE))
    assert (tmp_path / "again.onnx").read_bytes() == net.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["again.onnx"]


def test_a_layer_that_is_kept_is_in_fp32(net, tmp_path):
    path = net.with_name("model.onnx")
    converted = convert(path, tmp_path / "out.onnx", batches(IMAGE), keep=["head"])
    assert converted.kept == {"head": "kept in floating point as asked; in FP32: it was asked to stay"}
    assert weight(tmp_path / "out.onnx", named(tmp_path / "out.onnx", "head").input[1]).dtype == np.float32


def test_what_is_lowered_are_nodes_of_the_model(net, tmp_path):
    """The search gives them back by name; the pairs that came in have names of their own."""
    path = net.with_name("model.onnx")
    converted = convert(path, tmp_path / "out.onnx", batches(IMAGE))
    assert set(converted.lowered) == {one.name for one in onnx.load(path).graph.node}


def test_a_mixed_head_stays_out_of_int8(tmp_path):
    path = detector(tmp_path / "model.onnx")
    converted = convert(path, tmp_path / "out.onnx", batches(IMAGE))
    assert {"boxes", "scores"} <= set(converted.kept)
    inputs = batches(IMAGE, 1, seed=5)[0]
    expected, actual = (
        Session(p, entries=AS_WRITTEN).predict(inputs)["y"] for p in (path, tmp_path / "out.onnx")
    )
    assert np.abs(actual[:, 4] - expected[:, 4]).max() < 0.02
    assert len(np.unique(actual[:, 4])) > 400


def test_a_tensor_beyond_fp16_stays_out_of_int8_and_fp16(tmp_path):
    path = save(
        tmp_path / "model.onnx",
        {"x": ["N", 6]},
        [
            node("MatMul", "x w1", "a"),
            node("Mul", "a large", "b"),
            node("MatMul", "b w2", "c", "beyond"),
            node("Mul", "c small", "y"),
        ],
        {"w1": normal(1, 6, 6), "w2": normal(2, 6, 4), "large": np.float32(1e5), "small": np.float32(1e-5)},
        {"y": ["N", 4]},
    )
    kept = convert(path, tmp_path / "out.onnx", batches((8, 6))).kept
    assert "its input reaches" in kept["beyond"]
    assert "in FP32" in kept["beyond"]
    assert error(path, tmp_path / "out.onnx", batches((8, 6), 1, seed=5)[0]) < 0.03


def test_an_older_opset_is_brought_to_19(tmp_path):
    path = convnet(tmp_path / "model.onnx", opset=17, ir_version=8)
    convert(path, tmp_path / "out.onnx", batches(IMAGE), highest_opset=19)
    assert versions_of(load_graph(tmp_path / "out.onnx")) == {"opset": {"": 19}, "ir_version": 9}
    assert error(path, tmp_path / "out.onnx", batches(IMAGE, 1, seed=5)[0]) < 0.02


def test_a_release_without_opset_19_is_refused_with_one_that_has_it(tmp_path):
    path = convnet(tmp_path / "model.onnx", opset=17, ir_version=8)
    with pytest.raises(ExportError, match=r"needs opset 19, .* the release runs at most 18") as caught:
        convert(path, tmp_path / "out.onnx", batches(IMAGE), highest_opset=18)
    assert 'release: "23.05" or later' in caught.value.hint
    assert not (tmp_path / "out.onnx").exists()


def test_pairs_are_typed_fp16(net):
    """Strong typing: what a DequantizeLinear gives has the type of its scale."""
    scale = made_by(net, "r1/dequantized").input[1]
    assert weight(net, scale).dtype == np.float16
