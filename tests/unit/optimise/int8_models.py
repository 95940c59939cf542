"""Small ONNX models made in code, and inputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Shape = Sequence[int | str | None]


def node(operator: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """Return a node; tensors are separated by spaces, an empty input is ``_``."""
    names = ["" if one == "_" else one for one in inputs.split()]
    return helper.make_node(
        operator, names, outputs.split(), name or outputs.split(maxsplit=1)[0], **attributes
    )


def save(
    path: Path,
    inputs: Mapping[str, Shape],
    nodes: Sequence[onnx.NodeProto],
    weights: Mapping[str, Array],
    outputs: Mapping[str, Shape | None],
    *,
    opset: int = 18,
    ir_version: int = 8,
    external: bool = False,
) -> Path:
    """Write a model of float inputs and outputs; checked, unless an output has no shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()],
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, None if s is None else list(s))
            for n, s in outputs.items()
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    if None not in outputs.values():
        onnx.checker.check_model(model, full_check=True)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    """Return seeded float32 values from N(0, scale)."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def batches(shape: Sequence[int], count: int = 4, name: str = "x", seed: int = 100) -> list[dict[str, Array]]:
    """Return calibration batches for one input."""
    return [{name: normal(seed + index, *shape)} for index in range(count)]


def operators(path: Path) -> list[str]:
    """Return the operator types of a file, in order."""
    return [one.op_type for one in onnx.load(path).graph.node]


def made_by(path: Path, tensor: str) -> onnx.NodeProto:
    """Return the node that makes a tensor."""
    return next(one for one in onnx.load(path).graph.node if tensor in one.output)


def named(path: Path, name: str) -> onnx.NodeProto:
    """Return the node of a name."""
    return next(one for one in onnx.load(path).graph.node if one.name == name)


def weight(path: Path, name: str) -> Array:
    """Return an initializer's value."""
    found = next(t for t in onnx.load(path).graph.initializer if t.name == name)
    return numpy_helper.to_array(found)


def convnet(path: Path, **options: Any) -> Path:
    """Two convolutions with a residual addition, then a linear layer; batch and size are dynamic."""
    return save(
        path,
        {"x": ["N", 3, "H", "W"]},
        [
            node("Conv", "x w1 b1", "c1", pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2 b2", "c2", pads=[1, 1, 1, 1]),
            node("Add", "c2 r1", "sum"),
            node("Relu", "sum", "r2"),
            node("GlobalAveragePool", "r2", "pooled"),
            node("Flatten", "pooled", "flat"),
            node("Gemm", "flat w3 b3", "y", "head", transB=1),
        ],
        {
            "w1": normal(1, 8, 3, 3, 3, scale=0.2),
            "b1": normal(2, 8, scale=0.1),
            "w2": normal(3, 8, 8, 3, 3, scale=0.1),
            "b2": normal(4, 8, scale=0.1),
            "w3": normal(5, 5, 8),
            "b3": normal(6, 5),
        },
        {"y": ["N", 5]},
        **options,
    )


def projected(path: Path) -> Path:
    """A residual addition whose skip branch is a convolution too; the body has two."""
    return save(
        path,
        {"x": ["N", 3, 8, 8]},
        [
            node("Conv", "x w1", "body1", pads=[1, 1, 1, 1]),
            node("Relu", "body1", "r1"),
            node("Conv", "r1 w2", "body2", pads=[1, 1, 1, 1]),
            node("Conv", "x w3", "skip"),
            node("Add", "body2 skip", "sum"),
            node("Relu", "sum", "y"),
        ],
        {
            "w1": normal(1, 8, 3, 3, 3, scale=0.2),
            "w2": normal(2, 8, 8, 3, 3, scale=0.1),
            "w3": normal(3, 8, 3, 1, 1, scale=0.5),
        },
        {"y": ["N", 8, 8, 8]},
    )


def detector(path: Path) -> Path:
    """Boxes in 0..640 beside scores in 0..1, joined into one output [N, 5, cells]."""
    return save(
        path,
        {"x": ["N", 3, 8, 8]},
        [
            node("Conv", "x w1", "c1", "stem", pads=[1, 1, 1, 1]),
            node("Relu", "c1", "r1"),
            node("Conv", "r1 w2", "boxes_raw", "boxes"),
            node("Conv", "r1 w3", "scores_raw", "scores"),
            node("Sigmoid", "boxes_raw", "boxes_01"),
            node("Mul", "boxes_01 size", "boxes_px"),
            node("Sigmoid", "scores_raw", "scores_01"),
            node("Concat", "boxes_px scores_01", "joined", "join", axis=1),
            node("Reshape", "joined shape", "y"),
        ],
        {
            "w1": normal(1, 8, 3, 3, 3, scale=0.3),
            "w2": normal(2, 4, 8, 1, 1, scale=0.3),
            "w3": normal(3, 1, 8, 1, 1, scale=0.3),
            "size": np.float32(640.0),
            "shape": np.array([0, 5, -1]),
        },
        {"y": ["N", 5, "cells"]},
    )
