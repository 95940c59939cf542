"""Write a graph that computes in bfloat16 as one that computes in float32, which is everywhere.

ONNX Runtime's CPU has next to no operators for bfloat16, and float32 has all of its values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_toolkit.export.graph import all_graphs, all_tensors

if TYPE_CHECKING:
    import onnx

_TYPE_ATTRIBUTES = ("to", "dtype")
"""Attributes that name an element type: of Cast, and of operators that make tensors."""


def has_bfloat16(model: onnx.ModelProto) -> bool:
    """Say whether a graph holds bfloat16 weights or casts to it; external data need not be loaded."""
    import onnx

    narrow = onnx.TensorProto.BFLOAT16
    nodes = (node for graph in all_graphs(model) for node in graph.node)
    casts = (a.i == narrow for node in nodes for a in node.attribute if a.name in _TYPE_ATTRIBUTES)
    return any(tensor.data_type == narrow for tensor in all_tensors(model)) or any(casts)


def widen_bfloat16(model: onnx.ModelProto) -> None:
    """Replace bfloat16 by float32 everywhere, in place; external data must be loaded."""
    import onnx

    narrow, wide = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    for tensor in all_tensors(model):
        if tensor.data_type == narrow:
            array = onnx.numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    for graph in all_graphs(model):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name in _TYPE_ATTRIBUTES and attribute.i == narrow:
                    attribute.i = wide
        if isinstance(graph, onnx.GraphProto):
            for value in [*graph.input, *graph.output, *graph.value_info]:
                if value.type.tensor_type.elem_type == narrow:
                    value.type.tensor_type.elem_type = wide
