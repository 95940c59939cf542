"""A PyTorch model becomes a candidate: loaded, tried, and exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from triton_toolkit._optional import require
from triton_toolkit.core.dims import Dim, example_sizes, proof_sizes
from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import ExportError
from triton_toolkit.export.context import Candidate, Context, check_deterministic, used_dims
from triton_toolkit.export.graph import graph_outputs, load_graph
from triton_toolkit.export.load import load_model
from triton_toolkit.export.original import Original
from triton_toolkit.export.parity import explain_sizes
from triton_toolkit.export.samples import InputMaker, format_sizes
from triton_toolkit.export.session import Session
from triton_toolkit.export.torch_onnx import export_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def prepare_torch(context: Context) -> Candidate:
    """Load the module, run it once, export it.

    Raises:
        ExportError: Loading, the first forward, or the exporter failed.
        MissingDependencyError: torch, onnxscript or onnxruntime is not installed.
    """
    job = context.job
    for package, extra in (("torch", "torch"), ("onnxscript", "torch"), ("onnxruntime", "cpu")):
        if package != "onnxruntime" or job.runtime is None:
            require(package, extra=extra, purpose="export a PyTorch model")
    for tensor in job.inputs:
        if tensor.dtype is DataType.BYTES:
            raise ExportError(
                f"input {tensor.name!r} is bytes, which PyTorch has no tensors of",
                hint="put a model of kind python before it, joined by an ensemble",
            )
    for name in {tensor.name for tensor in job.inputs} & set(job.outputs):
        raise ExportError(f"an input and an output are both called {name!r}, which ONNX does not allow")
    context.step("load the model")
    module = load_model(context)
    dims = used_dims(job.inputs, job.dims)
    maker = InputMaker(job.inputs, dims, context.sample_function())
    original = Original(module, [tensor.name for tensor in job.inputs], list(job.outputs), context.files)
    example = _try_forward(context, original, maker, dims)
    context.step("export to ONNX")
    sources = export_torch(replace(job, dims=dims), original, example, context.path, context.files)
    return Candidate(
        predict=original.predict,
        session=Session(context.path),
        inputs=job.inputs,
        outputs=graph_outputs(load_graph(context.path)),
        dims=dims,
        maker=maker,
        sources=sources,
    )


def _try_forward(context: Context, original: Original, maker: InputMaker, dims: Mapping[str, Dim]) -> Arrays:
    """Run forward before the exporter does, and return the example inputs.

    So the user meets errors of forward as they are, not as the exporter's. Where it fails at the
    example's sizes, all other sizes are tried too, to tell a model that is broken from one that works
    at some sizes only.
    """
    sizes = example_sizes(dims)
    example = maker.at(sizes)
    try:
        first = original.predict(example, f"fails at {format_sizes(sizes)}")
    except ExportError as exc:
        failed, right = [sizes], []
        for others in proof_sizes(dims):
            try:
                original.predict(maker.at(others))
            except ExportError:
                failed += [others] if others != sizes else []
            else:
                right.append(others)
        raise explain_sizes(exc, failed, right) from exc
    check_deterministic(first, original.predict(example), context.job.tolerances)
    return example
