"""Static INT8: Q/DQ pairs where TensorRT takes them, from ranges that calibration measured.

TensorRT's integers are symmetric: int8, zero point 0. ONNX Runtime's CPU kernels have uint8 activations; it
fuses a layer with the pairs around it, and a Relu into them, only where the Relu's range begins at the
lowest integer. A ResNet-50 of symmetric pairs is slower there than in FP32, and one of uint8 faster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.biases import bias_of, breaking_add
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.edit import Editor
from triton_toolkit.optimise.int8_plan import Int8Plan, Ranges, plan_int8
from triton_toolkit.optimise.layers import Graph, Layer, check_floating_point, find_layers, node_name
from triton_toolkit.optimise.model_file import PER_CHANNEL_OPSET, ModelFile, read_model, write_model
from triton_toolkit.optimise.surroundings import first_and_last
from triton_toolkit.optimise.weights import LEVELS, REDUCED_LEVELS, quantize_weight, scale_of

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray


def to_int8(
    model: Path,
    out: Path,
    ranges: Ranges,
    *,
    keep: Collection[str] = (),
    reduce_range: bool = False,
    unsigned: bool = False,
) -> Converted:
    """Write a model's INT8 variant: explicit Q/DQ, the rest in FP32.

    Activations are symmetric with zero point 0 and one scale a tensor; weights are stored as int8
    with one scale an output channel; biases stay in floating point. Which layers is ``plan_int8``'s
    choice. Inputs, outputs and the names of all tensors and nodes stay.

    Args:
        model: The FP32 file.
        out: The file to write; large weights go beside it.
        ranges: Tensor -> (low, high), as ``calibrate`` gives them.
        keep: Names of nodes that stay in FP32.
        reduce_range: Weights of 7 bits, for CPUs without VNNI (see ``weights.REDUCED_LEVELS``).
        unsigned: Activations as uint8 over their range, for ONNX Runtime's CPU kernels alone.

    Raises:
        ExportError: The model is quantized already, has nothing that could run in INT8, or cannot be
            brought to opset 13; a range is missing; ``keep`` names no node.
    """
    file = read_model(model, opset=PER_CHANNEL_OPSET)
    plan = planned(file, model.name, ranges, keep)
    rewrite(file, plan, ranges, levels=REDUCED_LEVELS if reduce_range else LEVELS, unsigned=unsigned)
    write_model(file.model, out)
    lowered = [layer.name for layer in plan.layers] + [residual.name for residual in plan.residuals]
    return Converted(kept=plan.kept, lowered=tuple(lowered))


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What of a model can run in INT8.

    Attributes:
        layers: Names of the layers, in the graph's order.
        ends: Those of them that are first or last: the ones to give back first.
        others: Layer -> why it cannot.
    """

    layers: tuple[str, ...]
    ends: tuple[str, ...]
    others: dict[str, str] = field(default_factory=dict)


def int8_candidates(model: Path) -> Candidates:
    """Return which layers of a model can run in INT8, whatever their ranges."""
    graph = Graph(read_model(model, opset=PER_CHANNEL_OPSET))
    layers = find_layers(graph)
    return Candidates(
        layers=tuple(layer.name for layer in layers if not layer.reason),
        ends=first_and_last(graph, layers),
        others={layer.name: layer.reason for layer in layers if layer.reason},
    )


def planned(
    file: ModelFile, name: str, ranges: Ranges, keep: Collection[str], *, largest: float = float("inf")
) -> Int8Plan:
    """Return the plan of a model that is to have INT8 layers.

    Raises:
        ExportError: As ``to_int8`` says. A search that keeps all layers gets a plan without any.
    """
    graph = Graph(file)
    check_floating_point(graph)
    plan = plan_int8(graph, ranges, keep, largest=largest)
    if not plan.layers and not set(keep) & set(plan.kept):
        reasons = "; ".join(f"{layer!r}: {reason}" for layer, reason in list(plan.kept.items())[:5])
        raise ExportError(
            f"{name} has no layer that can run in INT8" + (f": {reasons}" if reasons else ""),
            hint="serve it in fp32 or fp16",
        )
    return plan


