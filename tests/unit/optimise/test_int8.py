"""Static INT8: what the file looks like, and that it computes what the model does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.unit.optimise.int8_models import (
    Array,
    batches,
    convnet,
    made_by,
    named,
    node,
    normal,
    operators,
    projected,
    save,
    weight,
)
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import graph_inputs, graph_outputs, load_graph, versions_of
from triton_toolkit.export.session import Session
from triton_toolkit.optimise.calibration import calibrate
from triton_toolkit.optimise.int8 import int8_candidates, to_int8
from triton_toolkit.optimise.placement import read_placement

AS_WRITTEN = {"session.disable_quant_qdq": "1"}
IMAGE = (8, 3, 8, 8)


class Made:
    """A model, its INT8 variant, and how far their outputs lie apart."""

    def __init__(self, path: Path, data: list[dict[str, Array]], **options: Any) -> None:
        self.path = path
        self.out = path.with_name("int8.onnx")
        self.table = calibrate(path, data, ["minmax"])["minmax"]
        self.converted = to_int8(path, self.out, self.table, **options)
        self.data = data

    def error(self, **session: Any) -> float:
        """Largest difference, as a share of the largest value of that output."""
        inputs = self.data[0]
        expected, actual = Session(self.path).predict(inputs), Session(self.out, **session).predict(inputs)
        return max(float(np.abs(actual[n] - e).max() / np.abs(e).max()) for n, e in expected.items())


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(convnet(tmp_path_factory.mktemp("net") / "model.onnx"), batches(IMAGE))


@pytest.mark.parametrize(
    "session",
    [{"entries": AS_WRITTEN}, {"optimized": False}, {}],
    ids=["as written", "unoptimised", "served"],
)
def test_the_variant_computes_what_the_model_does(net, session):
    assert net.error(**session) < 0.02


def test_activations_are_symmetric_and_weights_are_per_channel(net):
    quantize = made_by(net.out, "x/int8")
    assert weight(net.out, quantize.input[2]) == np.int8(0)
    values = np.concatenate([batch["x"] for batch in net.data])
    assert weight(net.out, quantize.input[1]) == pytest.approx(np.abs(values).max() / 127)
    dequantize = made_by(net.out, named(net.out, "c2").input[1])
    integers, scales, zeros = (weight(net.out, name) for name in dequantize.input)
    assert integers.dtype == np.int8
    assert scales.shape == zeros.shape == (8,)
    assert not zeros.any()
    assert np.abs(integers).reshape(8, -1).max(axis=1).tolist() == [127] * 8
    original = weight(net.path, "w2")
    half_steps = scales.reshape(8, 1, 1, 1) * 0.5001
    assert (np.abs(integers * scales.reshape(8, 1, 1, 1) - original) <= half_steps).all()


def test_biases_stay_in_floating_point(net):
    assert named(net.out, "c1").input[2] == "b1"
    assert weight(net.out, "b1").dtype == np.float32


def test_only_the_skip_branch_of_a_residual_addition_is_quantized(net):
    assert list(named(net.out, "sum").input) == ["c2", "r1/dequantized"]
    assert named(net.out, "c2").input[0] == "r1/dequantized"


@pytest.mark.parametrize(
    ("keep", "added"),
    [
        ((), ["body2", "skip/dequantized"]),
        (("skip",), ["body2", "skip/dequantized"]),
        (("body2",), ["body2", "skip"]),
    ],
    ids=["none", "skip", "body"],
)
def test_a_skip_branch_that_is_a_layer_stays_the_skip_branch_whatever_is_kept(tmp_path, keep, added):
    made = Made(projected(tmp_path / "model.onnx"), batches(IMAGE), keep=keep)
    assert list(named(made.out, "sum").input) == added
    assert made.error(entries=AS_WRITTEN) < 0.03


def test_float_weights_are_gone(net):
    kinds = {t.name: t.data_type for t in onnx.load(net.out).graph.initializer}
    assert {name for name, kind in kinds.items() if kind == TensorProto.FLOAT and "int8" not in name} == {
        "b1",
        "b2",
        "b3",
    }


def test_inputs_outputs_versions_and_names_stay(net):
    before, after = load_graph(net.path), load_graph(net.out)
    assert graph_inputs(after) == graph_inputs(before)
    assert graph_outputs(after) == graph_outputs(before)
    assert versions_of(after) == versions_of(before)
    assert {n.name for n in before.graph.node} <= {n.name for n in after.graph.node}


def test_all_layers_run_in_int8(net):
    placement = read_placement(net.out, net.converted.kept)
    assert placement.text == "3 of 3 layers in INT8, 1 of them hand INT8 on"
    assert placement.refused == ()
    assert net.converted.kept == {}


def test_the_same_model_and_ranges_give_the_same_bytes(net, tmp_path):
    to_int8(net.path, tmp_path / "again.onnx", net.table)
    assert (tmp_path / "again.onnx").read_bytes() == net.out.read_bytes()


def test_the_file_has_no_trace_of_the_machine(net):
    assert str(net.path.parent).encode() not in net.out.read_bytes()


def test_a_layer_that_is_kept_stays_as_it_was(net, tmp_path):
    out = tmp_path / "kept.onnx"
    converted = to_int8(net.path, out, net.table, keep=["head", "sum"])
    assert converted.kept == {"head": "kept in floating point as asked"}
    assert list(named(out, "head").input) == ["flat", "w3", "b3"]
    assert list(named(out, "sum").input) == ["c2", "r1"]


def test_the_addition_of_a_kept_convolution_is_left_alone(net, tmp_path):
    to_int8(net.path, tmp_path / "kept.onnx", net.table, keep=["c2"])
    assert list(named(tmp_path / "kept.onnx", "sum").input) == ["c2", "r1"]


def test_keeping_all_layers_gives_the_model_back(net, tmp_path):
    """A search that has given everything back must end at the FP32 model, not at an error."""
    out = tmp_path / "all.onnx"
    to_int8(net.path, out, net.table, keep=["c1", "c2", "head"])
    assert operators(out) == operators(net.path)


def test_keeping_a_node_that_is_not_there_is_refused(net, tmp_path):
    with pytest.raises(ExportError, match="node 'heed' is to stay") as caught:
        to_int8(net.path, tmp_path / "kept.onnx", net.table, keep=["heed"])
    assert caught.value.hint == "near names: head"


def test_a_missing_range_is_refused_with_tensor_and_layer(net, tmp_path):
    """NVIDIA/TensorRT#747: a calibration table without scales for some tensors."""
    table = {name: bounds for name, bounds in net.table.items() if name != "r1"}
    with pytest.raises(ExportError, match="no range for tensor 'r1', which layer 'c2' reads"):
        to_int8(net.path, tmp_path / "out.onnx", table)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ((0.0, 0.0), "its input is 0 on all of the calibration data, so nothing is known of its range"),
        ((-1.0, float("inf")), "its input is infinite on some of the calibration data"),
    ],
)
def test_a_layer_whose_input_has_no_scale_stays_in_float(net, tmp_path, bounds, reason):
    converted = to_int8(net.path, tmp_path / "out.onnx", {**net.table, "flat": bounds})
    assert converted.kept == {"head": reason}


