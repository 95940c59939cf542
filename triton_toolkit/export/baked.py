"""Which nodes of a graph hold a size of the example as a constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_SHAPES = {
    "Reshape": (1,),
    "Expand": (1,),
    "ConstantOfShape": (0,),
    "Tile": (1,),
    "Range": (1,),
    "Slice": (2,),
    "Resize": (3,),
    "Pad": (1,),
    "OneHot": (1,),
}
"""Operator -> the inputs that hold sizes."""

_SHOWN = 4


def holding(model: onnx.ModelProto, sizes: Sequence[int], sources: Mapping[str, str]) -> list[str]:
    """Return the nodes whose constant sizes hold one of these, in words.

    A constant may hold that number by chance; ``differing`` is exact where there is a second export.

    Args:
        model: The graph.
        sizes: Sizes of a dimension that should be dynamic.
        sources: Node name -> place in the user's code.
    """
    constants = _constants(model)
    found = []
    for node in model.graph.node:
        for index in _SHAPES.get(node.op_type, ()):
            values = constants.get(node.input[index]) if index < len(node.input) else None
            if values is not None and any(_holds(values.ravel().tolist(), size) for size in sizes):
                found.append(_words(node, sources, f"has the constant {values.tolist()}"))
    return found


def _holds(values: list[Any], size: int) -> bool:
    """Say whether a size is among some sizes; 1 means something only as the first, the batch."""
    return values[:1] == [1] if size == 1 else size in values


def differing(model: onnx.ModelProto, other: onnx.ModelProto, sources: Mapping[str, str]) -> list[str]:
    """Return the nodes that differ between two exports of a model from examples of other sizes, in words.

    Args:
        model: The graph.
        other: The graph from an example of other sizes.
        sources: Node name -> place in the user's code.
    """
    import numpy as np

    ours, theirs = list(_without_constants(model)), list(_without_constants(other))
    mine, others = _constants(model), _constants(other)
    found = []
    for one, two in zip(ours, theirs, strict=False):
        if one.op_type != two.op_type or len(one.input) != len(two.input):
            found.append(_words(one, sources, "begins another sequence of nodes, as of a loop in Python"))
            break
        for a, b in zip(one.input, two.input, strict=True):
            if (
                a in mine
                and b in others
                and not np.array_equal(mine[a], others[b], equal_nan=_floats(mine[a]))
            ):
                found.append(_words(one, sources, f"has the constant {_shown(mine[a])}"))
                break
    if not found and len(ours) != len(theirs):
        more = ours[len(theirs) :] or theirs[len(ours) :]
        found.append(_words(more[0], sources, "is there for some sizes only"))
    return found


def listed(found: Sequence[str]) -> str:
    """Return the first nodes, and how many there are besides."""
    more = len(found) - _SHOWN
    return "; ".join(found[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _constants(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the constants of the main graph by name; weights in external files are left out."""
    import onnx

    found = {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.data_location != onnx.TensorProto.EXTERNAL
    }
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            found[node.output[0]] = onnx.numpy_helper.to_array(node.attribute[0].t)
    return found


def _without_constants(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for node in model.graph.node if node.op_type != "Constant")


def _floats(array: NDArray[Any]) -> bool:
    import numpy as np

    return bool(np.issubdtype(array.dtype, np.floating))


def _shown(array: NDArray[Any]) -> str:
    return str(array.tolist()) if array.size <= 8 else f"of shape {list(array.shape)}"


def _words(node: onnx.NodeProto, sources: Mapping[str, str], what: str) -> str:
    place = sources.get(node.name)
    return f"node {node.name!r} ({node.op_type}{f', made from {place}' if place else ''}) {what}"
