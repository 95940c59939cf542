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
from triton_toolkit.export.exporters import Model, export_model
from triton_toolkit.export.graph import graph_outputs, load_graph
from triton_toolkit.export.load import load_model
from triton_toolkit.export.memory import check_memory, copy_of, same_arrays
from triton_toolkit.export.original import Original
from triton_toolkit.export.parity import explain_sizes
from triton_toolkit.export.samples import InputMaker, format_sizes
from triton_toolkit.export.watch import Seen, check_batch_statistics, check_random, watch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def prepare_torch(context: Context) -> Candidate:
    """Load the module, run it, export it.

    Raises:
        ExportError: Loading, the first forward, or the exporter failed.
        MissingDependencyError: torch, onnxscript or onnxruntime is not installed.
    """
    return export_candidate(context, load_torch(context))


def load_torch(context: Context) -> Model:
    """Load the module and see what its forward does.

    Raises:
        ExportError: Loading or the first forward failed, or it does what no export can keep.
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
    if len(original.placed) > 1:  # of one input there is nothing to mistake
        pairs = (f"{name} -> {parameter}" for name, parameter in original.placed.items())
        context.note(f"inputs go to forward's parameters by their order: {', '.join(pairs)}")
    example, seen = _try_forward(context, original, maker, dims)
    return Model(job=replace(job, dims=dims), original=original, maker=maker, example=example, seen=seen)


def export_candidate(context: Context, model: Model) -> Candidate:
    """Write ``model.onnx``.

    Raises:
        ExportError: No exporter that may be taken writes it.
    """
    context.step("export to ONNX")
    exported, session = export_model(context, model)
    return Candidate(
        predict=model.original.predict,
        session=session,
        inputs=model.job.inputs,
        outputs=graph_outputs(load_graph(context.path)),
        dims=dict(model.job.dims),
        maker=model.maker,
        exported=exported,
    )


def _try_forward(
    context: Context, original: Original, maker: InputMaker, dims: Mapping[str, Dim]
) -> tuple[Arrays, Seen]:
    """Run forward before the exporter does; return the example inputs and what forward did with them.

    So the user meets errors of forward as they are, not as the exporter's. Where it fails at the
    example's sizes, all other sizes are tried too, to tell a model that is broken from one that works
    at some sizes only.
    """
    sizes = example_sizes(dims)
    example = maker.at(sizes)
    twin = copy_of(original)
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
        raise _about_types(explain_sizes(exc, failed, right), original) from exc
    seen = _watch(context, original, example, first)
    if twin is None:
        context.note("the module cannot be copied, so nobody knows whether forward keeps what it saw first")
    else:
        check_memory(original, twin, (example, first), context.job.tolerances)
    return example, seen


def _about_types(error: ExportError, original: Original) -> ExportError:
    """Add a hint where forward fails because weights and inputs have different types."""
    kinds = {str(each.dtype) for each in original.adapter.parameters() if each.is_floating_point()}
    narrow = sorted(kinds & {"torch.bfloat16", "torch.float16"})
    if not narrow or "dtype" not in error.message:
        return error
    return ExportError(
        error.message,
        hint=f"the weights are {narrow[0].removeprefix('torch.')}: return module.float() from the source, or "
        "declare inputs of that type",
        detail=error.detail,
    )


def _watch(context: Context, original: Original, example: Arrays, first: Arrays) -> Seen:
    """Run forward again and see what it does; it must give the same, and nothing that cannot be exported."""
    tensors = original.tensors(example)
    with watch(tensors, context.files) as seen:
        second = original.run(tensors)
    check_random(seen, same_arrays(first, second))
    check_deterministic(first, second, context.job.tolerances)
    note = check_batch_statistics(seen, batched=context.job.batch_dim is not None)
    if note:
        context.note(note)
    return seen
