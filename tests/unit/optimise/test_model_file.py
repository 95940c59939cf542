"""Reading and writing model files, large weights beside them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.unit.optimise.int8_models import convnet, named, node, normal, save
from triton_toolkit.errors import ExportError
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.edit import Editor
from triton_toolkit.optimise.layers import Graph
from triton_toolkit.optimise.model_file import read_model, write_model
from triton_toolkit.optimise.weights import quantize_weight, scale_of


def test_large_weights_go_beside_the_file_and_come_back(tmp_path):
    path = convnet(tmp_path / "model.onnx")
    out = tmp_path / "out" / "model.onnx"
    out.parent.mkdir()
    write_model(read_model(path).model, out, external_data_bytes=1000)
    assert sorted(file.name for file in out.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    inputs = {"x": normal(1, 2, 3, 8, 8)}
    assert (Session(out).predict(inputs)["y"] == Session(path).predict(inputs)["y"]).all()
    assert (
        read_model(out).model.graph.initializer[0].raw_data
        == read_model(path).model.graph.initializer[0].raw_data
    )


def test_writing_again_replaces_the_weights_beside_the_file(tmp_path):
    """onnx appends to a file of weights that exists."""
    path = convnet(tmp_path / "model.onnx")
    for _ in range(2):
        write_model(read_model(path).model, tmp_path / "out.onnx", external_data_bytes=1000)
        size = (tmp_path / "out.onnx.data").stat().st_size
    assert size == len(onnx.load(path).graph.initializer[2].raw_data)


def test_weights_that_shrank_leave_nothing_beside_the_file(tmp_path):
    model = read_model(convnet(tmp_path / "model.onnx"))
    write_model(model.model, tmp_path / "out.onnx", external_data_bytes=1000)
    write_model(read_model(tmp_path / "model.onnx").model, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx.data").exists()


def test_a_graph_that_onnx_refuses_is_an_error(tmp_path):
    model = read_model(convnet(tmp_path / "model.onnx")).model
    model.graph.node[0].input[0] = "nothing"
    with pytest.raises(ExportError, match=r"out\.onnx is not valid ONNX"):
        write_model(model, tmp_path / "out.onnx")


def test_types_and_shapes_of_inner_tensors_are_known(tmp_path):
    found = read_model(convnet(tmp_path / "model.onnx")).tensors
    assert found["c1"].shape == ("N", 8, "H", "W") or found["c1"].shape[:2] == ("N", 8)
    assert found["w1"].elem_type == onnx.TensorProto.FLOAT


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ExportError, match=r"gone\.onnx: no such file"):
        read_model(tmp_path / "gone.onnx")


def test_unused_inputs_and_weights_of_the_user_stay(tmp_path):
    """Only what the change made useless goes."""
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4], "spare": ["N"]},
        [node("Relu", "x", "y")],
        {"unused": normal(1, 3)},
        {"y": ["N", 4]},
    )
    view = Graph(read_model(path))
    editor = Editor(view)
    for one in view.nodes:
        editor.append(one)
    editor.finish()
    assert [value.name for value in view.file.model.graph.input] == ["x", "spare"]
    assert [tensor.name for tensor in view.file.model.graph.initializer] == ["unused"]


def test_a_weight_behind_layout_nodes_is_computed(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4]},
        [
            node("Transpose", "w", "t", perm=[1, 0]),
            node("Reshape", "t shape", "r"),
            node("Identity", "r", "i"),
            node("MatMul", "x i", "y", "layer"),
        ],
        {"w": normal(1, 3, 4), "shape": np.array([4, 3])},
        {"y": ["N", 3]},
    )
    view = Graph(read_model(path))
    assert view.is_constant("i")
    assert not view.is_constant("y")
    assert (view.value(named(path, "layer").input[1]) == normal(1, 3, 4).T).all()


def test_scales_round_up_where_they_have_to_be_fp16():
    """Rounded down, the largest value would be clipped."""
    largest = np.abs(normal(1, 1000)) * 10.0 ** np.linspace(-7, 3, 1000).astype(np.float32)
    scales = scale_of(largest, half=True)
    assert (scales == scales.astype(np.float16)).all()
    assert (scales * 127 >= largest * (1 - 1e-6)).all()
    assert (scales > 0).all()


def test_a_weight_per_channel_is_off_by_half_a_step_at_most():
    weight = normal(1, 5, 7, 3)
    integers, scales = quantize_weight("w", weight, 1)
    assert integers.dtype == np.int8
    assert scales.shape == (7,)
    assert (np.abs(integers * scales[:, None] - weight) <= scales[:, None] * 0.5001).all()
