"""Constants beyond FP16 that mean "minus infinity" or "no bound", and may be cut without any effect.

Attention masks are the common ones: -1e12 or the lowest float32, added to scores (or put in their
place) before a Softmax. In FP16 they overflow; cast as they are, a row that is masked as a whole
becomes NaN. Kept in FP32 they drag the Softmax along. Cut to -20000 the result is the same: what is
that far below the largest score has exp(...) = 0 in either precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from triton_toolkit.optimise.fp16_limits import LARGEST, LIMIT
from triton_toolkit.optimise.layers import attribute
from triton_toolkit.optimise.model_file import opset_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import onnx

    from triton_toolkit.optimise.fp16_slots import NodeSlots
    from triton_toolkit.optimise.layers import Graph
    from triton_toolkit.optimise.ranges import TensorRange

MASKED = -20000.0
"""What a mask is cut to: below every score by far more than the 17 that exp needs to vanish in FP16."""

_SCORES = 1024.0
"""Largest magnitude of what a mask is added to. Sums of four such are at least -4096, one with a mask
among them at most -20000 + 3 * 1024."""

_MOST_ADDS = 2
_MOST_CLAMPS = 3
"""Masks in one sum: three of them and a score are at least -61024, which FP16 holds."""

_MOST_SUMMANDS = 2**_MOST_ADDS
_ONE_AXIS_OPSET = 13
"""First opset whose Softmax is along one axis, the last one unless said otherwise."""

_MOVES = ("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice")

Place = tuple[int, int]
"""A node's index and a position of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamp:
    """A cut of what one input of a node may hold.

    Attributes:
        low: Smallest value that is left.
        high: Largest.
        reason: Why that changes nothing, with the figures.
    """

    low: float
    high: float
    reason: str


@dataclass(slots=True)
class MaskChain:
    """The nodes from a mask to its Softmax: all of them are FP16, or none.

    Attributes:
        nodes: Their indices.
        values: Tensors between them, whose measured range is that of the mask.
        clamps: Where the mask is cut.
    """

    nodes: set[int] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    clamps: dict[Place, Clamp] = field(default_factory=dict)


class MaskFinder:
    """Finds masks and bounds in one graph.

    Args:
        graph: The graph.
        slots: Its nodes' positions.
        ranges: What a tensor holds; None where nothing is known of it.
    """

    def __init__(
        self, graph: Graph, slots: Sequence[NodeSlots], ranges: Callable[[str], TensorRange | None]
    ) -> None:
        self._graph = graph
        self._slots = slots
        self._range = ranges
        self._index = {name: i for i, slot in enumerate(slots) for name in slot.node.output if name}

    def chains(self) -> list[MaskChain]:
        """Return a chain for each Softmax whose input holds mask values."""
        found = []
        for index, slots in enumerate(self._slots):
            if slots.node.op_type == "Softmax" and self._is_masked(slots.node):
                chain = MaskChain(nodes={index})
                complete = self._follow(slots.node.input[0], chain, _MOST_ADDS)
                if complete and len(chain.clamps) <= _MOST_CLAMPS:
                    found.append(chain)
        return found

    def bounds(self) -> dict[Place, Clamp]:
        """Return cuts of the bounds in Clip, Min and Max that lie beyond FP16.

        Where what they bound lies beyond it too, the node stays in FP32 for that, and is not cut.
        """
        return dict(self._bounds())

    def _bounds(self) -> Iterator[tuple[Place, Clamp]]:
        for index, slots in enumerate(self._slots):
            if slots.node.op_type not in {"Clip", "Min", "Max"}:
                continue
            for position, name in enumerate(slots.node.input):
                held = self._range(name) if name and self._graph.is_constant(name) else None
                if held is not None and held.absmax > LARGEST and slots.inputs[position] == "follows":
                    extreme = held.low if held.absmax > held.high else held.high
                    reason = (
                        f"bound {name!r} is {extreme:.4g}; nothing reaches {LARGEST:g}, to which it is cut"
                    )
                    yield (index, position), Clamp(low=-LARGEST, high=LARGEST, reason=reason)

    def _is_masked(self, softmax: onnx.NodeProto) -> bool:
        """Whether a Softmax reads mask values, in rows of which each has a score that counts.

        In a row that is masked as a whole, the largest float32 swallows the scores and -20000 does not.
        """
        name = softmax.input[0]
        held = self._range(name)
        rank = self._graph.rank(name)
        last = attribute(softmax, "axis", -1 if opset_of(self._graph.file.model) >= _ONE_AXIS_OPSET else 1)
        if held is None or rank is None or last not in {-1, rank - 1}:
            return False
        return self._is_mask(name) and held.lowest_peak >= -_MOST_SUMMANDS * _SCORES

    def _is_mask(self, name: str) -> bool:
        held = self._range(name)
        return held is not None and held.low < -LIMIT and held.high <= _SCORES

    def _fits(self, name: str) -> bool:
        held = self._range(name)
        return held is not None and held.absmax <= _SCORES

    def _follow(self, name: str, chain: MaskChain, adds: int) -> bool:
        """Take a tensor and what makes it into the chain; say whether that could be done."""
        index = self._index.get(name)
        if index is None or len(self._graph.readers[name]) != 1 or name in self._graph.outputs:
            return False
        node = self._slots[index].node
        chain.nodes.add(index)
        chain.values.add(name)
        if node.op_type in _MOVES:
            return self._follow(node.input[0], chain, adds)
        if node.op_type == "Add" and adds:
            return all(self._operand(index, position, chain, adds - 1) for position in (0, 1))
        if node.op_type == "Where":
            return all(self._operand(index, position, chain, 0) for position in (1, 2))
        return False

    def _operand(self, index: int, position: int, chain: MaskChain, adds: int) -> bool:
        name = self._slots[index].node.input[position]
        if self._fits(name):
            return True
        if not self._is_mask(name):
            return False
        producer = self._graph.producer.get(name)
        if adds and producer is not None and producer.op_type == "Add":
            inner = MaskChain()
            if self._follow(name, inner, adds):
                chain.nodes |= inner.nodes
                chain.values |= inner.values
                chain.clamps |= inner.clamps
                return True
        held = self._range(name)
        lowest = held.low if held else 0.0
        reason = (
            f"{name!r} reaches {lowest:.4g} and goes into a Softmax only: it is cut to {MASKED:g}, of which "
            "the Softmax makes 0 as well"
        )
        chain.clamps[index, position] = Clamp(low=MASKED, high=LARGEST, reason=reason)
        return True
