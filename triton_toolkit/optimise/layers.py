"""The layers of a graph that INT8 is about: what they read, what their weights are, what surrounds them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.model_file import ModelFile, opset_of

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

CONVOLUTIONS = ("Conv", "ConvTranspose")
LINEAR = ("MatMul", "Gemm")
RECURRENT = ("LSTM", "GRU", "RNN")
NO_RECURRENT = "recurrent layers have no INT8 form in ONNX's Q/DQ"

_FOLDED = ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast")
"""Operators between a constant and the layer whose weight it is, as exporters leave them."""

_SAME_RANGE = (
    *("Identity", "Dropout", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice"),
    *("Split", "Gather", "Pad", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize"),
    *("MaxPool", "AveragePool", "Relu", "Clip"),
)
"""Operators whose output has about the range of their first input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer with weights, or one of the kinds that usually have some.

    Attributes:
        name: Node name.
        operator: Operator type.
        activation: Tensor that it works on, "" where ``reason`` says that there is none.
        weight: Constant tensor that it multiplies with, likewise.
        axis: Axis of the weight that counts output channels.
        output: Its output.
        reason: Why it cannot run in INT8; empty where it can.
    """

    name: str
    operator: str
    activation: str = ""
    weight: str = ""
    axis: int = 0
    output: str = ""
    reason: str = ""


def node_name(node: onnx.NodeProto) -> str:
    """Return a node's name; an unnamed one is called by its first output."""
    return node.name or str(node.output[0])


