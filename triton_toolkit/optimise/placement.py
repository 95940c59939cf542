"""Where INT8 really is in a model: read from the file, not from what its maker meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.optimise.layers import (
    CONVOLUTIONS,
    LINEAR,
    NO_RECURRENT,
    RECURRENT,
    Graph,
    graphs_of,
    is_quantized_operator,
    node_name,
)
from triton_toolkit.optimise.model_file import read_model

if TYPE_CHECKING:
    import onnx

_CPU_ONLY = ("MatMulInteger", "ConvInteger")
"""Layers on integers without Q/DQ: ONNX Runtime runs them on the CPU, TensorRT refuses them."""

_MOVES_VALUES = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "MaxPool")
"""Operators that TensorRT runs on int8 between a Q and its DQ."""

_FUSED = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSwish", "Add", "Mul", "BatchNormalization")
"""Operators after a layer that TensorRT computes in the layer's own kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlacement:
    """How one layer runs.

    Attributes:
        name: Node name.
        operator: Operator type.
        int8: Whether both of its factors come as INT8.
        int8_out: Whether its result becomes INT8 again before anything but fused operators sees it;
            otherwise the engine writes floating-point numbers after it.
        reason: Why it is not in INT8; empty where it is.
    """

    name: str
    operator: str
    int8: bool
    int8_out: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which of a model's layers run in INT8: Conv, ConvTranspose, MatMul, Gemm; LSTM, GRU and RNN never do.

    Attributes:
        layers: All of them, in the graph's order.
        refused: What TensorRT would refuse in the file, in words; empty for a file that it takes.
    """

    layers: tuple[LayerPlacement, ...]
    refused: tuple[str, ...]

    @property
    def int8(self) -> tuple[LayerPlacement, ...]:
        """The layers in INT8."""
        return tuple(layer for layer in self.layers if layer.int8)

    @property
    def others(self) -> dict[str, str]:
        """Layer -> why it is not in INT8."""
        return {layer.name: layer.reason for layer in self.layers if not layer.int8}

    @property
    def text(self) -> str:
        """One sentence: how many layers run in INT8, and how many of these give INT8 on."""
        on = sum(layer.int8_out for layer in self.int8)
        return f"{len(self.int8)} of {len(self.layers)} layers in INT8, {on} of them hand INT8 on"

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        return {
            "layers": len(self.layers),
            "int8": len(self.int8),
            "int8_out": sum(layer.int8_out for layer in self.int8),
            "others": self.others,
            "refused": list(self.refused),
        }


def read_placement(model: Path, kept: Mapping[str, str] | None = None) -> Placement:
    """Count the layers of a file both of whose factors come from DequantizeLinear, or are integers.

    Args:
        model: Any ONNX file.
        kept: Layer -> why the conversion left it; said instead of what the graph shows.
    """
    graph = Graph(read_model(model, weights=False))
    layers = [_placement(graph, node, kept or {}) for node in graph.nodes if _is_layer(node)]
    layers += [
        LayerPlacement(
            name=node_name(inner),
            operator=inner.op_type,
            int8=False,
            int8_out=False,
            reason=f"it is inside of {outer.op_type} {node_name(outer)!r}, where nothing is quantized",
        )
        for outer, inner in _inner(graph)
    ]
    return Placement(layers=tuple(layers), refused=tuple(_refused(graph)))


def _is_layer(node: onnx.NodeProto) -> bool:
    op = node.op_type
    return op in (*CONVOLUTIONS, *LINEAR, *RECURRENT, *_CPU_ONLY) or op.startswith(
        ("QLinearConv", "QLinearMatMul")
    )


def _inner(graph: Graph) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto]]:
    for outer in graph.nodes:
        for body in graphs_of(outer):
            for inner in body.node:
                if _is_layer(inner):
                    yield outer, inner


def _placement(graph: Graph, node: onnx.NodeProto, kept: Mapping[str, str]) -> LayerPlacement:
    name = node_name(node)
    if node.op_type in RECURRENT:
        reason = kept.get(name) or NO_RECURRENT
        return LayerPlacement(name=name, operator=node.op_type, int8=False, int8_out=False, reason=reason)
    if node.op_type not in (*CONVOLUTIONS, *LINEAR):
        return LayerPlacement(name=name, operator=node.op_type, int8=True, int8_out=False, reason="")
    missing = [source for source in node.input[:2] if not _from_int8(graph, source)]
    reason = ""
    if missing:
        found = " and ".join(f"{source!r} ({_maker(graph, source)})" for source in missing)
        reason = kept.get(name) or f"not from DequantizeLinear: {found}"
    return LayerPlacement(
        name=name,
        operator=node.op_type,
        int8=not missing,
        int8_out=not missing and _becomes_int8(graph, node.output[0]),
        reason=reason,
    )


def _maker(graph: Graph, name: str) -> str:
    node = graph.producer.get(name)
    if node is not None:
        return f"from {node.op_type}"
    return "a constant" if name in graph.initializers else "an input of the model"


def _from_int8(graph: Graph, name: str) -> bool:
    """Whether a tensor is DequantizeLinear's, which has int8 from Q or as a constant."""
    node = graph.producer.get(name)
    if node is None or node.op_type != "DequantizeLinear":
        return False
    name = node.input[0]
    while (before := graph.producer.get(name)) is not None and before.op_type in _MOVES_VALUES:
        name = before.input[0]
    return name in graph.initializers or (
        before is not None and before.op_type in {"QuantizeLinear", "Constant"}
    )


def _becomes_int8(graph: Graph, name: str) -> bool:
    """Whether all that reads a tensor, fused operators passed over, is QuantizeLinear."""
    if name in graph.outputs or not graph.readers[name]:
        return False
    for node in graph.readers[name]:
        if node.op_type == "QuantizeLinear":
            continue
        if node.op_type not in (*_FUSED, *_MOVES_VALUES) or not _becomes_int8(graph, node.output[0]):
            return False
    return True


def _refused(graph: Graph) -> Iterator[str]:
    """Yield what TensorRT's parser refuses, as its messages say.

    Source:
        onnx-tensorrt's import of QuantizeLinear and DequantizeLinear, tried with TensorRT for RTX 1.7.1.
    """
    import numpy as np
    import onnx

    for node in graph.nodes:
        name = node_name(node)
        if node.op_type not in {"QuantizeLinear", "DequantizeLinear"}:
            if is_quantized_operator(node.op_type):
                yield f"node {name!r}: TensorRT has no {node.op_type}"
            continue
        kind = graph.elem_type(node.input[0])
        if node.op_type == "DequantizeLinear" and kind == onnx.TensorProto.INT32:
            yield f"node {name!r}: TensorRT does not dequantize INT32, which a quantized bias is"
        if len(node.input) > 2 and graph.is_constant(node.input[2]) and np.any(graph.value(node.input[2])):
            yield f"node {name!r}: TensorRT takes zero point 0 only"
        if graph.is_constant(node.input[1]) and not np.all(graph.value(node.input[1]) > 0):
            yield f"node {name!r}: TensorRT takes positive scales only"