def test_reduced_range_uses_seven_bits(net, tmp_path):
    out = tmp_path / "reduced.onnx"
    to_int8(net.path, out, net.table, reduce_range=True)
    integers = weight(out, "w2/int8")
    assert (integers.min(), integers.max()) == (-64, 64)
    inputs = net.data[0]
    expected, actual = Session(net.path).predict(inputs)["y"], Session(out).predict(inputs)["y"]
    assert np.abs(actual - expected).max() < 0.03 * np.abs(expected).max()


def test_first_and_last_layers_are_named(net):
    found = int8_candidates(net.path)
    assert found.layers == ("c1", "c2", "head")
    assert found.ends == ("c1", "head")


def one(tmp_path: Path, operator: str, shape: tuple[int, ...], w: Array, **attributes: Any) -> Made:
    """A single layer, with a Relu before it."""
    path = save(
        tmp_path / "model.onnx",
        {"x": ["N", *shape[1:]]},
        [node("Relu", "x", "r"), node(operator, "r w", "y", "layer", **attributes)],
        {"w": w},
        {"y": [None] * (len(shape) if operator != "Gemm" else 2)},
    )
    return Made(path, batches(shape))


@pytest.mark.parametrize(
    ("operator", "shape", "weight_shape", "axis", "attributes"),
    [
        ("Conv", (8, 3, 9), (4, 3, 3), 0, {}),
        ("Conv", (8, 4, 6, 6), (4, 1, 3, 3), 0, {"group": 4}),
        ("Conv", (8, 2, 4, 4, 4), (3, 2, 2, 2, 2), 0, {}),
        ("ConvTranspose", (8, 3, 5, 5), (3, 4, 2, 2), 1, {"strides": [2, 2]}),
        ("MatMul", (8, 5, 6), (6, 4), 1, {}),
        ("Gemm", (8, 6), (6, 4), 1, {}),
        ("Gemm", (8, 6), (4, 6), 0, {"transB": 1, "alpha": 0.5}),
    ],
    ids=["conv1d", "depthwise", "conv3d", "transposed", "matmul", "gemm", "gemm transB"],
)
def test_each_kind_of_layer_has_scales_on_its_output_channels(
    tmp_path, operator, shape, weight_shape, axis, attributes
):
    """Channels of very different size: one scale for all of them would lose the small ones."""
    w = normal(1, *weight_shape)
    others = tuple(i for i in range(w.ndim) if i != axis)
    w *= np.expand_dims(10.0 ** np.linspace(-3, 0, w.shape[axis]), others).astype(np.float32)
    made = one(tmp_path, operator, shape, w, **attributes)
    dequantize = made_by(made.out, "w/dequantized")
    assert helper.get_attribute_value(dequantize.attribute[0]) == axis
    assert read_placement(made.out).text.startswith("1 of 1 layers")
    inputs = made.data[0]
    expected, actual = Session(made.path).predict(inputs)["y"], Session(made.out).predict(inputs)["y"]
    channel = 1 if "Conv" in operator else expected.ndim - 1
    error = np.abs(actual - expected).max(axis=tuple(i for i in range(expected.ndim) if i != channel))
    size = np.abs(expected).max(axis=tuple(i for i in range(expected.ndim) if i != channel))
    assert (error / size).max() < 0.02


