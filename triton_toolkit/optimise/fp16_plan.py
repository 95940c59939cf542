"""Which nodes of a graph run in FP16, and why the others do not.

A node stays in FP32 for what it has against FP16 itself (``fp16_rules``), for what depends on it (a
whole number, an angle, a division), or because it lies between such nodes and would only add casts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from triton_toolkit.optimise.fp16_limits import VANISHING
from triton_toolkit.optimise.fp16_masks import Clamp, MaskFinder, Place
from triton_toolkit.optimise.fp16_rules import DIVISORS, NodeRules, Ranges, is_plain_constant
from triton_toolkit.optimise.fp16_slots import NodeSlots, slots_of
from triton_toolkit.optimise.layers import Graph
from triton_toolkit.optimise.ranges import TensorRange

_HEAVY = (
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum", "Attention", "LSTM", "GRU", "RNN"),
    *("QuantizeLinear", "DequantizeLinear"),
)
"""Operators for which FP16 is worth casts on both sides."""

_MOVES = (
    *("Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice"),
    *("Split", "Concat", "Gather", "GatherElements", "GatherND", "Tile", "Pad", "Where"),
)
_ELEMENTWISE = (
    *_MOVES,
    *(
        "Cast",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Abs",
        "Sqrt",
        "Reciprocal",
        "Pow",
        "Exp",
        "Log",
        "Min",
        "Max",
    ),
    *("Clip", "Sum", "Floor", "Ceil", "Round", "Mod", "Sigmoid", "Tanh", "Relu", "Erf", "Softmax"),
)
"""Operators through which the exactness that a later node needs is traced back."""

_AFTER_EPSILON = (*_MOVES, "Sqrt", "Reciprocal", "Pow", "Log", "Max", "Min", "Clip")
_EPSILON_ENDS = ("Div", "Mul")
_EXACT = {
    "Cast": "it feeds {0!r}, which converts to whole numbers or truth values",
    "Floor": "it feeds {0!r}, which rounds to whole numbers",
    "Ceil": "it feeds {0!r}, which rounds to whole numbers",
    "Round": "it feeds {0!r}, which rounds to whole numbers",
    "Sin": "it makes the angle of {0!r}",
    "Cos": "it makes the angle of {0!r}",
    "Tan": "it makes the angle of {0!r}",
}
"""Operators that need an exact input once they stay in FP32 themselves."""


ASKED = "it was asked to stay"
ISLAND = "it lies between nodes that stay in FP32"
"""Why a node stays that has nothing against FP16 itself."""


@dataclass(slots=True)
class Fp16Plan:
    """What is to become of each node of the main graph.

    Attributes:
        slots: The nodes' positions, in the order of the graph.
        kept: Index of each node that stays in FP32 -> why. Nodes without float32 tensors are left out.
        clamps: Inputs of FP16 nodes that are cut.
    """

    slots: list[NodeSlots]
    kept: dict[int, str] = field(default_factory=dict)
    clamps: dict[Place, Clamp] = field(default_factory=dict)

    def is_half(self, index: int) -> bool:
        """Whether a node runs in FP16."""
        return index not in self.kept and self.slots[index].is_float


def plan_fp16(graph: Graph, measured: Mapping[str, TensorRange], keep: Collection[str]) -> Fp16Plan:
    """Decide for each node.

    Args:
        graph: The FP32 graph.
        measured: What its tensors were seen to hold.
        keep: Names of nodes that stay in FP32.
    """
    slots = slots_of(graph, frozenset(measured))
    ranges = Ranges(graph, measured)
    finder = MaskFinder(graph, slots, ranges)
    chains = finder.chains()
    clamps = finder.bounds()
    for chain in chains:
        clamps |= chain.clamps
    masked = {name for chain in chains for name in chain.values}
    rules = NodeRules(graph, slots, ranges, cut=clamps, masked=masked)
    planner = _Planner(graph, slots, ranges)
    for index, node in enumerate(slots):
        if node.is_float:
            planner.keep(index, ASKED if node.name in keep else rules.problem(index))
    planner.protect_exact()
    planner.protect_divisors()
    planner.protect_epsilons()
    planner.complete(chain.nodes for chain in chains)
    planner.join_islands()
    kept = planner.kept
    return Fp16Plan(slots=slots, kept=kept, clamps={p: clamps[p] for p in clamps if p[0] not in kept})


class _Planner:
    """Holds what is kept so far, and spreads it."""

    def __init__(self, graph: Graph, slots: list[NodeSlots], ranges: Ranges) -> None:
        self.kept: dict[int, str] = {}
        self._graph = graph
        self._slots = slots
        self._range = ranges
        self._made_by = {name: i for i, s in enumerate(slots) for name in s.node.output if name}
        index_of = {id(node): index for index, node in enumerate(graph.nodes)}
        self._read_by = {
            name: [index_of[id(node)] for node in nodes] for name, nodes in graph.readers.items()
        }

    def keep(self, index: int, reason: str) -> None:
        """Note why a node stays; the first reason counts, an empty one is none."""
        if reason and self._slots[index].is_float:
            self.kept.setdefault(index, reason)

    def protect_exact(self) -> None:
        """Keep what computes whole numbers, truth values and angles, back to the layer they come from."""
        for index in list(self.kept):
            slots = self._slots[index]
            if slots.node.op_type in _EXACT and slots.inputs[0]:
                reason = _EXACT[slots.node.op_type].format(slots.name)
                self._keep_upstream(slots.node.input[0], reason, self._is_exact_source)

    def _is_exact_source(self, index: int) -> bool:
        return self._slots[index].node.op_type in _ELEMENTWISE or self._is_outer_product(index)

    def _is_outer_product(self, index: int) -> bool:
        """Whether a MatMul adds nothing up: positions times frequencies, as rotary embeddings have it."""
        node = self._slots[index].node
        info = self._graph.file.tensors.get(node.input[0]) if node.op_type == "MatMul" else None
        return info is not None and bool(info.shape) and info.shape is not None and info.shape[-1] == 1

    def protect_divisors(self) -> None:
        """Keep what makes the small values that a division or logarithm reads, as far as they are small."""

        def is_small(index: int) -> bool:
            node = self._slots[index].node
            held = self._range(node.output[0])
            small = held is not None and 0 < held.smallest_nonzero < VANISHING
            return small and node.op_type in _ELEMENTWISE

        for index in list(self.kept):
            node = self._slots[index].node
            if (position := DIVISORS.get(node.op_type)) is not None:
                reason = f"it makes small values that must not become 0 for {self._slots[index].name!r}"
                self._keep_upstream(node.input[position], reason, is_small)

    def protect_epsilons(self) -> None:
        """Keep what lies between an epsilon that FP16 would make 0 and the division that it protects."""
        for index, reason in list(self.kept.items()):
            if reason.startswith("constant ") and self._slots[index].node.op_type in {"Add", "Max", "Clip"}:
                self._keep_downstream(
                    index, f"it depends on the small constant of {self._slots[index].name!r}"
                )

    def _keep_upstream(self, name: str, reason: str, passes: Callable[[int], bool]) -> None:
        todo = [name]
        while todo:
            index = self._made_by.get(todo.pop())
            if index is None or index in self.kept or not passes(index):
                continue
            self.keep(index, reason)
            todo += self._floats(self._slots[index].node.input, self._slots[index].inputs)

    def _keep_downstream(self, index: int, reason: str) -> None:
        todo = [index]
        while todo:
            for name in self._slots[todo.pop()].node.output:
                for reader in self._read_by.get(name, ()):
                    operator = self._slots[reader].node.op_type
                    if reader in self.kept or operator not in (*_AFTER_EPSILON, *_EPSILON_ENDS):
                        continue
                    self.keep(reader, reason)
                    todo += [reader] if operator in _AFTER_EPSILON else []

    def complete(self, groups: Iterable[set[int]]) -> None:
        """Keep all of a group where one of it is kept."""
        for group in groups:
            kept = sorted(group & self.kept.keys())
            for index in group if kept else ():
                self.keep(index, f"it handles the mask of {self._slots[kept[0]].name!r}, which stays in FP32")

    def join_islands(self) -> None:
        """Keep light nodes that only nodes in FP32 surround: they would only add casts."""
        seen: set[int] = set()
        for start in range(len(self._slots)):
            if start in seen or not self._is_light(start):
                continue
            island, shore = self._island(start)
            seen |= island
            if shore and all(index in self.kept for index in shore):
                for index in island:
                    self.keep(index, ISLAND)

    def _island(self, start: int) -> tuple[set[int], set[int]]:
        """Return the light FP16 nodes that are connected with one, and the nodes around them."""
        island, shore, todo = {start}, set[int](), [start]
        while todo:
            for index in self._neighbours(todo.pop()):
                if not self._is_light(index):
                    shore.add(index)
                elif index not in island:
                    island.add(index)
                    todo.append(index)
        return island, shore

    def _is_light(self, index: int) -> bool:
        slots = self._slots[index]
        return slots.is_float and index not in self.kept and slots.node.op_type not in _HEAVY

    def _neighbours(self, index: int) -> Iterator[int]:
        slots = self._slots[index]
        for name in self._floats(slots.node.input, slots.inputs):
            if name in self._made_by and not is_plain_constant(self._graph, name):
                yield self._made_by[name]
        for name in self._floats(slots.node.output, slots.outputs):
            yield from (i for i in self._read_by.get(name, ()) if self._slots[i].is_float)

    @staticmethod
    def _floats(names: Iterable[str], kinds: Iterable[str]) -> list[str]:
        return [name for name, kind in zip(names, kinds, strict=True) if kind in {"fp32", "follows"}]
