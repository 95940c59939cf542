"""The layers of a graph that INT8 is about: what they read, what their weights are, what surrounds them."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.model_file import ModelFile, opset_of

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

CONVOLUTIONS = ("Conv", "ConvTranspose")
LINEAR = ("MatMul", "Gemm")
_RECURRENT = ("LSTM", "GRU", "RNN")

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """An addition of a convolution's result and a skip branch, which TensorRT fuses into the convolution.

    Attributes:
        name: Name of the Add.
        layer: Name of the convolution that takes it in.
        skip: The other summand: what has to be in INT8 for that.
    """

    name: str
    layer: str
    skip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """A Concat of computed values.

    Attributes:
        name: Name of the Concat.
        output: The tensor it makes.
        parts: Computed tensors that it joins.
        feeders: Layers whose results reach it without passing another layer.
        at_output: Whether it reaches an output of the model without passing another layer.
    """

    name: str
    output: str
    parts: tuple[str, ...]
    feeders: tuple[str, ...]
    at_output: bool


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
    if operator in _RECURRENT:
        return Layer(name=name, operator=operator, reason="recurrent layers have no INT8 form in ONNX's Q/DQ")
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
    if node.op_type in LINEAR and (rank := graph.rank(weight)) is not None and rank < 2:
        return "its weight is a vector, which has no output channels"
    if node.op_type == "ConvTranspose" and attribute(node, "group", 1) != 1:
        return "TensorRT has one scale per output channel for a transposed convolution without groups only"
    return ""


def _inner_layers(graph: Graph) -> Iterator[Layer]:
    for node in graph.nodes:
        where = f"it is inside of {node.op_type} {node_name(node)!r}, where nothing is quantized"
        for inner in graphs_of(node):
            for one in inner.node:
                if one.op_type in (*CONVOLUTIONS, *LINEAR, *_RECURRENT):
                    yield Layer(name=node_name(one), operator=one.op_type, reason=where)


def find_residuals(graph: Graph, layers: Iterable[Layer]) -> tuple[Residual, ...]:
    """Return the additions that TensorRT takes into a convolution when the skip branch is in INT8.

    Where both summands are convolutions, the deeper one takes the addition in: it is the block's
    body, the other the projection of its skip branch.

    Source:
        TensorRT developer guide, "Q/DQ Layer-Placement Recommendations".
    """
    convolutions = {layer.output: layer.name for layer in layers if layer.operator == "Conv"}
    depth = functools.partial(_depth, _depths(graph))
    found = []
    for node in graph.nodes:
        if node.op_type != "Add" or any(graph.is_constant(name) for name in node.input):
            continue
        bodies = [name for name in node.input if _body(graph, name) in convolutions]
        if not bodies or node.input[0] == node.input[1] or not _same_rank(graph, node):
            continue
        body = max(bodies, key=depth)
        skip = next(name for name in node.input if name != body)
        found.append(Residual(name=node_name(node), layer=convolutions[_body(graph, body)], skip=skip))
    return tuple(found)


def _body(graph: Graph, name: str) -> str:
    """Return the result that becomes a summand: a layer's, also through a BatchNormalization.

    "" where somebody else reads it too, since then it has to exist by itself.
    """
    while len(graph.readers[name]) == 1 and name not in graph.outputs:
        node = graph.producer.get(name)
        if node is None or node.op_type != "BatchNormalization":
            return name
        name = node.input[0]
    return ""


def _same_rank(graph: Graph, node: onnx.NodeProto) -> bool:
    first, second = (graph.rank(name) for name in node.input)
    return None in {first, second} or first == second


def _depths(graph: Graph) -> dict[str, int]:
    """Return the number of nodes on the longest way from an input to each tensor."""
    depths: dict[str, int] = {}
    for node in graph.nodes:
        depth = 1 + max((depths.get(name, 0) for name in node.input), default=0)
        depths |= dict.fromkeys(node.output, depth)
    return depths


def _depth(depths: dict[str, int], name: str) -> int:
    return depths.get(name, 0)


def find_joints(graph: Graph, layers: Iterable[Layer]) -> tuple[Joint, ...]:
    """Return the Concats of two or more computed float tensors."""
    import onnx

    by_output = {layer.output: layer.name for layer in layers if layer.output}
    found = []
    for node in graph.nodes:
        parts = tuple(dict.fromkeys(name for name in node.input if not graph.is_constant(name)))
        if node.op_type != "Concat" or len(parts) < 2:
            continue
        if graph.elem_type(node.output[0]) != onnx.TensorProto.FLOAT:
            continue
        found.append(
            Joint(
                name=node_name(node),
                output=node.output[0],
                parts=parts,
                feeders=tuple(sorted(by_output[name] for name in _upstream(graph, parts, set(by_output)))),
                at_output=_reaches_output(graph, node.output[0], set(by_output)),
            )
        )
    return tuple(found)


def first_and_last(graph: Graph, layers: Iterable[Layer]) -> tuple[str, ...]:
    """Return the layers before which, or after which, there is no other: those that hurt most in INT8.

    A layer that reads the model's input sees raw data; one whose result becomes an output, by way of
    a sigmoid, a softmax or the decoding of boxes, has nothing after it to even out its error.
    """
    layers = list(layers)
    outputs = {layer.output for layer in layers if layer.output}

    def at_an_end(layer: Layer) -> bool:
        first = not _upstream(graph, [layer.activation], outputs)
        return first or _reaches_output(graph, layer.output, outputs)

    return tuple(layer.name for layer in layers if not layer.reason and at_an_end(layer))


def _upstream(graph: Graph, names: Iterable[str], stops: set[str]) -> set[str]:
    """Return the tensors of ``stops`` that lie upstream of some tensors, with none of them between."""
    todo, seen, found = list(names), set(), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in stops:
            found.add(name)
        elif (node := graph.producer.get(name)) is not None:
            todo += reads(node)
    return found


def _reaches_output(graph: Graph, name: str, stops: set[str]) -> bool:
    """Whether a tensor reaches an output of the model without passing a layer."""
    todo, seen = [name], set()
    while todo:
        name = todo.pop()
        if name in graph.outputs:
            return True
        for node in graph.readers[name]:
            if node.output and node.output[0] not in stops:
                todo += [n for n in node.output if n not in seen]
                seen |= set(node.output)
    return False
