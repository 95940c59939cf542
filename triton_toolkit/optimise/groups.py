"""The layers that a sensitivity search moves: a node that does the work, and what follows it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.export.graph import load_graph
from triton_toolkit.optimise.layers import node_name, reads

if TYPE_CHECKING:
    import onnx

_HEADS = ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN")
_BEFORE = "(before the first layer)"


@dataclass(frozen=True, slots=True)
class Group:
    """A layer: its name, which is that of the node that does the work, and the names of its nodes."""

    name: str
    nodes: tuple[str, ...]


def group_layers(model: Path, lowered: Collection[str] | None = None) -> tuple[Group, ...]:
    """Cut the main graph into layers, in its order.

    Each convolution, matrix product, recurrent layer and embedding begins one; every other node belongs
    to the last of those that its inputs come from, so a normalization goes with the layer it follows.

    Args:
        model: ONNX file.
        lowered: Nodes that are in question; layers without any of them are left out. None: all are.
    """
    graph = load_graph(model).graph
    weights = {tensor.name for tensor in graph.initializer if len(tensor.dims) > 1}
    members: list[list[str]] = [[]]  # what comes before the first layer
    names = [_BEFORE]
    group_of: dict[str, int] = {}
    for node in graph.node:
        if _is_head(node, weights):
            members.append([])
            names.append(node_name(node))
            group = len(members) - 1
        else:
            group = max((group_of.get(name, 0) for name in reads(node)), default=0)
        members[group].append(node_name(node))
        group_of |= dict.fromkeys(node.output, group)
    groups = [Group(name, tuple(nodes)) for name, nodes in zip(names, members, strict=True) if nodes]
    wanted = None if lowered is None else set(lowered)
    return tuple(group for group in groups if wanted is None or wanted & set(group.nodes))


def _is_head(node: onnx.NodeProto, weights: Collection[str]) -> bool:
    return node.op_type in _HEADS or (node.op_type == "Gather" and node.input[0] in weights)