def test_a_channel_of_zeros_gets_a_positive_scale(tmp_path):
    w = normal(1, 6, 4)
    w[:, 2] = 0
    made = one(tmp_path, "MatMul", (8, 6), w)
    assert weight(made.out, "w/int8_scale")[2] == 1
    assert read_placement(made.out).refused == ()


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    w = normal(1, 6, 4)
    w[3, 1] = np.nan
    path = save(tmp_path / "m.onnx", {"x": ["N", 6]}, [node("MatMul", "x w", "y")], {"w": w}, {"y": ["N", 4]})
    with pytest.raises(ExportError, match="weight 'w' holds NaN or infinity"):
        to_int8(path, tmp_path / "out.onnx", {"x": (-1, 1)})


def test_attention_recurrent_and_grouped_transposed_layers_stay_in_float_with_their_reasons(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["T", "N", 4]},
        [
            node("MatMul", "x w", "q", "query"),
            node("Transpose", "x", "xt", perm=[0, 2, 1]),
            node("MatMul", "q xt", "scores", "attention"),
            node("MatMul", "left x", "l", "left"),
            node("LSTM", "x lw lr", "hidden", "lstm", hidden_size=3),
            node("ConvTranspose", "xt cw", "c", "up", group=2),
            node("MatMul", "x vector", "v", "dot"),
        ],
        {
            "w": normal(1, 4, 4),
            "left": normal(2, 3, 3),
            "lw": normal(3, 1, 12, 4),
            "lr": normal(4, 1, 12, 3),
            "cw": normal(5, 4, 2, 1),
            "vector": normal(6, 4),
        },
        {
            "scores": ["T", "N", "N"],
            "l": ["T", 3, 4],
            "hidden": ["T", 1, "N", 3],
            "c": ["T", 4, "N"],
            "v": ["T", "N"],
        },
    )
    made = Made(path, [{"x": normal(i, 2, 3, 4)} for i in range(3)])
    assert made.converted.kept == {
        "attention": "both of its inputs are computed (as in attention); only weights are quantized ahead of "
        "time",
        "left": "its first factor is constant, INT8 needs the weights second",
        "lstm": "recurrent layers have no INT8 form in ONNX's Q/DQ",
        "up": "TensorRT has one scale per output channel for a transposed convolution without groups only",
        "dot": "its weight is no matrix, and ONNX Runtime takes scales of output channels for matrices only",
    }
    assert made.error() < 0.02


