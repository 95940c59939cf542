"""From what an exporter wrote to the file that is served: names, versions, tidy, checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import host_errors
from triton_toolkit.core.releases import first_to_load, onnx_limits
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.clean import check_graph, lower_ir_version, strip_traces, write_graph
from triton_toolkit.export.graph import (
    all_graphs,
    graph_inputs,
    inline_functions,
    load_graph,
    node_sources,
    rename_values,
    versions_of,
)
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.node_names import name_nodes
from triton_toolkit.export.refusals import call_site, fixed_dimension
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.widen import has_bfloat16, widen_bfloat16

if TYPE_CHECKING:
    import onnx

EXTERNAL_NAME = "model.onnx.data"
"""Where weights go that are too large for the file itself."""

PLACEHOLDER = "tt_{}_{}_"
"""Names during the export, which no inner value has; see ``graph.rename_values``."""

_ONE_CPU = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains that ONNX Runtime writes when it saves a model optimised for the processor at hand."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What is known of a finished file.

    Attributes:
        sources: Node name -> where in the project it comes from, for messages about a node.
        widened: Whether it computes in float32 what the model computes in bfloat16.
    """

    sources: dict[str, str]
    widened: bool


def finish(
    path: Path, job: ExportJob, outputs: tuple[str, ...], modules: Collection[str], files: ProjectFiles
) -> Finished:
    """Tidy the file that an exporter wrote, and read back what it holds.

    Args:
        path: The file; its inputs and outputs carry placeholder names.
        job: What was exported; its opset and IR version are upper limits.
        outputs: Names of the outputs.
        modules: Paths of the model's modules, which nodes are named after.
        files: The project's files, to name lines.

    Raises:
        ExportError: A dynamic dimension came out fixed, or the file needs a newer opset or IR version
            than the release has.
    """
    import onnx

    model = load_graph(path)
    widened = has_bfloat16(model)
    if widened:
        model = onnx.load(str(path))
        widen_bfloat16(model)
    name_nodes(model, modules)
    sources = {name: call_site(text, files) for name, text in node_sources(model).items()}
    check_opsets(model, job, "the export")
    strip_traces(model)
    model = inline_functions(model)
    names = {PLACEHOLDER.format("input", n): tensor.name for n, tensor in enumerate(job.inputs)}
    names |= {PLACEHOLDER.format("output", n): name for n, name in enumerate(outputs)}
    rename_values(model, names)
    lower_ir_version(model, job.ir_version)
    _name_dimensions(model, job)
    _name_single_sizes(model, job)
    _check_inputs(graph_inputs(model), job.inputs)
    if widened:
        store(model, path, job.external_data_bytes)
        check_graph(path)
    else:
        write_graph(model, path)
    return Finished({name: place for name, place in sources.items() if place}, widened)


def store(model: onnx.ModelProto, path: Path, largest: int) -> None:
    """Write a model whose data is loaded; weights of more than ``largest`` bytes go beside it."""
    import onnx

    weights = model.graph.initializer
    size = sum(len(weight.raw_data) or weight.ByteSize() for weight in weights)
    path.with_name(EXTERNAL_NAME).unlink(missing_ok=True)
    with host_errors(f"write {path}"):
        if size > largest:
            onnx.save_model(model, str(path), save_as_external_data=True, location=EXTERNAL_NAME)
        else:
            onnx.save_model(model, str(path))


