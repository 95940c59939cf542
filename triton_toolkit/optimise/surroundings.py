"""What surrounds the layers of a graph: additions that fuse into them, Concats, the model's two ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triton_toolkit.optimise.layers import Graph, Layer, node_name, reads

if TYPE_CHECKING:
    import onnx


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


def find_residuals(graph: Graph, layers: Iterable[Layer]) -> tuple[Residual, ...]:
    """Return the additions that TensorRT takes into a convolution when the skip branch is in INT8.

    Where both summands are convolutions, the deeper one takes the addition in: it is the block's
    body, the other the projection of its skip branch.

    Source:
        TensorRT developer guide, "Q/DQ Layer-Placement Recommendations".
    """
    convolutions = {layer.output: layer.name for layer in layers if layer.operator == "Conv"}
    depths = _depths(graph)
    found = []
    for node in graph.nodes:
        if node.op_type != "Add" or any(graph.is_constant(name) for name in node.input):
            continue
        bodies = [name for name in node.input if _body(graph, name) in convolutions]
        if not bodies or node.input[0] == node.input[1] or not _same_rank(graph, node):
            continue
        body = max(bodies, key=lambda name: depths[name])
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
