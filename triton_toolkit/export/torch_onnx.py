"""PyTorch to ONNX with the torch.export based exporter, dynamic dimensions by name."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import host_errors
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.clean import lower_ir_version, strip_traces, write_graph
from triton_toolkit.export.graph import graph_inputs, load_graph, node_sources, rename_values, versions_of
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.original import Original
from triton_toolkit.export.source import reason
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import onnx
    import torch
    from numpy.typing import NDArray

HIGHEST_OPSET = 21
"""Newest opset that is written, whatever the release could run. From 23 on the exporter writes an
attention as one operator, which opset 24 defined anew; the ONNX Runtime that proves the export is
not the one that serves it, and all of them agree on the small operators that 21 is written in."""

_PLACEHOLDER = "tt:{}:{}"
"""Names during the export, which no inner value can have; see ``graph.rename_values``."""

_NO_FUNCTION = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_CALL_SITE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SPECIALISED = re.compile(r"(\w+) was inferred to be a constant \((\d+)\)")


def export_torch(
    job: ExportJob, original: Original, example: Mapping[str, NDArray[Any]], path: Path, files: ProjectFiles
) -> dict[str, str]:
    """Export to ``path`` and read back what was written.

    Args:
        job: What to export; its opset and IR version are upper limits.
        original: The model.
        example: Inputs at ``core.dims.example_sizes``.
        path: ``model.onnx``; large weights go beside it, into ``model.onnx.data``.
        files: The project's files, to name the user's line in errors.

    Returns:
        Node name -> where in the project it comes from, for messages about a node.

    Raises:
        ExportError: The exporter refuses, a dynamic dimension came out fixed, or the file needs a
            newer opset or IR version than the release has.
    """
    program = _run_exporter(job, original, example, files)
    weights = [value.const_value for value in program.model.graph.initializers.values()]
    size = sum(weight.nbytes for weight in weights if weight is not None)
    with host_errors(f"write {path}"):
        program.save(path, external_data=size > job.external_data_bytes)
    model = load_graph(path)
    sources = {name: _call_site(text, files) for name, text in node_sources(model).items()}
    _check_opset(model, job.opset)
    strip_traces(model)
    names = {_PLACEHOLDER.format("input", n): tensor.name for n, tensor in enumerate(job.inputs)}
    names |= {_PLACEHOLDER.format("output", n): name for n, name in enumerate(original.outputs)}
    rename_values(model, names)
    lower_ir_version(model, job.ir_version)
    _name_single_sizes(model, job)
    _check_inputs(graph_inputs(model), job.inputs)
    write_graph(model, path)
    return {name: place for name, place in sources.items() if place}


def _run_exporter(
    job: ExportJob, original: Original, example: Mapping[str, NDArray[Any]], files: ProjectFiles
) -> torch.onnx.ONNXProgram:
    import torch

    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    tensors = tuple(torch.from_numpy(example[tensor.name].copy()) for tensor in job.inputs)
    shapes = _dynamic_shapes(job.inputs, job.dims)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # forward's own were shown when it was tried
        try:
            program = torch.onnx.export(
                original.adapter,
                tensors,
                input_names=[_PLACEHOLDER.format("input", n) for n in range(len(job.inputs))],
                output_names=[_PLACEHOLDER.format("output", n) for n in range(len(original.outputs))],
                opset_version=min(job.opset, HIGHEST_OPSET),
                dynamic_shapes=(shapes,),
                dynamo=True,
                verbose=False,
            )
        except Exception as exc:
            raise _refusal(exc, files) from exc
    if program is None:  # only the older exporter returns None
        raise ExportError("torch.onnx.export gave no program")
    return program


def _dynamic_shapes(
    inputs: tuple[TensorSpec, ...], dims: Mapping[str, Dim]
) -> tuple[dict[int, torch.export.Dim], ...]:
    """Return axis -> dimension for each input; the same name is the same object.

    A dimension with a single size is exported as a fixed one: torch.export needs min < max.
    """
    import torch

    known = {n: torch.export.Dim(n, min=d.min, max=d.max) for n, d in dims.items() if d.min < d.max}
    return tuple(
        {axis: known[extent] for axis, extent in enumerate(tensor.shape) if extent in known}
        for tensor in inputs
    )


def _refusal(exc: Exception, files: ProjectFiles) -> ExportError:
    """Say in one line why the exporter refused; its whole text goes to the detail."""
    cause: BaseException = exc
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(cause)
    place = _call_site(text, files) or _call_site("".join(traceback.format_exception(cause)), files)
    at = f" ({place})" if place else ""
    detail = "".join(traceback.format_exception(exc))
    if match := _SPECIALISED.search(text):
        return _fixed_dimension(match[1], int(match[2]), at, detail)
    if match := _NO_FUNCTION.search(text):
        return ExportError(
            f"the exporter has no ONNX form of {match[1]}{at}",
            hint="compute it with other operations, or before or after the model",
            detail=detail,
        )
    if "data-dependent" in text:
        return ExportError(
            f"forward decides by the values of a tensor, which an export cannot follow{at}: {reason(cause)}",
            hint="use torch.where, or torch.cond for whole branches",
            detail=detail,
        )
    return ExportError(f"torch.onnx.export refuses the model{at}: {reason(cause)}", detail=detail)


def _fixed_dimension(name: str, size: int, at: str, detail: str = "") -> ExportError:
    return ExportError(
        f"dimension {name!r} is declared dynamic, but the model fixes it at {size}, the size of the "
        f"example{at}",
        hint="look for int(), .item(), a Python loop over the dimension, or a number where forward needs "
        "x.shape[...] or -1; or declare a fixed size",
        detail=detail,
    )


def _check_opset(model: onnx.ModelProto, highest: int) -> None:
    written = versions_of(model)["opset"].get("", 0)
    if written > highest:
        raise ExportError(
            f"the exporter wrote opset {written}, but the release runs at most {highest}: PyTorch exports "
            "to 18 and newer, and this model cannot be converted down",
            hint="set a release in tt.yaml whose ONNX Runtime has opset 18 (23.03 or newer)",
        )


def _check_inputs(written: tuple[TensorSpec, ...], declared: tuple[TensorSpec, ...]) -> None:
    """Check that the file's inputs are the declared ones, dynamic where they are declared so."""
    if [tensor.name for tensor in written] != [tensor.name for tensor in declared]:
        raise ExportError(
            f"the exported inputs are {', '.join(t.name for t in written)}, declared are "
            f"{', '.join(t.name for t in declared)}"
        )
    for got, want in zip(written, declared, strict=True):
        for axis, (extent, wanted) in enumerate(zip(got.shape, want.shape, strict=True)):
            if isinstance(wanted, str) and not isinstance(extent, str):
                raise _fixed_dimension(wanted, extent, f" (input {want.name!r}, axis {axis})")


def _name_single_sizes(model: onnx.ModelProto, job: ExportJob) -> None:
    """Write the names of dimensions with min = max, which were exported as fixed sizes.

    Triton's ONNX Runtime backend wants a variable first dimension wherever it batches, even where
    the only batch size is 1.
    """
    single = {name: dim.max for name, dim in job.dims.items() if dim.min == dim.max}
    declared = {name: tuple(shape) for name, (_, shape) in job.outputs.items() if shape}
    declared |= {tensor.name: tensor.shape for tensor in job.inputs}
    batch = () if job.batch_dim is None else (job.batch_dim,)
    for value in [*model.graph.input, *model.graph.output]:
        written = value.type.tensor_type.shape.dim
        for dim, extent in zip(written, declared.get(value.name, batch), strict=False):
            if isinstance(extent, str) and dim.dim_value == single.get(extent):
                dim.dim_param = extent


def _call_site(text: str, files: ProjectFiles) -> str:
    """Return ``file:line, in function`` of the last project line in a stack trace, or nothing."""
    for file, line, function in reversed(_CALL_SITE.findall(text)):
        name = files.relative(file)
        if name is not None and Path(file).is_file():
            return f"{name}:{line}, in {function}"
    return ""
