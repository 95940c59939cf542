"""Decide which layers run in INT8, from the graph and the ranges that calibration measured."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.biases import breaking_add, can_widen
from triton_toolkit.optimise.layers import Graph, Layer, find_layers, node_name
from triton_toolkit.optimise.surroundings import Joint, Residual, find_joints, find_residuals
from triton_toolkit.optimise.weights import LEVELS

Ranges = Mapping[str, tuple[float, float]]
"""Tensor -> lowest and highest value that INT8 has to hold; beyond them it is clipped."""

MIXED_RATIO = 16.0
"""Tensors whose magnitudes differ by more than this share no scale: the smaller one would have fewer
than 8 of the 127 steps. Scores in 0..1 beside coordinates in 0..640 have a fifth of one step."""

KEPT = "kept in floating point as asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Int8Plan:
    """What becomes INT8, and what does not.

    Attributes:
        layers: Layers whose input and weight are quantized.
        residuals: Additions whose skip branch is quantized.
        kept: Layer -> why it stays in floating point.
    """

    layers: tuple[Layer, ...]
    residuals: tuple[Residual, ...]
    kept: dict[str, str]


def tensors_to_calibrate(graph: Graph) -> tuple[str, ...]:
    """Return the tensors whose ranges ``plan_int8`` needs, sorted."""
    layers = find_layers(graph)
    names = {layer.activation for layer in layers if not layer.reason}
    names |= {residual.skip for residual in find_residuals(graph, _possible(layers))}
    names |= {part for joint in find_joints(graph, layers) for part in joint.parts}
    return tuple(sorted(names))


def plan_int8(
    graph: Graph, ranges: Ranges, keep: Collection[str] = (), *, largest: float = math.inf
) -> Int8Plan:
    """Choose the layers.

    The input of a layer and its weight are quantized, its output is not: TensorRT moves the Q of the
    next layer back over what lies between, and rounds once instead of twice. In a residual addition
    only the skip branch is quantized, so that the addition fuses into its convolution.

    Args:
        graph: The model.
        ranges: Ranges of at least ``tensors_to_calibrate``.
        keep: Names of nodes that stay in floating point.
        largest: Layers whose input exceeds this stay in floating point.

    Raises:
        ExportError: ``keep`` names a node that is not there, or a range is missing.
    """
    check_keep(graph, keep)
    layers = find_layers(graph)
    joints = {joint.output: joint for joint in find_joints(graph, layers)}
    why = _Reasons(graph, ranges, joints, largest)
    heads = why.mixed_heads()
    chosen, kept = [], {}
    for layer in layers:
        reason = layer.reason or (KEPT if layer.name in keep else "")
        reason = reason or heads.get(layer.name, "") or why.not_quantized(layer)
        if reason:
            kept[layer.name] = reason
        else:
            chosen.append(layer)
    # Asked of all layers that could run in INT8, as calibration did: which summand is the body, and which
    # the skip branch with a range, must not depend on what is kept.
    fusing = {layer.name for layer in chosen}
    residuals = tuple(
        residual
        for residual in find_residuals(graph, _possible(layers))
        if residual.layer in fusing
        and residual.name not in keep
        and not why.unusable(residual.skip, f"addition {residual.name!r}")
    )
    return Int8Plan(layers=tuple(chosen), residuals=residuals, kept=kept)


class _Reasons:
    """Why ranges speak against INT8."""

    def __init__(self, graph: Graph, ranges: Ranges, joints: Mapping[str, Joint], largest: float) -> None:
        self._graph = graph
        self._ranges = ranges
        self._joints = joints
        self._largest = largest

    def not_quantized(self, layer: Layer) -> str:
        """Return why a layer cannot be quantized, or has no scale that serves it; empty where it can."""
        add = breaking_add(self._graph, layer)
        if add is not None and not can_widen(self._graph, add, layer):
            return (
                f"its input has {_dimensions(self._graph, layer)}, and {node_name(add)!r} adds a bias to its "
                "result, which ONNX Runtime on x86 refuses in INT8 (a batch dimension avoids this)"
            )
        if reason := self.unusable(layer.activation, f"layer {layer.name!r}"):
            return f"its input {reason}"
        joint = self._joints.get(self._graph.source(layer.activation))
        return f"its input comes from {text}" if joint and (text := self._mixed(joint)) else ""

    def unusable(self, tensor: str, reader: str) -> str:
        """Return what is wrong with a tensor's range; empty where nothing is."""
        magnitude = self._magnitude(tensor, reader)
        if not math.isfinite(magnitude):
            return "is infinite on some of the calibration data"
        if magnitude == 0:
            return "is 0 on all of the calibration data, so nothing is known of its range"
        if magnitude > self._largest:
            return f"reaches {magnitude:.4g}, more than {self._largest:.4g}"
        return ""

    def mixed_heads(self) -> dict[str, str]:
        """Return the layers that compute parts of a mixed output, such as boxes beside scores."""
        found: dict[str, str] = {}
        for joint in self._joints.values():
            if joint.at_output and (text := self._mixed(joint)):
                found |= dict.fromkeys(joint.feeders, f"it computes a part of {text}, an output of the model")
        return found

    def _mixed(self, joint: Joint) -> str:
        sizes = {part: self._magnitude(part, f"Concat {joint.name!r}") for part in self._leaves(joint)}
        sizes = {part: size for part, size in sizes.items() if 0 < size < math.inf}
        if not sizes:
            return ""
        small, large = min(sizes, key=lambda p: (sizes[p], p)), max(sizes, key=lambda p: (sizes[p], p))
        if sizes[large] <= MIXED_RATIO * sizes[small]:
            return ""
        steps = LEVELS * sizes[small] / sizes[large]
        return (
            f"Concat {joint.name!r}, which joins {large!r} (up to {sizes[large]:.4g}) and {small!r} (up to "
            f"{sizes[small]:.4g}); one INT8 scale would leave the latter {steps:.2g} of {LEVELS} steps"
        )

    def _leaves(self, joint: Joint) -> list[str]:
        """Return the parts of a Concat, those of a Concat within it instead of it."""
        leaves: dict[str, None] = {}
        todo, seen = [joint], {joint.output}
        while todo:
            for part in todo.pop().parts:
                inner = self._joints.get(self._graph.source(part))
                if inner is None:
                    leaves[part] = None
                elif inner.output not in seen:
                    seen.add(inner.output)
                    todo.append(inner)
        return list(leaves)

    def _magnitude(self, tensor: str, reader: str) -> float:
        if tensor not in self._ranges:
            raise ExportError(
                f"the calibration table has no range for tensor {tensor!r}, which {reader} reads",
                hint="calibrate this very model again; a table of another model, or one that was cut "
                "short, does not do",
            )
        return max(abs(bound) for bound in self._ranges[tensor])


def _dimensions(graph: Graph, layer: Layer) -> str:
    rank = graph.rank(layer.activation)
    return f"{rank} dimension{'s' * (rank != 1)}"


def _possible(layers: Iterable[Layer]) -> list[Layer]:
    return [layer for layer in layers if not layer.reason]


def check_keep(graph: Graph, keep: Collection[str]) -> None:
    """Check that every node that is to stay in floating point exists.

    Raises:
        ExportError: One does not; offers near names.
    """
    names = [node_name(node) for node in graph.nodes]
    for name in sorted(keep):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3)
            raise ExportError(
                f"node {name!r} is to stay in floating point, but the model has none of that name",
                hint=f"near names: {', '.join(near)}" if near else "names are those of the FP32 ONNX file",
            )