def rewrite(
    file: ModelFile,
    plan: Int8Plan,
    ranges: Ranges,
    *,
    levels: int,
    half: bool = False,
    unsigned: bool = False,
) -> None:
    """Put a plan's Q/DQ pairs into a model, in place.

    Args:
        file: The model, as it was planned for.
        plan: Which layers and additions.
        ranges: Ranges of their inputs.
        levels: Steps of a weight on each side of zero.
        half: Scales are values that float16 has, so that a conversion to FP16 keeps them.
        unsigned: Activations are uint8 over their range.
    """
    _Rewriter(file, ranges, levels=levels, half=half, unsigned=unsigned).apply(plan)


class _Rewriter:
    """Changes the graph; every tensor gets one pair, however many nodes read it."""

    def __init__(self, file: ModelFile, ranges: Ranges, *, levels: int, half: bool, unsigned: bool) -> None:
        self._graph = Graph(file)
        self._editor = Editor(self._graph)
        self._ranges = ranges
        self._levels = levels
        self._half = half
        self._unsigned = unsigned
        self._done: dict[tuple[str, int | None], str] = {}

    def apply(self, plan: Int8Plan) -> None:
        layers = {layer.output: layer for layer in plan.layers}
        skips = {residual.name: residual.skip for residual in plan.residuals}
        biased = {node_name(add): layer for layer in plan.layers if (add := breaking_add(self._graph, layer))}
        for node in self._graph.nodes:
            layer, skip = layers.get(node.output[0]), skips.get(node_name(node))
            if layer is not None:
                node.input[:2] = [self._activation(layer.activation), self._weight(layer)]
            elif skip is not None:
                node.input[:] = [self._activation(name) if name == skip else name for name in node.input]
            if (before := biased.get(node_name(node))) is not None:
                self._widen_bias(node, before)
            self._editor.append(node)
        self._editor.finish()

    def _widen_bias(self, add: onnx.NodeProto, layer: Layer) -> None:
        """Give a constant bias the rank of the result, so that ONNX Runtime leaves the addition alone."""
        bias = bias_of(add, layer)
        value = self._graph.value(bias)
        wide = value.reshape([1] * ((self._graph.rank(layer.output) or 1) - value.ndim) + list(value.shape))
        name = self._editor.constant(f"{bias}/wide", wide)
        add.input[:] = [name if one == bias else one for one in add.input]

    def _activation(self, tensor: str) -> str:
        """Return the tensor as INT8 gives it back; adds the pair on first use."""
        key = (tensor, None)
        if key not in self._done:
            parameters = self._parameters(tensor, *self._steps(tensor))
            integers = self._editor.new(f"{tensor}/int8")
            self._editor.add("QuantizeLinear", [tensor, *parameters], integers)
            self._done[key] = self._dequantize(tensor, [integers, *parameters])
        return self._done[key]

    def _steps(self, tensor: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the scale and the zero point of an activation."""
        import numpy as np

        low, high = self._ranges[tensor]
        if not self._unsigned:
            magnitude = np.asarray(max(abs(low), abs(high)), np.float32)
            return scale_of(magnitude, half=self._half), np.asarray(0, np.int8)
        low, high = min(low, 0.0), max(high, 0.0)  # 0 itself is an integer: Relu and padding give it
        scale = scale_of(np.asarray(high - low, np.float32), 255)
        return scale, np.asarray(np.clip(np.rint(-low / scale), 0, 255), np.uint8)

    def _weight(self, layer: Layer) -> str:
        import numpy as np

        key = (layer.weight, layer.axis)
        if key not in self._done:
            found = quantize_weight(
                layer.weight,
                self._graph.value(layer.weight),
                layer.axis,
                levels=self._levels,
                half=self._half,
            )
            integers = self._editor.constant(f"{layer.weight}/int8", found.integers)
            parameters = self._parameters(layer.weight, found.scales, np.zeros(found.scales.shape, np.int8))
            self._done[key] = self._dequantize(layer.weight, [integers, *parameters], axis=layer.axis)
        return self._done[key]

    def _parameters(self, tensor: str, scales: NDArray[Any], zero_points: NDArray[Any]) -> list[str]:
        return [
            self._editor.constant(f"{tensor}/int8_scale", scales),
            self._editor.constant(f"{tensor}/int8_zero_point", zero_points),
        ]

    def _dequantize(self, tensor: str, inputs: list[str], axis: int | None = None) -> str:
        output = self._editor.new(f"{tensor}/dequantized")
        if axis is None:
            self._editor.add("DequantizeLinear", inputs, output)
        else:
            self._editor.add("DequantizeLinear", inputs, output, axis=axis)
        return output
