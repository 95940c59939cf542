"""Dynamic INT8: linear layers on integers, everything else as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.unit.optimise.int8_models import Array, convnet, named, node, normal, operators, save, weight
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import graph_inputs, graph_outputs, load_graph, versions_of
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.dynamic import to_int8_dynamic
from triton_toolkit.optimise.placement import read_placement


def mlp(path: Path, **options: Any) -> Path:
    """Two heads on one input, one through a hidden layer; a bias added behind a MatMul."""
    return save(
        path,
        {"x": ["N", "T", 8]},
        [
            node("MatMul", "x w1", "m", "hidden"),
            node("Add", "m b1", "a"),
            node("Relu", "a", "r"),
            node("MatMul", "r w2", "y", "out"),
            node("MatMul", "x w3", "z", "side"),
        ],
        {"w1": normal(1, 8, 16), "b1": normal(2, 16), "w2": normal(3, 16, 4), "w3": normal(4, 8, 3)},
        {"y": ["N", "T", 4], "z": ["N", "T", 3]},
        **options,
    )


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = mlp(tmp_path_factory.mktemp("mlp") / "model.onnx")
    to_int8_dynamic(path, path.with_name("int8.onnx"))
    return path.with_name("int8.onnx")


def error(path: Path, variant: Path, inputs: dict[str, Array], *, optimized: bool = True) -> float:
    expected = Session(path).predict(inputs)
    actual = Session(variant, optimized=optimized).predict(inputs)
    return max(float(np.abs(actual[n] - e).max() / np.abs(e).max()) for n, e in expected.items())


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 8), (3, 7, 8)])
def test_the_variant_computes_what_the_model_does(net, optimized, shape):
    inputs = {"x": normal(9, *shape)}
    assert error(net.with_name("model.onnx"), net, inputs, optimized=optimized) < 0.03


def test_an_input_is_quantized_once_for_all_that_read_it(net):
    assert operators(net).count("DynamicQuantizeLinear") == 2
    assert operators(net).count("MatMulInteger") == 3


def test_weights_are_int8_with_a_scale_for_each_output(net):
    assert weight(net, "w1/int8").dtype == np.int8
    assert np.abs(weight(net, "w1/int8")).max(axis=0).tolist() == [127] * 16
    original = weight(net.with_name("model.onnx"), "w1")
    assert weight(net, "w1/int8_scale") == pytest.approx(np.abs(original).max(axis=0) / 127)


def test_integer_products_have_the_names_of_the_layers(net):
    assert named(net, "hidden").op_type == "MatMulInteger"
    placement = read_placement(net)
    assert [layer.name for layer in placement.int8] == ["hidden", "out", "side"]
    assert "node 'hidden': TensorRT has no MatMulInteger" in placement.refused


def test_onnx_runtime_fuses_each_layer_into_one_kernel(net, tmp_path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(str(net), options, providers=["CPUExecutionProvider"])
    found = operators(tmp_path / "optimized.onnx")
    assert "MatMulInteger" not in found
    assert sum(op in {"DynamicQuantizeMatMul", "MatMulIntegerToFloat"} for op in found) == 3


def test_inputs_outputs_and_versions_stay(net):
    before, after = load_graph(net.with_name("model.onnx")), load_graph(net)
    assert graph_inputs(after) == graph_inputs(before)
    assert graph_outputs(after) == graph_outputs(before)
    assert versions_of(after) == versions_of(before)


def test_the_same_model_gives_the_same_bytes(net, tmp_path):
    to_int8_dynamic(net.with_name("model.onnx"), tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == net.read_bytes()


def test_reduced_range_uses_seven_bits(net, tmp_path):
    to_int8_dynamic(net.with_name("model.onnx"), tmp_path / "reduced.onnx", reduce_range=True)
    assert np.abs(weight(tmp_path / "reduced.onnx", "w1/int8")).max() == 64
    assert error(net.with_name("model.onnx"), tmp_path / "reduced.onnx", {"x": normal(9, 4, 5, 8)}) < 0.03


def test_a_layer_that_is_kept_stays_as_it_was(net, tmp_path):
    converted = to_int8_dynamic(net.with_name("model.onnx"), tmp_path / "kept.onnx", keep=["hidden"])
    assert converted.kept == {"hidden": "kept in floating point as asked"}
    assert converted.lowered == ("out", "side")
    assert list(named(tmp_path / "kept.onnx", "hidden").input) == ["x", "w1"]


def test_keeping_a_node_that_is_not_there_is_refused(net, tmp_path):
    with pytest.raises(ExportError, match="node 'hiden' is to stay"):
        to_int8_dynamic(net.with_name("model.onnx"), tmp_path / "kept.onnx", keep=["hiden"])


def test_convolutions_stay_in_float(tmp_path):
    path = convnet(tmp_path / "model.onnx")
    converted = to_int8_dynamic(path, tmp_path / "out.onnx")
    reason = "convolutions stay in floating point in dynamic INT8: all channels would share one scale"
    assert converted.kept == {"c1": reason, "c2": reason}
    assert operators(tmp_path / "out.onnx").count("Conv") == 2
    assert error(path, tmp_path / "out.onnx", {"x": normal(9, 4, 3, 8, 8)}) < 0.02


@pytest.mark.parametrize(
    "attributes",
    [{}, {"transB": 1}, {"alpha": 0.5}, {"beta": 2.0}, {"alpha": -2.0, "beta": 0.25, "transB": 1}],
    ids=str,
)
@pytest.mark.parametrize("bias", [(5,), (1, 5), ()], ids=str)
def test_gemm_keeps_its_scaling_and_its_bias(tmp_path, attributes, bias):
    shape = (5, 6) if "transB" in attributes else (6, 5)
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 6]},
        [node("Gemm", "x w b", "y", **attributes)],
        {"w": normal(1, *shape), "b": np.asarray(3 * normal(2, *bias), np.float32)},
        {"y": ["N", 5]},
    )
    to_int8_dynamic(path, tmp_path / "out.onnx")
    assert "MatMulInteger" in operators(tmp_path / "out.onnx")
    for optimized in (True, False):
        assert error(path, tmp_path / "out.onnx", {"x": normal(3, 4, 6)}, optimized=optimized) < 0.02


def test_a_transposed_input_and_batches_of_weights_stay_in_float(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": [6, "N"], "z": [3, "N", 6]},
        [
            node("Gemm", "x w", "g", transA=1),
            node("MatMul", "z v", "m"),
            node("MatMul", "g u", "y"),
        ],
        {"w": normal(1, 6, 5), "v": normal(2, 3, 6, 2), "u": normal(3, 5, 2)},
        {"m": [3, "N", 2], "y": ["N", 2]},
    )
    assert to_int8_dynamic(path, tmp_path / "out.onnx").kept == {
        "g": "it transposes its input",
        "m": "its weight is no matrix, and ONNX Runtime takes scales of output channels for matrices only",
    }


def test_a_model_without_linear_layers_is_refused(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 3, 4, 4]},
        [node("Conv", "x w", "y")],
        {"w": normal(1, 2, 3, 1, 1)},
        {"y": ["N", 2, 4, 4]},
    )
    with pytest.raises(ExportError, match="no MatMul or Gemm with constant weights"):
        to_int8_dynamic(path, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_an_old_opset_is_brought_to_the_first_with_dynamic_quantization(tmp_path):
    path = mlp(tmp_path / "model.onnx", opset=9, ir_version=4)
    to_int8_dynamic(path, tmp_path / "out.onnx")
    assert versions_of(load_graph(tmp_path / "out.onnx"))["opset"] == {"": 11}
    assert error(path, tmp_path / "out.onnx", {"x": normal(9, 2, 3, 8)}) < 0.02


def test_weights_beside_the_file_are_read(tmp_path):
    path = mlp(tmp_path / "model.onnx", external=True)
    to_int8_dynamic(path, tmp_path / "out.onnx")
    assert error(path, tmp_path / "out.onnx", {"x": normal(9, 2, 3, 8)}) < 0.02
    assert not onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer[0].external_data
