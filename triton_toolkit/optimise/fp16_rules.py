"""What a node itself has against FP16: the constants it reads, the values it reads, makes and holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from triton_toolkit.optimise.fp16_bounds import bounds_by_constants
from triton_toolkit.optimise.fp16_limits import (
    LIMIT,
    VANISHING,
    constant_problem,
    range_problem,
    scale_problem,
    too_large,
)
from triton_toolkit.optimise.layers import Graph, attribute
from triton_toolkit.optimise.ranges import TensorRange, range_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx

    from triton_toolkit.optimise.fp16_masks import Place
    from triton_toolkit.optimise.fp16_slots import NodeSlots

_EACH_COUNTS = (
    *("Mul", "Div", "Pow", "Min", "Max", "Clip", "BatchNormalization"),
    *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
)
"""Operators for which each value of a constant counts by itself."""

_NORMS = (
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("LpNormalization", "MeanVarianceNormalization"),
)
_MEANS = ("ReduceMean", "GlobalAveragePool")
_SUMS = (*_MEANS, "ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
_MOST_SUMMANDS = 4096
"""Terms of a sum: what is below 1/2048 of a running FP16 sum is lost from it."""

_ROUNDING = ("Floor", "Ceil", "Round", "Mod")
_PERIODIC = ("Sin", "Cos", "Tan")
_LARGEST_ANGLE = 8.0
"""Radians; beyond it FP16 rounds an angle by more than 1/256."""

_EXPONENTIALS = ("Softplus", "Mish", "ReduceLogSumExp")
_LARGEST_EXPONENT = 80.0
"""Beyond it exp leaves float32 too; keeps Python's from raising."""

_USUAL_HEAD_SIZE = 128
DIVISORS = {"Div": 1, "Reciprocal": 0, "Log": 0}
"""Operators with a pole at 0, and the input that must not become 0."""


class Ranges:
    """What tensors hold: as measured, as constants are or make it, as a DequantizeLinear's scale allows.

    Args:
        graph: The graph.
        measured: Tensor -> range.
    """

    def __init__(self, graph: Graph, measured: Mapping[str, TensorRange]) -> None:
        self._graph = graph
        self._bounds = bounds_by_constants(graph, measured)
        self._known: dict[str, TensorRange | None] = {**measured, **self._bounds}

    def origin(self, name: str) -> str:
        """Return where a range is from, in words, if not from measuring it; else an empty text."""
        return "by the constants that it comes from" if name in self._bounds else ""

    def __call__(self, name: str) -> TensorRange | None:
        """Return the range of a float32 tensor; None where nothing is known of it."""
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> TensorRange | None:
        if self._graph.is_constant(name):
            value = self._graph.value(name)
            return range_of(value) if value.dtype.kind == "f" else None
        producer = self._graph.producer.get(name)
        if producer is not None and producer.op_type == "DequantizeLinear":
            return self._dequantized(producer)
        return None

    def _dequantized(self, node: onnx.NodeProto) -> TensorRange | None:
        import numpy as np
        import onnx

        kinds = onnx.TensorProto
        limits: dict[int, tuple[int, int]] = {kinds.INT8: (-128, 127), kinds.UINT8: (0, 255)}
        integers = limits.get(self._graph.elem_type(node.input[0]))
        if integers is None or not all(self._graph.is_constant(name) for name in node.input[1:] if name):
            return None
        scale = np.abs(self._graph.value(node.input[1]).astype(np.float64))
        zero = self._graph.value(node.input[2]).astype(np.float64) if len(node.input) > 2 else 0.0
        ends = [float(np.max(np.abs(end - zero) * scale, initial=0.0)) for end in integers]
        smallest = float(np.min(scale, initial=np.inf))
        return TensorRange(low=-max(ends), high=max(ends), absmax=max(ends), smallest_nonzero=smallest)


