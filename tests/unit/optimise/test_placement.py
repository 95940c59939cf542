"""Where INT8 is, read from files that others may have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper, numpy_helper

from tests.unit.optimise.int8_models import convnet, node, normal, save
from triton_toolkit.optimise.placement import Placement, read_placement

QUANTIZE = [node("QuantizeLinear", "x s z", "xq"), node("DequantizeLinear", "xq s z", "xd")]
WEIGHT = [node("DequantizeLinear", "wq ws wz", "wd", axis=0)]
CONSTANTS = {
    "s": np.float32(0.1),
    "z": np.int8(0),
    "wq": np.ones((4, 3, 1, 1), np.int8),
    "ws": np.full(4, 0.1, np.float32),
    "wz": np.zeros(4, np.int8),
    "w": normal(1, 4, 3, 1, 1),
    "one": np.float32(1),
}


def placement(tmp_path: Path, nodes: list[NodeProto], **constants: Any) -> Placement:
    used = {name for one in nodes for name in one.input}
    values = {name: value for name, value in (CONSTANTS | constants).items() if name in used}
    path = save(tmp_path / "m.onnx", {"x": ["N", 3, 4, 4]}, nodes, values, {"y": None}, opset=18)
    return read_placement(path)


def reasons(found: Placement) -> dict[str, str]:
    assert [layer.int8 for layer in found.layers] == [False]
    return found.others


def test_a_convolution_between_dequantizers_runs_in_int8(tmp_path):
    found = placement(tmp_path, [*QUANTIZE, *WEIGHT, node("Conv", "xd wd", "y")])
    assert found.as_dict() == {"layers": 1, "int8": 1, "int8_out": 0, "others": {}, "refused": []}


def test_a_float_input_is_named_with_its_origin(tmp_path):
    """TensorRT#3197: Q/DQ pairs everywhere, and the convolutions run in FP32."""
    nodes = [*WEIGHT, node("Relu", "x", "r"), node("Conv", "r wd", "y")]
    assert reasons(placement(tmp_path, nodes)) == {"y": "not from DequantizeLinear: 'r' (from Relu)"}


def test_an_operator_between_dequantizer_and_convolution_makes_it_float(tmp_path):
    """The pair is in the file, but not where the layer reads."""
    nodes = [*QUANTIZE, *WEIGHT, node("Mul", "xd one", "scaled"), node("Conv", "scaled wd", "y")]
    assert reasons(placement(tmp_path, nodes)) == {"y": "not from DequantizeLinear: 'scaled' (from Mul)"}


def test_a_float_weight_is_named(tmp_path):
    """TensorRT#4554: as fast as FP16, since INT8 was never chosen."""
    nodes = [*QUANTIZE, node("Conv", "xd w", "y")]
    assert reasons(placement(tmp_path, nodes)) == {"y": "not from DequantizeLinear: 'w' (a constant)"}


def test_a_layer_without_any_pair_names_both_factors(tmp_path):
    assert reasons(placement(tmp_path, [node("Conv", "x w", "y")])) == {
        "y": "not from DequantizeLinear: 'x' (an input of the model) and 'w' (a constant)"
    }


def test_weights_quantized_on_the_fly_count(tmp_path):
    nodes = [
        *QUANTIZE,
        node("QuantizeLinear", "w ws wz", "q", axis=0),
        node("DequantizeLinear", "q ws wz", "wd", axis=0),
        node("Conv", "xd wd", "y"),
    ]
    assert len(placement(tmp_path, nodes).int8) == 1


def test_integers_may_be_moved_between_quantizer_and_dequantizer(tmp_path):
    nodes = [
        node("QuantizeLinear", "x s z", "xq"),
        node("MaxPool", "xq", "pooled", kernel_shape=[2, 2]),
        node("DequantizeLinear", "pooled s z", "xd"),
        *WEIGHT,
        node("Conv", "xd wd", "y"),
    ]
    assert len(placement(tmp_path, nodes).int8) == 1


def test_a_dequantizer_of_an_input_is_not_int8_of_ours_to_judge(tmp_path):
    """An int8 input of the model has int8 from outside; a float layer's own output has not."""
    nodes = [
        *QUANTIZE,
        *WEIGHT,
        node("Cast", "x", "integers", to=3),
        node("DequantizeLinear", "integers s z", "d"),
        node("Conv", "d wd", "y"),
    ]
    assert reasons(placement(tmp_path, nodes)) == {
        "y": "not from DequantizeLinear: 'd' (from DequantizeLinear)"
    }


BACK = [node("DequantizeLinear", "q s z", "y")]


def test_integers_that_are_cast_to_floats_are_not_int8(tmp_path):
    nodes = [*QUANTIZE[:1], *WEIGHT, node("Cast", "xq", "floats", to=1), node("Conv", "floats wd", "y")]
    assert reasons(placement(tmp_path, nodes)) == {"y": "not from DequantizeLinear: 'floats' (from Cast)"}


