"""FP16 as a GPU computes it, on a CPU: every FP16 value rounded to FP16, overflow included.

ONNX Runtime's CPU has few FP16 kernels: it computes FP16 graphs in FP32 from end to end, so that what
overflows on a GPU is right here. Rounding after each node is written into a graph of FP32 instead,
as a Cast to FP16 and back, which no optimizer may leave out. Sums inside a node stay FP32, as GPUs
accumulate them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.optimise.model_file import read_model, write_model

if TYPE_CHECKING:
    import onnx


def emulate_fp16(model: Path, out: Path) -> None:
    """Write a file that computes in FP32 what ``model`` computes in FP16.

    Inputs and outputs keep their names and types. Nodes inside of If, Loop and Scan are left as they
    are.

    Args:
        model: A file with FP16 tensors.
        out: The file to write; large weights go beside it.
    """
    from onnx import TensorProto

    file = read_model(model)
    graph = file.model.graph
    halves = {name for name, info in file.tensors.items() if info.elem_type == TensorProto.FLOAT16}
    inputs = {value.name for value in graph.input} & halves
    outputs = {value.name for value in graph.output} & halves
    _widen_weights(graph)
    _rename(graph, {name: _inner(name) for name in inputs | outputs})
    inner = {_inner(name) if name in inputs | outputs else name for name in halves}
    nodes = [_cast(name, _inner(name), TensorProto.FLOAT) for name in sorted(inputs)]
    for node in graph.node:
        nodes += _rounded(node, inner)
    nodes += [_cast(_inner(name), name, TensorProto.FLOAT16) for name in sorted(outputs)]
    changed = [copy.deepcopy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(changed)
    del graph.value_info[:]
    write_model(file.model, out)


def _widen_weights(graph: onnx.GraphProto) -> None:
    """Turn FP16 constants into FP32 ones of the same values."""
    from onnx import TensorProto

    for tensor in graph.initializer:
        _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen(attribute.t)
            elif attribute.name == "dtype" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT


def _widen(tensor: onnx.TensorProto) -> None:
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT16:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
        )


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Give tensors other names inside, where inputs and outputs of the model keep theirs."""
    for node in graph.node:
        for tensors in (node.input, node.output):
            for index, name in enumerate(tensors):
                tensors[index] = names.get(name, name)


def _rounded(node: onnx.NodeProto, halves: set[str]) -> list[onnx.NodeProto]:
    """Return a node, and after it the rounding of each of its FP16 outputs; constants are rounded."""
    from onnx import TensorProto

    produced = [name for name in node.output if name in halves and node.op_type != "Constant"]
    for index, name in enumerate(node.output):
        if name in produced:
            node.output[index] = f"{name}/exact"
    result = [node]
    for name in produced:
        half = f"{name}/half"
        result += [_cast(f"{name}/exact", half, TensorProto.FLOAT16), _cast(half, name, TensorProto.FLOAT)]
    return result


def _cast(source: str, name: str, to: int) -> onnx.NodeProto:
    from onnx import helper

    return helper.make_node("Cast", [source], [name], name=f"{name}/cast", to=to)


def _inner(name: str) -> str:
    return f"{name}/inner"