class NodeRules:
    """Judges single nodes.

    Args:
        graph: The graph.
        slots: Its nodes' positions.
        ranges: What its tensors hold.
        cut: Inputs that are cut to what FP16 holds.
        masked: Tensors whose range is that of a mask that is cut.
    """

    def __init__(
        self,
        graph: Graph,
        slots: Sequence[NodeSlots],
        ranges: Ranges,
        *,
        cut: Collection[Place],
        masked: Collection[str],
    ) -> None:
        self._graph = graph
        self._slots = slots
        self._range = ranges
        self._cut = cut
        self._masked = masked

    def problem(self, index: int) -> str:
        """Return the first reason why a node cannot be FP16, empty where it can."""
        if self._slots[index].problem:
            return self._slots[index].problem
        rules = (
            self._runtime_problems,
            self._constant_problems,
            self._range_problems,
            self._inner_problems,
        )
        return next((reason for rule in rules for reason in rule(index) if reason), "")

    def _runtime_problems(self, index: int) -> Iterator[str]:
        """Yield what ONNX Runtime cannot do, though the graph is right.

        Source:
            microsoft/onnxruntime issue 28392; seen in 1.32.0: on x86 its optimizer crashes the process
            where a Transpose in FP16 moves the first axis next to the last, or behind it, for a MatMul.
        """
        node = self._slots[index].node
        order = list(attribute(node, "perm", [])) if node.op_type == "Transpose" else []
        last = len(order) - 1
        moves_first = order in ([*range(1, last), 0, last], [*range(1, last + 1), 0])
        if last >= 2 and moves_first and self._is_read_by_matmul(node.output[0]):
            yield "ONNX Runtime crashes on x86 where such a Transpose is FP16 and a MatMul reads it"

    def _is_read_by_matmul(self, name: str) -> bool:
        return any(reader.op_type == "MatMul" for reader in self._graph.readers[name])

    def _constant_problems(self, index: int) -> Iterator[str]:
        node = self._slots[index].node
        for position, name in self._followers(index):
            if (index, position) in self._cut or not is_plain_constant(self._graph, name):
                continue
            value = self._graph.value(name)
            if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
                yield scale_problem(name, value)
            else:
                yield constant_problem(name, value, each=node.op_type in _EACH_COUNTS)
        fill = attribute(node, "value", None) if node.op_type == "ConstantOfShape" else None
        if fill is not None:
            import onnx

            yield constant_problem(node.output[0], onnx.numpy_helper.to_array(fill), each=True)

    def _range_problems(self, index: int) -> Iterator[str]:
        slots = self._slots[index]
        for position, name in self._followers(index):
            if not is_plain_constant(self._graph, name) and (index, position) not in self._cut:
                yield self._range_problem(name)
        for name, kind in zip(slots.node.output, slots.outputs, strict=True):
            if kind == "follows":
                yield self._range_problem(name)
        if (divisor := DIVISORS.get(slots.node.op_type)) is not None:
            name = slots.node.input[divisor]
            held = self._range(name)
            if held is not None and 0 < held.smallest_nonzero < VANISHING:
                yield f"{name!r} comes down to {held.smallest_nonzero:.3g}, which may become 0 in FP16"

    def _range_problem(self, name: str) -> str:
        if name in self._masked:
            return ""
        problem, origin = range_problem(name, self._range(name)), self._range.origin(name)
        return f"{problem} ({origin})" if problem and origin else problem

    def _inner_problems(self, index: int) -> Iterator[str]:
        """Yield what a node holds on the way from its inputs to its outputs."""
        node = self._slots[index].node
        held = self._range(node.input[0]) if node.input else None
        if held is None:
            return
        for what, magnitude in self._inner_values(node, held):
            if magnitude > LIMIT:
                yield f"{what} reach {too_large(magnitude)}"
        summands = self._summands(node, held)
        if summands > _MOST_SUMMANDS:
            yield f"it adds up {summands} values"
        if node.op_type in _PERIODIC and held.absmax > _LARGEST_ANGLE:
            yield f"its angle reaches {held.absmax:.4g} rad, which FP16 rounds by {held.absmax / 2048:.2g}"
        if node.op_type in _ROUNDING:
            yield "it rounds to whole numbers, where a small error makes a whole step"

    def _inner_values(self, node: onnx.NodeProto, held: TensorRange) -> Iterator[tuple[str, float]]:
        result = self._range(node.output[0])
        if node.op_type in _NORMS:
            yield "the squares inside of it", held.absmax**2
        if node.op_type == "ReduceL2" and result is not None:
            yield "the squares inside of it", result.absmax**2
        if node.op_type in _MEANS and result is not None:
            yield "the sums behind its means", result.absmax * self._summands(node, held)
        if node.op_type == "AveragePool" and result is not None:
            yield "the sums behind its means", result.absmax * math.prod(attribute(node, "kernel_shape", [1]))
        if node.op_type in _EXPONENTIALS:
            yield "the exponentials inside of it", math.exp(min(held.high, _LARGEST_EXPONENT))
        if node.op_type == "Attention" and (key := self._range(node.input[1])) is not None:
            yield "the scores inside of it", held.absmax * key.absmax * math.sqrt(self._head_size(node))

    def _head_size(self, node: onnx.NodeProto) -> int:
        info = self._graph.file.tensors.get(node.input[0])
        last = info.shape[-1] if info is not None and info.shape else None
        return last if isinstance(last, int) else _USUAL_HEAD_SIZE

    def _summands(self, node: onnx.NodeProto, held: TensorRange) -> int:
        result = self._range(node.output[0])
        if node.op_type not in _SUMS or result is None:
            return 1
        return held.elements // max(1, result.elements)

    def _followers(self, index: int) -> Iterator[tuple[int, str]]:
        slots = self._slots[index]
        for position, (name, kind) in enumerate(zip(slots.node.input, slots.inputs, strict=True)):
            if kind == "follows":
                yield position, name


def is_plain_constant(graph: Graph, name: str) -> bool:
    """Whether a tensor is a weight or the value of a Constant node, which can be stored as FP16."""
    producer = graph.producer.get(name)
    return name in graph.initializers or (producer is not None and producer.op_type == "Constant")
