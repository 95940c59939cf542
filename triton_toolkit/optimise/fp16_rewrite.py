"""Write an FP16 plan into a graph: types, casts, constants in either precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_toolkit.optimise.edit import Editor
from triton_toolkit.optimise.fp16_plan import Fp16Plan
from triton_toolkit.optimise.fp16_rules import is_plain_constant
from triton_toolkit.optimise.layers import Graph, reads

if TYPE_CHECKING:
    import onnx

    from triton_toolkit.optimise.fp16_masks import Clamp


def rewrite_fp16(graph: Graph, plan: Fp16Plan) -> None:
    """Change the model in place.

    A tensor that is wanted in both precisions keeps its name in FP32 and is ``<name>_fp16`` in FP16;
    it is cast once. One that is wanted in FP16 alone keeps its name. Inputs and outputs stay FP32.
    """
    _Rewriter(graph, plan).run()


class _Rewriter:
    def __init__(self, graph: Graph, plan: Fp16Plan) -> None:
        self._graph = graph
        self._plan = plan
        self._editor = Editor(graph)
        self._wanted_half: set[str] = set()
        self._wanted_full = set(graph.outputs) | {value.name for value in graph.file.model.graph.input}
        self._wanted_full -= graph.initializers.keys()
        self._made_half: set[str] = set()
        self._half_names: dict[str, str] = {}
        self._cut_names: dict[tuple[str, float, float], str] = {}

    def run(self) -> None:
        """Collect who wants what, then write constants, then nodes."""
        for index in range(len(self._plan.slots)):
            self._collect(index)
        for name in sorted(self._wanted_half):
            if self._is_constant(name):
                self._half_names[name] = self._half_constant(name)
            elif name in self._wanted_full:
                self._half_names[name] = self._editor.new(f"{name}_fp16")
            else:
                self._half_names[name] = name
        for value in self._graph.file.model.graph.input:
            self._cast(value.name)
        for index in range(len(self._plan.slots)):
            self._write(index)
        self._editor.finish()
        self._convert_types()

    def _collect(self, index: int) -> None:
        slots = self._plan.slots[index]
        half = self._plan.is_half(index)
        inner = set(reads(slots.node)) - set(slots.node.input)
        self._wanted_full |= inner  # what If and Loop bodies take from outside
        for position, (name, kind) in enumerate(zip(slots.node.input, slots.inputs, strict=True)):
            clamp = self._plan.clamps.get((index, position))
            if half and kind == "follows":
                if clamp is None:
                    self._wanted_half.add(name)
                elif not self._is_constant(name):
                    self._wanted_full.add(name)
            elif kind in {"follows", "fp32"}:
                self._wanted_full.add(name)
        for name, kind in zip(slots.node.output, slots.outputs, strict=True):
            if half and kind == "follows":
                self._wanted_half.add(name)
                self._made_half.add(name)
            elif kind in {"follows", "fp32"}:
                self._wanted_full.add(name)

    def _is_constant(self, name: str) -> bool:
        return is_plain_constant(self._graph, name)

    def _half_constant(self, name: str) -> str:
        """Turn a weight into FP16, or add an FP16 copy where FP32 is wanted too; return its name."""
        import numpy as np
        import onnx

        half = self._graph.value(name).astype(np.float16)
        if name in self._wanted_full:
            return self._editor.constant(f"{name}_fp16", half)
        if name in self._graph.initializers:
            self._graph.initializers[name].CopyFrom(onnx.numpy_helper.from_array(half, name))
            return name
        node = self._graph.producer[name]
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(half)))
        return name

    def _write(self, index: int) -> None:
        slots = self._plan.slots[index]
        node = slots.node
        half = self._plan.is_half(index)
        names = list(node.input)
        for position, (name, kind) in enumerate(zip(node.input, slots.inputs, strict=True)):
            clamp = self._plan.clamps.get((index, position))
            if clamp is not None:
                names[position] = self._cut(name, clamp)
            elif half and kind == "follows":
                names[position] = self._half_names[name]
        outputs = list(node.output)
        if half:
            outputs = [self._half_names.get(n, n) if n in self._made_half else n for n in outputs]
            self._set_type_attribute(node)
        made = list(node.output)
        node.input[:] = names
        node.output[:] = outputs
        self._editor.append(node)
        for name in made:
            self._cast(name)

    def _cast(self, name: str) -> None:
        """Add the other precision of a tensor that was just made, where it is wanted."""
        import onnx

        half = self._half_names.get(name, name)
        if half == name or self._is_constant(name):
            return
        if name in self._made_half:
            self._editor.add("Cast", [half], name, to=onnx.TensorProto.FLOAT)
        else:
            self._editor.add("Cast", [name], half, to=onnx.TensorProto.FLOAT16)

    def _cut(self, name: str, clamp: Clamp) -> str:
        """Return the name of a tensor as FP16, cut to what FP16 holds."""
        import numpy as np
        import onnx

        key = (name, clamp.low, clamp.high)
        if key in self._cut_names:
            return self._cut_names[key]
        if self._is_constant(name):
            cut = np.clip(self._graph.value(name), clamp.low, clamp.high).astype(np.float16)
            result = self._editor.constant(f"{name}_cut", cut)
        else:
            low = self._editor.constant(f"{name}_cut_low", np.array(clamp.low, np.float32))
            full = self._editor.new(f"{name}_cut_fp32")
            self._editor.add("Max", [name, low], full)
            result = self._editor.new(f"{name}_cut")
            self._editor.add("Cast", [full], result, to=onnx.TensorProto.FLOAT16)
        self._cut_names[key] = result
        return result

    @staticmethod
    def _set_type_attribute(node: onnx.NodeProto) -> None:
        """Change the attribute that says the type of an output."""
        import numpy as np
        import onnx

        if node.op_type == "ConstantOfShape":
            fill = next((a.t for a in node.attribute if a.name == "value"), None)
            if fill is not None:
                value = onnx.numpy_helper.to_array(fill).astype(np.float16)
                fill.CopyFrom(onnx.numpy_helper.from_array(value))
            else:
                zero = onnx.numpy_helper.from_array(np.zeros(1, np.float16))
                node.attribute.append(onnx.helper.make_attribute("value", zero))
        for attribute in node.attribute:
            if (node.op_type, attribute.name) in {("Cast", "to"), ("DequantizeLinear", "output_dtype")}:
                attribute.i = onnx.TensorProto.FLOAT16

    def _convert_types(self) -> None:
        """Correct what the file says of types: of inner values, and of weights that are listed as inputs."""
        import onnx

        graph = self._graph.file.model.graph
        renamed = []
        for value in [*graph.value_info, *graph.input]:
            half = self._half_names.get(value.name)
            if half == value.name:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
            elif half is not None and value in graph.value_info:
                copy = onnx.ValueInfoProto()
                copy.CopyFrom(value)
                copy.name = half
                copy.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
                renamed.append(copy)
        graph.value_info.extend(renamed)