def test_a_weight_that_two_layers_share_is_stored_once(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 6]},
        [
            node("MatMul", "x w", "a"),
            node("Relu", "a", "r"),
            node("MatMul", "r w", "b"),
            node("Gemm", "b w", "y", transB=1),
        ],
        {"w": normal(1, 6, 6)},
        {"y": ["N", 6]},
    )
    made = Made(path, batches((8, 6)))
    assert named(made.out, "a").input[1] == named(made.out, "b").input[1] == "w/dequantized"
    # Output channels of the transposed one are the rows.
    assert named(made.out, "y").input[1] == "w/dequantized_1"
    assert made.error() < 0.03


def test_a_weight_that_something_else_reads_stays_in_float_beside_its_integers(tmp_path):
    """Tied embeddings: a Gather reads the table that the last layer multiplies with."""
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 20])
    nodes = [
        node("Gather", "table ids", "e"),
        node("Transpose", "table", "turned", perm=[1, 0]),
        node("MatMul", "e turned", "y"),
    ]
    table = onnx.numpy_helper.from_array(normal(1, 20, 6), "table")
    graph = helper.make_graph(nodes, "g", [ids], [y], [table])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    made = Made(path, [{"ids": np.arange(20)}])
    assert operators(made.out) == [
        "Gather",
        "QuantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "MatMul",
    ]
    assert weight(made.out, "table").dtype == np.float32
    assert weight(made.out, "turned/int8").shape == (6, 20)
    assert made.error() < 0.02


def test_layers_inside_of_an_if_stay_in_float_and_keep_their_weights(tmp_path):
    def body(name: str, factor: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, ["N", 6])
        return helper.make_graph(
            [node("MatMul", f"h {factor}", f"{name}_y", f"{name}_layer")], name, [], [out]
        )

    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 6]},
        [
            node("MatMul", "x w", "h", "outer"),
            node("ReduceSum", "x", "total", keepdims=0),
            node("Greater", "total zero", "positive"),
            node("If", "positive", "y", "choice", then_branch=body("yes", "w"), else_branch=body("no", "v")),
        ],
        {"w": normal(1, 6, 6), "v": normal(2, 6, 6), "zero": np.float32(0)},
        {"y": ["N", 6]},
    )
    made = Made(path, batches((8, 6)))
    where = "it is inside of If 'choice', where nothing is quantized"
    assert made.converted.kept == {"yes_layer": where, "no_layer": where}
    assert read_placement(made.out, made.converted.kept).others == made.converted.kept
    assert made.error() < 0.02


def test_weights_beside_the_file_are_read_and_small_ones_written_into_it(tmp_path):
    made = Made(convnet(tmp_path / "model.onnx", external=True), batches(IMAGE))
    assert made.error() < 0.02
    assert not (tmp_path / "int8.onnx.data").exists()


def test_external_data_that_is_missing_is_named(tmp_path, net):
    path = convnet(tmp_path / "model.onnx", external=True)
    (tmp_path / "model.onnx.data").unlink()
    with pytest.raises(ExportError, match="its external data cannot be read"):
        to_int8(path, tmp_path / "out.onnx", net.table)


