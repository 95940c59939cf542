"""What constants say of tensors beyond what was measured: rows of an embedding that no input asked for.

The range of a Gather of a constant is that of the whole constant, and what follows is computed from it
by interval arithmetic as far as that is simple. A bound that is not reached exactly counts only where
it exceeds what was measured by ``_FACTOR``: less is within the two bits that ``fp16_limits.LIMIT``
leaves, and sums of bounds are far above what a network makes of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triton_toolkit.optimise.fp16_limits import LARGEST, LIMIT
from triton_toolkit.optimise.layers import Graph, attribute, graphs_of
from triton_toolkit.optimise.ranges import TensorRange, range_of

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_FACTOR = LARGEST / LIMIT

_PICKS = ("Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress")
"""Operators that take a part of their first input, which part may depend on the model's inputs."""

_MOVES = (
    *_PICKS,
    *("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile"),
    *("DepthToSpace", "SpaceToDepth", "Cast", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"),
    *("Concat", "Where", "Max", "Min", "Pad", "Relu", "Neg", "Abs"),
)
"""Operators whose results have no larger magnitude than their inputs, and reach it."""

_WITHIN = ("AveragePool", "GlobalAveragePool", "ReduceMean")
_NEARLY = ("LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "HardSwish", "Softplus", "Mish", "Swish")
"""Operators whose results exceed neither their input, by more than a tenth, nor 2."""

_BOUNDED = ("Sigmoid", "HardSigmoid", "Tanh", "Softmax", "Erf")
"""Operators whose results are within -1 and 1: the gates of a product."""

_RANDOM = ("RandomNormal", "RandomUniform")
_CHUNK_VALUES = 2**22


def bounds_by_constants(graph: Graph, measured: Mapping[str, TensorRange]) -> dict[str, TensorRange]:
    """Return the ranges of tensors that constants may make larger than they were measured.

    Args:
        graph: The graph.
        measured: Tensor -> range, on some inputs.
    """
    return _Bounds(graph, measured).found()


class _Bounds:
    """Walks the graph once, in its order."""

    def __init__(self, graph: Graph, measured: Mapping[str, TensorRange]) -> None:
        self._graph = graph
        self._measured = measured
        self._fixed = set(graph.initializers)
        self._found: dict[str, TensorRange] = {}
        self._known: dict[str, TensorRange | None] = {}

    def found(self) -> dict[str, TensorRange]:
        for node in self._graph.nodes:
            if self._is_fixed(node):
                self._fixed |= set(node.output)
            elif node.op_type in _PICKS and node.input[0] in self._fixed:
                self._note(node, self._range(node.input[0]), exact=True)
            elif any(name in self._found for name in node.input):
                self._note(node, self._after(node), exact=node.op_type in _MOVES)
        return self._found

    def _is_fixed(self, node: onnx.NodeProto) -> bool:
        """Whether a node computes from constants alone, so that what was measured is all there is."""
        if node.op_type.startswith(_RANDOM) or next(graphs_of(node), None) is not None:
            return False
        return all(name in self._fixed for name in node.input if name)

    def _note(self, node: onnx.NodeProto, bound: TensorRange | None, *, exact: bool) -> None:
        for name in node.output:
            seen = self._measured.get(name)
            if seen is None or bound is None:
                continue
            if exact:
                exceeds = bound.low < seen.low or bound.high > seen.high
            else:
                exceeds = bound.absmax >= _FACTOR * seen.absmax > 0
            if exceeds:
                self._found[name] = replace(seen.joined(bound), elements=seen.elements)

    def _range(self, name: str) -> TensorRange | None:
        """Return a tensor's range: its bound, or as measured, or a constant's own."""
        if name in self._found:
            return self._found[name]
        if name in self._measured:
            return self._measured[name]
        if name not in self._known:
            value = self._graph.value(name) if self._graph.is_constant(name) else None
            is_float = value is not None and value.dtype.kind == "f"
            self._known[name] = _range_by_rows(value) if value is not None and is_float else None
        return self._known[name]

    def _after(self, node: onnx.NodeProto) -> TensorRange | None:
        """Return the bound of a node's result; None where it is not simple."""
        operator, held = node.op_type, self._range(node.input[0])
        if operator in _MOVES:
            return self._joined(node)
        if operator in _WITHIN and held is not None:
            return _up_to(held.absmax)
        if operator in _NEARLY and held is not None:
            return _up_to(max(1.1 * held.absmax, 2.0))
        rule = _RULES.get(operator)
        magnitude = rule(self, node) if rule else None
        return None if magnitude is None else _up_to(magnitude)

    def _joined(self, node: onnx.NodeProto) -> TensorRange | None:
        names = [node.input[0]] if node.op_type not in {"Concat", "Where", "Max", "Min"} else node.input
        ranges = [held for name in names if (held := self._range(name)) is not None]
        if not ranges:
            return None
        joined = ranges[0]
        for other in ranges[1:]:
            joined = joined.joined(other)
        if node.op_type == "Relu":
            low, high = max(0.0, joined.low), max(0.0, joined.high)
            return replace(joined, low=low, high=high, absmax=high)
        return _up_to(joined.absmax) if node.op_type in {"Neg", "Abs"} else joined

    def _sum(self, node: onnx.NodeProto) -> float | None:
        sizes = self._sizes(node)
        return None if sizes is None else sum(sizes)

    def _product(self, node: onnx.NodeProto) -> float | None:
        """Bound a product with constants, gates, or itself; others cancel out, as in a normalization."""
        first, second = node.input
        sizes = self._sizes(node)
        if sizes is None:
            return None
        if first == second or first in self._fixed or second in self._fixed:
            return math.prod(sizes)
        for gate, other in ((first, sizes[1]), (second, sizes[0])):
            if self._is_gate(gate):
                return other
        return None

    def _is_gate(self, name: str) -> bool:
        node = self._graph.producer.get(name)
        return node is not None and node.op_type in _BOUNDED

    def _quotient(self, node: onnx.NodeProto) -> float | None:
        sizes, divisor = self._sizes(node), self._range(node.input[1])
        if sizes is None or divisor is None or node.input[1] not in self._fixed:
            return None
        return sizes[0] / divisor.smallest_nonzero if divisor.smallest_nonzero else None

    def _power(self, node: onnx.NodeProto) -> float | None:
        held, exponent = self._range(node.input[0]), self._range(node.input[1])
        if held is None or exponent is None or node.input[1] not in self._fixed:
            return None
        return _finite(held.absmax, exponent.high) if held.absmax >= 1 else None

    def _total(self, node: onnx.NodeProto) -> float | None:
        held, result = self._range(node.input[0]), self._measured.get(node.output[0])
        if held is None or result is None:
            return None
        return held.absmax * (held.elements // max(1, result.elements))

    def _layer(self, node: onnx.NodeProto) -> float | None:
        """Bound a layer by its input's magnitude times the sum of its weights' magnitudes, and its bias."""
        held, weight = self._range(node.input[0]), node.input[1]
        seen = self._measured.get(node.input[0])
        if held is None or seen is None or held.absmax < _FACTOR * seen.absmax:
            return None
        if not self._graph.is_constant(weight):
            return None
        bias = self._range(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        scale, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
        sums = abs(scale) * _largest_sum(self._graph.value(weight), node)
        return held.absmax * sums + (abs(beta) * bias.absmax if bias else 0.0)

    def _sizes(self, node: onnx.NodeProto) -> list[float] | None:
        ranges = [self._range(name) for name in node.input]
        return [held.absmax for held in ranges if held is not None] if None not in ranges else None


_Rule = Callable[[_Bounds, "onnx.NodeProto"], float | None]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("Add", "Sub", "Sum"), _Bounds._sum),
    **dict.fromkeys(("MatMul", "Gemm", "Conv"), _Bounds._layer),
    **dict.fromkeys(("ReduceSum", "ReduceL1"), _Bounds._total),
    "Mul": _Bounds._product,
    "Div": _Bounds._quotient,
    "Pow": _Bounds._power,
}


def _largest_sum(weight: NDArray[Any], node: onnx.NodeProto) -> float:
    """Return the largest sum of magnitudes that one output of a layer multiplies with."""
    import numpy as np

    if node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0)):
        axes = tuple(range(1, weight.ndim))
    else:
        axes = (max(0, weight.ndim - 2),)
    return float(np.abs(weight).sum(axis=axes, dtype=np.float64).max(initial=0.0))


def _range_by_rows(value: NDArray[Any]) -> TensorRange:
    """Return a constant's range, some rows at a time: an embedding may have gigabytes."""
    rows = list(_chunks(value))
    total = range_of(rows[0])
    for part in rows[1:]:
        total = total.joined(range_of(part))
    return total


def _chunks(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if value.ndim < 2 or value.size <= _CHUNK_VALUES:
        yield value
        return
    step = max(1, _CHUNK_VALUES // (value.size // len(value)))
    for start in range(0, len(value), step):
        yield value[start : start + step]


def _up_to(magnitude: float) -> TensorRange:
    return TensorRange(low=-magnitude, high=magnitude, absmax=magnitude, smallest_nonzero=0.0)


def _finite(base: float, exponent: float) -> float:
    return math.exp(min(700.0, exponent * math.log(base)))
