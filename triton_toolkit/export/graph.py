"""Read and tidy ONNX graphs: tensors, opset and IR version, names of what nodes came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import DataType, Extent, TensorSpec
from triton_toolkit.errors import ExportError

if TYPE_CHECKING:
    import onnx

_STACK_TRACE = "pkg.torch.onnx.stack_trace"


def load_graph(path: Path) -> onnx.ModelProto:
    """Read an ONNX file without its external data.

    Raises:
        ExportError: Missing, or not an ONNX model.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise ExportError(f"{path}: no such file") from None
    except DecodeError as exc:
        raise ExportError(f"{path}: not an ONNX file: {exc}") from exc
    if not model.graph.node and not model.graph.output:
        raise ExportError(f"{path}: not an ONNX file: it has no graph")
    return model


def graph_inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs that a caller gives: those with an initializer are left out."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(_tensor("input", value) for value in model.graph.input if value.name not in weights)


def graph_outputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the outputs; a dynamic dimension without a name becomes ``<output>_<axis>``.

    Shapes that the file lacks are inferred from its nodes.
    """
    return tuple(_tensor("output", value) for value in with_output_shapes(model).graph.output)


def with_output_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself where all outputs have shapes, otherwise a copy with those that follow.

    As ONNX Runtime infers them too, it serves such a file; outputs of which nothing follows stay open.
    """
    import onnx

    if all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        return model
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:  # the file contradicts itself; its check says how
        return model


def versions_of(model: onnx.ModelProto) -> dict[str, Any]:
    """Return ``{"opset": {domain: version}, "ir_version": n}``; the default domain is ""."""
    opset = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    return {"opset": opset, "ir_version": model.ir_version}


def all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield the main graph, the functions, and every graph inside an attribute (If, Loop, Scan)."""
    return _with_nested([model.graph, *model.functions])


def _with_nested(
    graphs: list[onnx.GraphProto | onnx.FunctionProto],
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    todo = list(graphs)
    while todo:
        graph = todo.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                todo += [attribute.g] if attribute.HasField("g") else []
                todo += attribute.graphs


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor with data: weights, and constants inside attributes."""
    import onnx

    for graph in all_graphs(model):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def rename_values(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename inputs, outputs or inner values, in place, wherever they are used.

    A value that has one of the new names already gets another one: the exporter names inner values
    after operations, so an output that the user calls ``embedding`` may meet one.
    """
    import onnx

    graphs = [graph for graph in _with_nested([model.graph]) if isinstance(graph, onnx.GraphProto)]
    taken = {name for graph in graphs for name in _value_names(graph)}
    renamed = dict(names)
    for name in names.values():
        if name in taken and name not in names:
            renamed[name] = next(new for n in count(1) if (new := f"{name}_{n}") not in taken)
            taken.add(renamed[name])
    for graph in graphs:
        for value in [*graph.input, *graph.output, *graph.value_info]:
            value.name = renamed.get(value.name, value.name)
        for weight in graph.initializer:
            weight.name = renamed.get(weight.name, weight.name)
        for node in graph.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]


def _value_names(graph: onnx.GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (weight.name for weight in graph.initializer)
    for node in graph.node:
        yield from node.output


def free_output_sizes(model: onnx.ModelProto, outputs: Sequence[TensorSpec]) -> bool:
    """Name the dimensions of outputs that the file wrongly fixes, in place; say whether there were any.

    Inner values then carry no shapes either, since they may repeat the mistake; runtimes infer them.
    """
    wanted = {tensor.name: tensor.shape for tensor in outputs}
    changed = False
    for value in model.graph.output:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, wanted[value.name], strict=True):
            if isinstance(extent, str) and dim.HasField("dim_value"):
                dim.dim_param = extent
                changed = True
    if changed:
        del model.graph.value_info[:]
    return changed


def unused_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the inputs that no node reads and no output passes on."""
    used = {name for graph in all_graphs(model) for node in graph.node for name in node.input}
    used |= {value.name for value in model.graph.output}
    return [value.name for value in model.graph.input if value.name not in used]


def node_sources(model: onnx.ModelProto) -> dict[str, str]:
    """Return node name -> the stack trace that the exporter recorded, before it is stripped.

    The exporter based on torch.export writes it into the node's metadata, the one based on TorchScript
    into its doc string.
    """
    found = {}
    for graph in all_graphs(model):
        for node in graph.node:
            traces = [entry.value for entry in node.metadata_props if entry.key == _STACK_TRACE]
            if text := "".join(traces) or node.doc_string:
                found[node.name] = text
    return found


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without functions of its own: their nodes stand where they were called.

    TensorRT before 9.1 does not parse functions, and tools that rewrite graphs do not look into them.
    """
    import onnx.inliner

    if not model.functions:
        return model
    own = {function.domain for function in model.functions}
    inlined = onnx.inliner.inline_local_functions(model)
    used = {node.domain for graph in all_graphs(inlined) for node in graph.node}
    kept = [opset for opset in inlined.opset_import if opset.domain in used or opset.domain not in own]
    del inlined.opset_import[:]
    inlined.opset_import.extend(kept)
    return inlined


def _tensor(kind: str, value: onnx.ValueInfoProto) -> TensorSpec:
    if not value.type.HasField("tensor_type"):
        raise ExportError(
            f"{kind} {value.name!r} is a {value.type.WhichOneof('value')}, Triton serves tensors only"
        )
    tensor = value.type.tensor_type
    try:
        dtype = DataType.from_onnx(tensor.elem_type)
    except ValueError as exc:
        raise ExportError(f"{kind} {value.name!r}: {exc}", hint="cast it to a type that Triton has") from exc
    if not tensor.HasField("shape"):
        raise ExportError(
            f"{kind} {value.name!r} has no shape in the file, not even a rank"
            + (", and none follows from its nodes" if kind == "output" else ""),
            hint="declare the shape when exporting the file",
        )
    shape = tuple(_extent(dim, value.name, axis) for axis, dim in enumerate(tensor.shape.dim))
    return TensorSpec(name=value.name, dtype=dtype, shape=shape)


def _extent(dim: onnx.TensorShapeProto.Dimension, name: str, axis: int) -> Extent:
    if dim.HasField("dim_value") and dim.dim_value > 0:
        return dim.dim_value
    return dim.dim_param or f"{name}_{axis}"