AFTER = {
    "relu": ([node("Relu", "c", "r"), node("QuantizeLinear", "r s z", "q"), *BACK], 1),
    "pool": (
        [node("MaxPool", "c", "r", kernel_shape=[2, 2]), node("QuantizeLinear", "r s z", "q"), *BACK],
        1,
    ),
    "nothing": ([node("QuantizeLinear", "c s z", "q"), *BACK], 1),
    "softmax": ([node("Softmax", "c", "r"), node("QuantizeLinear", "r s z", "q"), *BACK], 0),
    "an output itself": ([node("QuantizeLinear", "y s z", "q"), node("DequantizeLinear", "q s z", "d")], 0),
    "output": ([node("Identity", "c", "y")], 0),
    "read twice": (
        [
            node("QuantizeLinear", "c s z", "q"),
            node("DequantizeLinear", "q s z", "d"),
            node("Exp", "c", "e"),
            node("Add", "e d", "y"),
        ],
        0,
    ),
}


@pytest.mark.parametrize(("nodes", "int8_out"), AFTER.values(), ids=AFTER.keys())
def test_a_result_that_stays_float_is_counted(tmp_path, nodes, int8_out):
    """DINOv2, TensorRT#4273: INT8 products between float operators, with a reformat on each side."""
    found = placement(tmp_path, [*QUANTIZE, *WEIGHT, node("Conv", "xd wd", nodes[0].input[0]), *nodes])
    assert found.as_dict()["int8_out"] == int8_out
    assert found.text == f"1 of 1 layers in INT8, {int8_out} of them hand INT8 on"


def test_a_reason_that_the_conversion_gave_is_said_instead(tmp_path):
    path = convnet(tmp_path / "m.onnx")
    assert read_placement(path, {"c1": "because"}).others["c1"] == "because"


def test_recurrent_layers_are_counted_as_layers_that_stay_float(tmp_path):
    """An LSTM before a small classifier: "1 of 1 layers" would hide where the work is."""
    nodes = [
        node("LSTM", "x w r", "states", "lstm", hidden_size=2),
        node("QuantizeLinear", "states s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("MatMul", "d wd", "y", "head"),
        node("DequantizeLinear", "wq s z", "wd"),
    ]
    weights = {"w": normal(1, 1, 8, 3), "r": normal(2, 1, 8, 2), "wq": np.ones((2, 4), np.int8)}
    constants = {name: CONSTANTS[name] for name in ("s", "z")}
    nodes.insert(0, nodes.pop())
    path = save(tmp_path / "m.onnx", {"x": ["T", "N", 3]}, nodes, weights | constants, {"y": None})
    found = read_placement(path)
    assert found.text == "1 of 2 layers in INT8, 0 of them hand INT8 on"
    assert found.others == {"lstm": "recurrent layers have no INT8 form in ONNX's Q/DQ"}


def test_layers_inside_of_a_loop_are_counted(tmp_path):
    inner = helper.make_graph(
        [node("Identity", "more", "again"), node("MatMul", "h v", "g", "inner")],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("more", 9, []),
            helper.make_tensor_value_info("h", 1, ["N", 3, 4, 4]),
        ],
        [
            helper.make_tensor_value_info("again", 9, []),
            helper.make_tensor_value_info("g", 1, ["N", 3, 4, 4]),
        ],
        [numpy_helper.from_array(normal(1, 4, 4), "v")],
    )
    found = placement(tmp_path, [node("Loop", "count _ x", "y", "loop", body=inner)], count=np.int64(2))
    assert reasons(found) == {"inner": "it is inside of Loop 'loop', where nothing is quantized"}


REFUSED = {
    "zero point": (
        {"z": np.int8(3)},
        ["node 'xq': TensorRT takes zero point 0 only", "node 'xd': TensorRT takes zero point 0 only"],
    ),
    "scale": ({"ws": np.array([1, 0, 1, 1], np.float32)}, ["node 'wd': TensorRT takes positive scales only"]),
}


@pytest.mark.parametrize(("constants", "refused"), REFUSED.values(), ids=REFUSED.keys())
def test_parameters_that_tensorrt_refuses_are_told(tmp_path, constants, refused):
    found = placement(tmp_path, [*QUANTIZE, *WEIGHT, node("Conv", "xd wd", "y")], **constants)
    assert list(found.refused) == refused


def test_a_quantized_bias_is_told(tmp_path):
    """What onnxruntime's quantizer makes when it is not told otherwise."""
    nodes = [*QUANTIZE, *WEIGHT, node("DequantizeLinear", "bq bs", "b"), node("Conv", "xd wd b", "y")]
    found = placement(tmp_path, nodes, bq=np.ones(4, np.int32), bs=np.float32(0.1))
    assert found.refused == ("node 'b': TensorRT does not dequantize INT32, which a quantized bias is",)


def test_integer_operators_are_told(tmp_path):
    nodes = [
        node("DynamicQuantizeLinear", "x", "q qs qz"),
        node("ConvInteger", "q wq qz", "i"),
        node("Cast", "i", "y", to=1),
    ]
    found = placement(tmp_path, nodes)
    assert found.refused == (
        "node 'q': TensorRT has no DynamicQuantizeLinear",
        "node 'i': TensorRT has no ConvInteger",
    )
    assert [layer.operator for layer in found.int8] == ["ConvInteger"]
