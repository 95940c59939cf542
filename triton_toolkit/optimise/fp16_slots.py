"""Which inputs and outputs of a node can be FP16, by the ONNX operator schemas.

A schema says more than a list of operators: LayerNormalization's mean stays FP32 while its result is
FP16, Resize takes FP16 images and FP32 scales, Range has no FP16 form before opset 27.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from triton_toolkit.optimise.layers import Graph, attribute, graphs_of, node_name
from triton_toolkit.optimise.model_file import opset_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx
    from onnx.defs import OpSchema

Slot = Literal["", "fp32", "follows", "any"]
"""What a position of a node takes: not a float32 tensor; float32 only; the precision of the node;
either, since only the shape is read."""

_HALF = "tensor(float16)"
_SHAPE_ONLY = ("Shape", "Size")
_TYPED_BY_ATTRIBUTE = {"Cast": "to", "ConstantOfShape": "value"}
"""Operators whose output type is an attribute, which is changed along with the precision."""

_PRECISE = {
    "GridSample": "it reads pixels at coordinates, which FP16 rounds to 1/2048 of the image",
    "RoiAlign": "it reads pixels at coordinates, which FP16 rounds to 1/2048 of the image",
    "NonMaxSuppression": "it compares overlaps of boxes",
    "CumSum": "it adds up a running total",
    "CumProd": "it multiplies up a running total",
    "Range": "it counts",
    "Det": "it is a determinant, a difference of large products",
    "DFT": "it adds up whole signals",
    "STFT": "it adds up whole signals",
    "BitCast": "it reads the bits of its input",
    "MeanVarianceNormalization": "its definition in ONNX holds FP32 constants",
}
"""Operators that stay in FP32 whatever their ranges are."""

_DRAW = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")
_PRECISE |= dict.fromkeys(_DRAW, "it draws random numbers, which differ with the precision")

_SCATTERS = ("ScatterND", "ScatterElements")
_RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlots:
    """The positions of one node.

    Attributes:
        node: The node.
        name: Its name, or its first output's where it has none.
        inputs: One a position.
        outputs: Likewise.
        problem: Why the node cannot be FP16; empty where it can.
    """

    node: onnx.NodeProto
    name: str
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    problem: str = ""

    @property
    def is_float(self) -> bool:
        """Whether it computes with float32 tensors, beyond reading their shape."""
        return bool({"fp32", "follows"} & {*self.inputs, *self.outputs})


def slots_of(graph: Graph, floats: frozenset[str]) -> list[NodeSlots]:
    """Return the positions of each node of the main graph, in its order.

    Args:
        graph: The graph.
        floats: Tensors that are float32 although shape inference does not say so, since they were seen.
    """
    opset = opset_of(graph.file.model)
    return [_NodeReader(graph, node, opset, floats).read() for node in graph.nodes]


class _NodeReader:
    def __init__(self, graph: Graph, node: onnx.NodeProto, opset: int, floats: frozenset[str]) -> None:
        self._graph = graph
        self._node = node
        self._opset = opset
        self._floats = floats
        self._domain = "" if node.domain == "ai.onnx" else node.domain

    def read(self) -> NodeSlots:
        """Classify all positions; where the node cannot be FP16 all its tensors are FP32."""
        node = self._node
        name = node_name(node)
        if node.op_type == "Constant" and not self._domain:  # a value, not a computation
            return NodeSlots(node=node, name=name, inputs=(), outputs=("",))
        if node.op_type in _SHAPE_ONLY and not self._domain:
            kinds: tuple[Slot, ...] = tuple("any" if self._is_float(n) else "" for n in node.input)
            return NodeSlots(node=node, name=name, inputs=kinds, outputs=("",))
        schema = self._schema()
        problem = self._problem(schema)
        if not problem and schema is not None:
            inputs = tuple(self._kinds(schema, node.input, schema.inputs))
            outputs = tuple(self._kinds(schema, node.output, schema.outputs))
            if "follows" in {*inputs, *outputs}:
                return NodeSlots(node=node, name=name, inputs=inputs, outputs=outputs)
            problem = f"{node.op_type} has no FP16 form at opset {self._opset}"
        plain = [tuple(self._plain(n) for n in names) for names in (node.input, node.output)]
        return NodeSlots(node=node, name=name, inputs=plain[0], outputs=plain[1], problem=problem)

    def _plain(self, name: str) -> Slot:
        return "fp32" if self._is_float(name) else ""

    def _is_float(self, name: str) -> bool:
        import onnx

        return self._graph.elem_type(name) == onnx.TensorProto.FLOAT or name in self._floats

    def _schema(self) -> OpSchema | None:
        import onnx

        if self._domain:
            return None
        try:
            return onnx.defs.get_schema(self._node.op_type, self._opset)
        except onnx.defs.SchemaError:
            return None

    def _problem(self, schema: OpSchema | None) -> str:
        node = self._node
        if next(graphs_of(node), None) is not None:
            return f"what the graphs inside of {node.op_type} compute cannot be measured"
        if schema is None:
            where = f"{self._domain}:" if self._domain else ""
            return f"{where}{node.op_type} is no operator of ONNX's own, so whether it takes FP16 is unknown"
        if node.op_type in _PRECISE:
            return _PRECISE[node.op_type]
        if "Sequence" in node.op_type or "Optional" in node.op_type:
            return "it handles sequences or optional values"
        if node.op_type in _SCATTERS and attribute(node, "reduction", b"none") != b"none":
            return "it adds up or compares what it scatters, which runtimes do in FP32 only"
        return self._type_problem(schema)

    def _is_unknown(self, name: str) -> bool:
        return not self._graph.elem_type(name) and not self._is_float(name)

    def _type_problem(self, schema: OpSchema) -> str:
        """Return why the types of the outputs do not follow from the inputs, where they do not."""
        node = self._node
        for name in node.input:
            if name and self._is_unknown(name):
                return f"the type of its input {name!r} is unknown"
        if node.op_type == "Cast":
            return self._cast_problem()
        if node.op_type in _TYPED_BY_ATTRIBUTE:
            return ""
        if node.op_type == "DequantizeLinear":
            return ""  # the result has the type of the scale where no attribute says otherwise
        given = {_formal(schema.inputs, i).type_str for i, name in enumerate(node.input) if name}
        for index, name in enumerate(node.output):
            kind = _formal(schema.outputs, index).type_str
            if self._is_float(name) and kind in _half_types(schema) - given:
                return "it chooses the type of its result itself"
        return ""

    def _cast_problem(self) -> str:
        """A cast between floating-point types is the author's choice of a precision."""
        node = self._node
        if self._is_float(node.input[0]) and not self._is_float(node.output[0]):
            return "it converts FP32 to another type"
        return ""

    def _kinds(
        self, schema: OpSchema, names: Sequence[str], parameters: Sequence[OpSchema.FormalParameter]
    ) -> Iterator[Slot]:
        half = _half_types(schema)
        for index, name in enumerate(names):
            if not self._is_float(name):
                yield ""
            else:
                yield "follows" if _formal(parameters, index).type_str in half else "fp32"


def _half_types(schema: OpSchema) -> set[str]:
    """Return the type variables of an operator that may be FP16."""
    return {c.type_param_str for c in schema.type_constraints if _HALF in c.allowed_type_strs}


def _formal(parameters: Sequence[OpSchema.FormalParameter], index: int) -> OpSchema.FormalParameter:
    """Return the formal parameter of a position; the last one may be repeated."""
    return parameters[min(index, len(parameters) - 1)]