def reads(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads, those that its If or Loop bodies take from outside included."""
    names = list(node.input)
    for graph in graphs_of(node):
        names += [name for one in graph.node for name in one.input]
        names += [value.name for value in graph.output]
    return names


def graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes, and those in them."""
    for item in node.attribute:
        for inner in [*([item.g] if item.HasField("g") else []), *item.graphs]:
            yield inner
            for one in inner.node:
                yield from graphs_of(one)


class Graph:
    """The main graph of a model: who makes a tensor, who reads it, what is constant.

    Nodes and initializers may be replaced afterwards; the view shows the graph as it was read.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self.nodes = list(file.model.graph.node)
        self.initializers = {tensor.name: tensor for tensor in file.model.graph.initializer}
        self.producer = {name: node for node in self.nodes for name in node.output if name}
        self.outputs = {value.name for value in file.model.graph.output}
        self.readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self.nodes:
            for name in dict.fromkeys(reads(node)):
                self.readers[name].append(node)

    def is_constant(self, name: str) -> bool:
        """Whether a tensor depends on weights alone, by the operators that exporters leave there."""
        if name in self.initializers:
            return True
        node = self.producer.get(name)
        if node is None:
            return False
        if node.op_type == "Constant":
            return True
        return node.op_type in _FOLDED and all(self.is_constant(source) for source in node.input if source)

    def value(self, name: str) -> NDArray[Any]:
        """Return the value of a constant tensor."""
        import numpy as np
        import onnx
        from onnx.reference import ReferenceEvaluator

        if name in self.initializers:
            return onnx.numpy_helper.to_array(self.initializers[name])
        node = self.producer[name]
        feeds = {source: self.value(source) for source in node.input if source}
        single = ReferenceEvaluator(node, opsets={"": opset_of(self.file.model)})
        return np.asarray(single.run(None, feeds)[0])  # type: ignore[index]  # run gives a list here

    def elem_type(self, name: str) -> int:
        """Return a tensor's ``onnx.TensorProto.DataType``; 0 where it is unknown."""
        info = self.file.tensors.get(name)
        return info.elem_type if info else 0

    def rank(self, name: str) -> int | None:
        """Return a tensor's rank; None where it is unknown."""
        info = self.file.tensors.get(name)
        return None if info is None or info.shape is None else len(info.shape)

    def source(self, name: str) -> str:
        """Return the tensor whose range this one has: back through layout changes, pooling, Relu."""
        while (node := self.producer.get(name)) is not None and node.op_type in _SAME_RANGE:
            name = node.input[0]
        return name


def find_layers(graph: Graph) -> tuple[Layer, ...]:
    """Return every layer of the main graph, in its order, and those inside of If, Loop and Scan."""
    found = [layer for node in graph.nodes if (layer := _layer(graph, node)) is not None]
    return (*found, *_inner_layers(graph))


def check_floating_point(graph: Graph) -> None:
    """Refuse a model that is quantized already.

    Raises:
        ExportError: It has quantized operators; names the first.
    """
    for node in graph.nodes:
        if is_quantized_operator(node.op_type):
            raise ExportError(
                f"the model is quantized already: node {node_name(node)!r} is a {node.op_type}",
                hint="give the floating-point model; tt makes its INT8 variants",
            )


def is_quantized_operator(op_type: str) -> bool:
    """Whether an operator works on quantized integers."""
    quantizing = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
    integer = ("MatMulInteger", "ConvInteger", "MatMulNBits", "QGemm", "QAttention")
    return op_type in (*quantizing, *integer) or op_type.startswith(("QLinear", "DynamicQuantize"))


def _layer(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    name, operator = node_name(node), node.op_type
    if node.domain not in {"", "ai.onnx"}:
        return None
    if operator in RECURRENT:
        return Layer(name=name, operator=operator, reason=NO_RECURRENT)
    if operator not in (*CONVOLUTIONS, *LINEAR):
        return None
    activation, weight = node.input[0], node.input[1]
    reason = _why_not(graph, node)
    return Layer(
        name=name,
        operator=operator,
        activation=activation,
        weight=weight,
        axis=0 if reason else channel_axis(graph, node),
        output=node.output[0],
        reason=reason,
    )


def channel_axis(graph: Graph, node: onnx.NodeProto) -> int:
    """Return the axis of a layer's weight that counts its output channels.

    Conv has [M, C/group, k...], ConvTranspose [C, M/group, k...], Gemm [K, N], or [N, K] with transB,
    MatMul [..., K, N].
    """
    if node.op_type == "MatMul":
        return (graph.rank(node.input[1]) or 2) - 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return 0 if node.op_type == "Conv" else 1


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return a node's attribute, or the default of its operator."""
    import onnx

    found = (a for a in node.attribute if a.name == name)
    return next((onnx.helper.get_attribute_value(a) for a in found), default)


def _why_not(graph: Graph, node: onnx.NodeProto) -> str:
    """Return why a layer cannot run in INT8, empty where it can."""
    import onnx

    activation, weight = node.input[0], node.input[1]
    if graph.is_constant(activation):
        return "its first factor is constant, INT8 needs the weights second"
    if not graph.is_constant(weight):
        return "both of its inputs are computed (as in attention); only weights are quantized ahead of time"
    kind = graph.elem_type(activation) or graph.elem_type(weight)
    if kind != onnx.TensorProto.FLOAT:
        return f"it computes in {onnx.TensorProto.DataType.Name(kind).lower()}, not in float32"
    if node.op_type in LINEAR and graph.rank(weight) not in {None, 2}:
        return "its weight is no matrix, and ONNX Runtime takes scales of output channels for matrices only"
    if node.op_type == "ConvTranspose" and attribute(node, "group", 1) != 1:
        return "TensorRT has one scale per output channel for a transposed convolution without groups only"
    return ""


def _inner_layers(graph: Graph) -> Iterator[Layer]:
    for node in graph.nodes:
        where = f"it is inside of {node.op_type} {node_name(node)!r}, where nothing is quantized"
        for inner in graphs_of(node):
            for one in inner.node:
                if one.op_type in (*CONVOLUTIONS, *LINEAR, *RECURRENT):
                    yield Layer(name=node_name(one), operator=one.op_type, reason=where)