def check_opsets(model: onnx.ModelProto, job: ExportJob, what: str) -> None:
    """Check the opset of every domain of a file against the release.

    Args:
        model: The file.
        job: Holds the highest opset and IR version of the release.
        what: Begins the message: the file's name.

    Raises:
        ExportError: A domain is newer than the release has, or ONNX Runtime does not have it.
    """
    used: dict[str, set[str]] = {}
    for graph in all_graphs(model):
        for node in graph.node:
            used.setdefault("" if node.domain == "ai.onnx" else node.domain, set()).add(node.op_type)
    own = {function.domain for function in model.functions}
    highest = {"": job.opset, "ai.onnx.ml": _ml_opset(job), "com.microsoft": 1}
    for domain, version in versions_of(model)["opset"].items():
        if domain in highest and (highest[domain] or version) < version:
            raise _too_new(what, domain, version, highest[domain])
    for domain in sorted(used.keys() - highest.keys() - own):
        operators = ", ".join(sorted(used[domain]))
        if domain in _ONE_CPU:
            raise ExportError(
                f"{what} was optimised by ONNX Runtime for one kind of processor: it has operators of the "
                f"domain {domain!r} ({operators})",
                hint="give the file from before; ONNX Runtime optimises it where it is served",
            )
        if not domain.startswith("ai.onnx"):
            raise ExportError(
                f"{what} has operators of the domain {domain!r}, which ONNX Runtime lacks: {operators}",
                hint="they need a library of custom operators: adopt such a model as kind prebuilt, with "
                "model_operations in its config.pbtxt",
            )


def contrib_operators(model: onnx.ModelProto) -> list[str]:
    """Return the operators of ONNX Runtime's own domain that a file uses, sorted."""
    nodes = (node for graph in all_graphs(model) for node in graph.node)
    return sorted({node.op_type for node in nodes if node.domain == "com.microsoft"})


def _ml_opset(job: ExportJob) -> int | None:
    """Return the highest ai.onnx.ml opset of the release that the job's limits come from; None: unknown."""
    release = first_to_load(opset=job.opset, ir_version=job.ir_version)
    return onnx_limits(release).ml_opset if release else None


def _too_new(what: str, domain: str, version: int, highest: int | None) -> ExportError:
    if domain == "com.microsoft":
        return ExportError(
            f"{what} has opset {version} of the domain {domain!r}, of which every ONNX Runtime has 1 only",
            hint="write 1 into opset_import, or export it with a released ONNX Runtime",
        )
    if domain:
        return ExportError(
            f"{what} has opset {version} of the domain {domain!r}, the release runs at most {highest}",
            hint="export it again with versions of the tools that are as old as the release, or set a newer "
            "release in tt.yaml",
        )
    return ExportError(
        f"the exporter wrote opset {version}, but the release runs at most {highest}: PyTorch exports "
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
                raise fixed_dimension(wanted, extent, f" (input {want.name!r}, axis {axis})")


def _name_dimensions(model: onnx.ModelProto, job: ExportJob) -> None:
    """Give dynamic dimensions of inputs the names of the spec, wherever they occur.

    Not every version of the exporters takes the names.
    """
    declared = {tensor.name: tensor.shape for tensor in job.inputs}
    names: dict[str, str] = {}
    for value in model.graph.input:
        written = value.type.tensor_type.shape.dim
        for dim, extent in zip(written, declared.get(value.name, ()), strict=False):
            if dim.dim_param and isinstance(extent, str):
                names[dim.dim_param] = extent
                dim.dim_param = extent
    for value in [*model.graph.output, *model.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


def _name_single_sizes(model: onnx.ModelProto, job: ExportJob) -> None:
    """Write the names of dimensions with min = max, which were exported as fixed sizes.

    Triton's ONNX Runtime backend wants a variable first dimension wherever it batches, even where
    the only batch size is 1.
    """
    single = {name: dim.max for name, dim in job.dims.items() if dim.min == dim.max}
    declared: dict[str, tuple[Any, ...]] = {n: tuple(shape) for n, (_, shape) in job.outputs.items() if shape}
    declared |= {tensor.name: tensor.shape for tensor in job.inputs}
    batch = () if job.batch_dim is None else (job.batch_dim,)
    for value in [*model.graph.input, *model.graph.output]:
        written = value.type.tensor_type.shape.dim
        for dim, extent in zip(written, declared.get(value.name, batch), strict=False):
            if isinstance(extent, str) and dim.dim_value == single.get(extent):
                dim.dim_param = extent
