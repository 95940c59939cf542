"""Small models in ONNX's text form, converted to FP16 and computed in true FP16.

``onnx.reference`` computes FP16 tensors in FP16, so an overflow is an infinity. ONNX Runtime's CPU
computes them in FP32 and would hide it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.fp16_plan import Fp16Plan
from triton_toolkit.optimise.fp16_rewrite import rewrite_fp16
from triton_toolkit.optimise.fp16_slots import slots_of
from triton_toolkit.optimise.layers import Graph
from triton_toolkit.optimise.model_file import read_model, write_model
from triton_toolkit.optimise.ranges import scan_ranges

Array = NDArray[Any]


def write(path: Path, text: str, *, opset: int = 18, ir_version: int = 9, **weights: Array) -> Path:
    """Write a model given as ``(inputs) => (outputs) { nodes }``; its nodes are called by their outputs."""
    header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{header}\ng {text}")
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@dataclass(frozen=True)
class Pair:
    """An FP32 file, its FP16 variant, and what the conversion said."""

    full: Path
    half: Path
    converted: Converted

    @property
    def kept(self) -> Mapping[str, str]:
        return self.converted.kept

    def run(self, **feeds: Array) -> tuple[Array, Array]:
        """Return the first output of both, each computed in its own precision."""
        return compute(self.full, feeds)[0], compute(self.half, feeds)[0]

    def model(self) -> onnx.ModelProto:
        return onnx.load(self.half)

    def operators(self) -> list[str]:
        return [node.op_type for node in self.model().graph.node]


def convert(full: Path, *, keep: Collection[str] = (), **feeds: Array) -> Pair:
    """Measure a file's ranges on one batch and convert it."""
    half = full.with_name("half.onnx")
    converted = to_fp16(full, half, ranges=scan_ranges(full, [feeds]), keep=keep)
    return Pair(full, half, converted)


def convert_blindly(full: Path) -> Pair:
    """Convert whatever ONNX has an FP16 form of, as a plain cast of everything does."""
    half = full.with_name("blind.onnx")
    file = read_model(full)
    graph = Graph(file)
    slots = slots_of(graph, frozenset())
    plan = Fp16Plan(slots=slots, kept={i: node.problem for i, node in enumerate(slots) if node.problem})
    with np.errstate(over="ignore"):
        rewrite_fp16(graph, plan)
    write_model(file.model, half)
    return Pair(full, half, Converted())


def compute(path: Path, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a file, every tensor in the type that it has."""
    with np.errstate(all="ignore"):
        results: list[Array] = ReferenceEvaluator(str(path)).run(None, dict(feeds))
    return results


def types(path: Path) -> dict[str, int]:
    """Return the element type of every tensor of a file that shape inference can tell."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True).graph
    found = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.value_info, *graph.output]}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def runs_in_fp32(path: Path, output: str) -> bool:
    """Whether the node that makes a tensor computes with FP32 tensors only."""
    known = types(path)
    node = next(one for one in onnx.load(path).graph.node if output in one.output)
    return TensorProto.FLOAT16 not in {known.get(name) for name in [*node.input, *node.output]}


def values(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
