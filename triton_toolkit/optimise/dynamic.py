"""Dynamic INT8 of linear layers, for CPUs: each input is quantized as it comes, without calibration."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.edit import Editor
from triton_toolkit.optimise.int8_plan import KEPT, check_keep
from triton_toolkit.optimise.layers import (
    LINEAR,
    Graph,
    Layer,
    attribute,
    check_floating_point,
    find_layers,
)
from triton_toolkit.optimise.model_file import read_model, write_model
from triton_toolkit.optimise.weights import LEVELS, REDUCED_LEVELS, Quantized, quantize_weight

if TYPE_CHECKING:
    import onnx

_OPSET = 11
"""First opset with DynamicQuantizeLinear."""


def to_int8_dynamic(
    model: Path, out: Path, *, keep: Collection[str] = (), reduce_range: bool = False
) -> Converted:
    """Write a model whose MatMul and Gemm with constant weights run in INT8 on the CPU.

    Inputs become uint8 with a scale and zero point computed from each, weights are int8 with one
    scale an output column; the sum is in int32, so that only the rounding of the two factors is
    lost. The integer product has the layer's name. Convolutions stay in floating point: one scale
    for all channels of an input ruins depthwise ones. The nodes are those that ONNX Runtime fuses
    into one kernel. TensorRT takes none of them.

    Args:
        model: The FP32 file.
        out: The file to write; large weights go beside it.
        keep: Names of nodes that stay in FP32.
        reduce_range: Weights of 7 bits, for CPUs without VNNI (see ``weights.REDUCED_LEVELS``).

    Raises:
        ExportError: The model is quantized already or has no layer to quantize; ``keep`` names no node.
    """
    file = read_model(model, opset=_OPSET)
    graph = Graph(file)
    check_floating_point(graph)
    check_keep(graph, keep)
    layers = find_layers(graph)
    kept = {layer.name: reason for layer in layers if (reason := _why_not(graph, layer, keep))}
    chosen = {layer.output: layer for layer in layers if layer.name not in kept}
    if not chosen and not set(keep) & set(kept):
        raise ExportError(
            f"{model.name} has no MatMul or Gemm with constant weights, which is what int8-dynamic is for",
            hint="use int8 with calibration data, or serve it in fp32",
        )
    _Rewriter(graph, LEVELS if not reduce_range else REDUCED_LEVELS).apply(chosen)
    write_model(file.model, out)
    return Converted(kept=kept, lowered=tuple(layer.name for layer in chosen.values()))


def _why_not(graph: Graph, layer: Layer, keep: Collection[str]) -> str:
    """Return why a layer stays in floating point, empty where it does not."""
    if layer.reason or layer.name in keep:
        return layer.reason or KEPT
    if layer.operator not in LINEAR:
        return "convolutions stay in floating point in dynamic INT8: all channels would share one scale"
    if attribute(graph.producer[layer.output], "transA", 0):
        return "it transposes its input"
    return ""


class _Rewriter:
    """Replaces layers by their integer form; every input is quantized once for all that read it."""

    def __init__(self, graph: Graph, levels: int) -> None:
        self._graph = graph
        self._editor = Editor(graph)
        self._levels = levels
        self._inputs: dict[str, tuple[str, str, str]] = {}
        self._weights: dict[tuple[str, bool, float], tuple[str, str]] = {}

    def apply(self, layers: dict[str, Layer]) -> None:
        for node in self._graph.nodes:
            layer = layers.get(node.output[0])
            if layer is None:
                self._editor.append(node)
            else:
                self._replace(node, layer)
        self._editor.finish()

    def _replace(self, node: onnx.NodeProto, layer: Layer) -> None:
        integers, scale, zero_point = self._input(layer.activation)
        weight, scales = self._weight(node, layer)
        new, add = self._editor.new, self._editor.add
        total, number, factor = (new(f"{layer.output}/{part}") for part in ("int32", "float", "scale"))
        add("MatMulInteger", [integers, weight, zero_point], total, name=layer.name)
        add("Cast", [total], number, to=1)
        add("Mul", [scale, scales], factor)
        bias = self._bias(node)
        product = new(f"{layer.output}/product") if bias else layer.output
        add("Mul", [number, factor], product)
        if bias:
            add("Add", [product, bias], layer.output)

    def _input(self, tensor: str) -> tuple[str, str, str]:
        if tensor not in self._inputs:
            new = self._editor.new
            names = (new(f"{tensor}/uint8"), new(f"{tensor}/scale"), new(f"{tensor}/zero_point"))
            self._editor.add("DynamicQuantizeLinear", [tensor], *names)
            self._inputs[tensor] = names
        return self._inputs[tensor]

    def _weight(self, node: onnx.NodeProto, layer: Layer) -> tuple[str, str]:
        """Return the names of the integers [K, N] and of the scales [N], Gemm's alpha in the latter."""
        import numpy as np

        transposed = bool(attribute(node, "transB", 0))
        alpha = float(attribute(node, "alpha", 1.0))
        key = (layer.weight, transposed, alpha)
        if key not in self._weights:
            weight = self._graph.value(layer.weight)
            matrix = weight.T if transposed else weight
            found: Quantized = quantize_weight(layer.weight, matrix, 1, levels=self._levels)
            self._weights[key] = (
                self._editor.constant(f"{layer.weight}/int8", np.ascontiguousarray(found.integers)),
                self._editor.constant(f"{layer.weight}/int8_scale", found.scales * np.float32(alpha)),
            )
        return self._weights[key]

    def _bias(self, node: onnx.NodeProto) -> str:
        """Return the tensor that Gemm adds, times its beta; "" where there is none."""
        import numpy as np

        bias = node.input[2] if len(node.input) > 2 else ""
        beta: Any = attribute(node, "beta", 1.0)
        if not bias or beta == 1.0:
            return str(bias)
        scaled = self._editor.new(f"{node.output[0]}/bias")
        factor = self._editor.constant(f"{node.output[0]}/beta", np.asarray(beta, np.float32))
        self._editor.add("Mul", [bias, factor], scaled)
        return scaled
