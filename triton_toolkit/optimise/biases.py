"""Additions of a bias that ONNX Runtime takes into a layer in a way that breaks it in INT8.

ONNX Runtime makes a Gemm of a MatMul and the Add of a vector after it. Where the input is no matrix it
puts a Reshape before the Gemm, and so between DequantizeLinear and its layer; a Q/DQ pair that it then
adds around this Reshape has, from opset 21 on, an ``output_dtype`` that another of its rewrites for x86
contradicts, and it refuses the model.

Source:
    microsoft/onnxruntime issues 25526 and 27845; seen in 1.32.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_toolkit.optimise.layers import Graph, Layer
from triton_toolkit.optimise.model_file import opset_of

if TYPE_CHECKING:
    import onnx

_TYPED_QUANTIZE_OPSET = 21
"""First opset whose QuantizeLinear has ``output_dtype``."""


def breaking_add(graph: Graph, layer: Layer) -> onnx.NodeProto | None:
    """Return the Add after a layer that ONNX Runtime would fuse with it so that it refuses the model."""
    if layer.operator != "MatMul" or opset_of(graph.file.model) < _TYPED_QUANTIZE_OPSET:
        return None
    shape = graph.file.tensors[layer.activation].shape if layer.activation in graph.file.tensors else None
    if shape is None or len(shape) == 2 or not all(isinstance(size, int) for size in shape):
        return None
    adds = (node for node in graph.readers[layer.output] if node.op_type == "Add")
    return next((node for node in adds if graph.rank(bias_of(node, layer)) in {None, 1}), None)


def bias_of(add: onnx.NodeProto, layer: Layer) -> str:
    """Return what an Add adds to a layer's result."""
    return next((str(name) for name in add.input if name != layer.output), layer.output)


def can_widen(graph: Graph, add: onnx.NodeProto, layer: Layer) -> bool:
    """Whether the bias may become [1, ..., 1, N], which is not fused: it is constant, the result has axes."""
    return (graph.rank(layer.output) or 0) > 1 and graph.is_constant(bias_of(add, layer))