def test_an_old_opset_is_brought_to_13(tmp_path):
    nodes = [
        node("Conv", "x w", "c"),
        node("Squeeze", "c", "s", axes=[3]),
        node("Pad", "s", "p", pads=[0, 0, 1, 0, 0, 0]),
        node("Softmax", "p", "y", axis=2),
    ]
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 3, "H", 1]},
        nodes,
        {"w": normal(1, 4, 3, 1, 1)},
        {"y": ["N", 4, "H2"]},
        opset=9,
        ir_version=4,
    )
    made = Made(path, batches((8, 3, 5, 1)))
    assert versions_of(load_graph(made.out)) == {"opset": {"": 13}, "ir_version": 7}
    assert graph_inputs(load_graph(made.out)) == graph_inputs(load_graph(path))
    assert graph_outputs(load_graph(made.out)) == graph_outputs(load_graph(path))
    assert made.error() < 0.02


def test_an_old_opset_that_cannot_be_converted_is_refused(tmp_path):
    nodes = [node("Dropout", "x", "d", is_test=0), node("MatMul", "d w", "y")]
    path = save(tmp_path / "m.onnx", {"x": ["N", 4]}, nodes, {"w": normal(1, 4, 4)}, {"y": ["N", 4]}, opset=6)
    with pytest.raises(
        ExportError, match=r"opset 6, opset 13 is needed, and onnx cannot convert it: .* is_test"
    ):
        to_int8(path, tmp_path / "out.onnx", {"d": (-1, 1)})


def test_weights_that_are_also_inputs_are_dropped_from_the_inputs(tmp_path):
    """Before IR version 4 every weight was listed as an input with a default."""
    path = convnet(tmp_path / "model.onnx", opset=13, ir_version=4)
    model = onnx.load(path)
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in model.graph.initializer
    )
    onnx.save(model, path)
    made = Made(path, batches(IMAGE))
    inputs = [value.name for value in onnx.load(made.out).graph.input]
    assert inputs == ["x", "b1", "b2", "b3"]
    assert made.error() < 0.02


def test_nodes_without_names_are_called_by_their_output(tmp_path):
    model = onnx.load(convnet(tmp_path / "model.onnx"))
    for one_node in model.graph.node:
        one_node.name = ""
    onnx.save(model, tmp_path / "model.onnx")
    made = Made(tmp_path / "model.onnx", batches(IMAGE), keep=["c1"])
    assert made.converted.kept == {"c1": "kept in floating point as asked"}
    assert int8_candidates(made.path).layers == ("c1", "c2", "y")


def test_a_local_function_is_seen_into(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 18, "own" : 1]>
        g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}> { y = own.linear (x, w) }
        <domain: "own", opset_import: ["" : 18]>
        linear (a, b) => (c) { c = MatMul (a, b) }
        """),
        path,
    )
    made = Made(path, batches((8, 2)))
    assert operators(made.out) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert made.error() < 0.02


def test_names_that_are_taken_are_not_used_twice(tmp_path):
    path = save(
        tmp_path / "m.onnx",
        {"x": ["N", 4]},
        [node("Identity", "x", "x/int8"), node("MatMul", "x/int8 w", "m"), node("MatMul", "x w", "y")],
        {"w": normal(1, 4, 4)},
        {"y": ["N", 4], "m": ["N", 4]},
    )
    assert Made(path, batches((8, 4))).error() < 0.02


def test_a_model_without_layers_is_refused(tmp_path):
    path = save(tmp_path / "m.onnx", {"x": ["N", 4]}, [node("Relu", "x", "y")], {}, {"y": ["N", 4]})
    with pytest.raises(ExportError, match=r"m.onnx has no layer that can run in INT8$"):
        to_int8(path, tmp_path / "out.onnx", {})


def test_a_model_that_is_quantized_already_is_refused(net, tmp_path):
    with pytest.raises(ExportError, match=r"the model is quantized already: node .* is a QuantizeLinear"):
        to_int8(net.out, tmp_path / "out.onnx", net.table)


def test_a_model_in_half_precision_is_told_so(tmp_path):
    half = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["N", 4]) for n in ("x", "y")]
    w = onnx.numpy_helper.from_array(normal(1, 4, 4).astype(np.float16), "w")
    graph = helper.make_graph([node("MatMul", "x w", "y")], "g", half[:1], half[1:], [w])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "m.onnx")
    with pytest.raises(ExportError, match="'y': it computes in float16, not in float32"):
        to_int8(tmp_path / "m.onnx", tmp_path / "out.onnx", {})
