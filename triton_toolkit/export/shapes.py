"""The outputs' types and shapes: declared, written in the file, and observed, must all agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.core.tensors import Extent, TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.job import Declared, ExportJob
from triton_toolkit.export.parity import Shapes
from triton_toolkit.export.samples import format_sizes

Observed = Sequence[tuple[Sizes, Shapes]]


def settle_outputs(
    written: tuple[TensorSpec, ...], job: ExportJob, observed: Observed
) -> tuple[TensorSpec, ...]:
    """Return the outputs with a name for each dynamic dimension.

    Args:
        written: As they stand in the ONNX file.
        job: Holds what the spec declares.
        observed: The shapes that the original gave at each combination of sizes.

    Raises:
        ExportError: A declared dtype or shape is not what the model gives, or an output of a batched
            model does not start with the batch dimension.
    """
    for tensor in written:
        _check_rank(tensor, observed)
    if job.kind == "torch":
        written = tuple(_corrected(tensor, observed) for tensor in written)
    settled = tuple(_settle(tensor, job, observed) for tensor in written)
    for tensor in settled:
        _check_observed(tensor, observed)
        if job.batch_dim is not None and (not tensor.shape or tensor.shape[0] != job.batch_dim):
            raise ExportError(
                f"output {tensor.name!r} has shape {list(tensor.shape)}, which does not start with the batch "
                f"dimension {job.batch_dim!r}: Triton hands out one row of every output to each request",
                hint="leave batch_dim out (max_batch_size 0), or return one row for each input row",
            )
    return settled


def _check_rank(tensor: TensorSpec, observed: Observed) -> None:
    """Refuse an output that has more dimensions at some sizes than at others."""
    for sizes, shapes in observed:
        if len(shapes[tensor.name]) != len(tensor.shape):
            raise ExportError(
                f"output {tensor.name!r} has {len(tensor.shape)} dimensions in the export and "
                f"{len(shapes[tensor.name])} at {format_sizes(sizes)}",
                hint="squeeze() without an axis removes a batch of 1 as well: name the axis, squeeze(-1)",
            )


def _corrected(tensor: TensorSpec, observed: Observed) -> TensorSpec:
    """Return an output with its fixed sizes kept only where they were always observed.

    The exporter writes the example's size into the outputs of some loops (GRU) that give every size
    rightly. A file that came as ONNX is not ours to correct.
    """
    shape = tuple(
        f"{tensor.name}_{axis}"
        if isinstance(extent, int) and any(shapes[tensor.name][axis] != extent for _, shapes in observed)
        else extent
        for axis, extent in enumerate(tensor.shape)
    )
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=shape)


def _settle(tensor: TensorSpec, job: ExportJob, observed: Observed) -> TensorSpec:
    dtype, shape = job.outputs.get(tensor.name, (None, None))
    _check_declared(tensor, (dtype, shape))
    if shape is not None:
        return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=tuple(shape))
    extents = tuple(_extent(tensor, axis, job, observed) for axis in range(len(tensor.shape)))
    return TensorSpec(name=tensor.name, dtype=tensor.dtype, shape=extents)


def _check_declared(tensor: TensorSpec, declared: Declared) -> None:
    dtype, shape = declared
    if dtype is not None and dtype != tensor.dtype.spec:
        raise ExportError(
            f"output {tensor.name!r} is {tensor.dtype.spec}, the spec says {dtype}",
            hint=f"declare dtype: {tensor.dtype.spec}, or convert it in forward",
        )
    if shape is None:
        return
    fits = len(shape) == len(tensor.shape) and all(
        got == want or isinstance(got, str) for got, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        raise ExportError(
            f"output {tensor.name!r} has shape {list(tensor.shape)}, the spec says {list(shape)}",
            hint="declare what the model gives, or leave the shape out",
        )


def _extent(tensor: TensorSpec, axis: int, job: ExportJob, observed: Observed) -> Extent:
    """Name one dimension: by the file, else by the declared dimension that it always equals."""
    extent = tensor.shape[axis]
    if isinstance(extent, int):
        return extent
    dims: Mapping[str, Dim] = job.dims
    seen = [(sizes, shapes[tensor.name][axis]) for sizes, shapes in observed]
    equal = [name for name in dims if all(size == sizes.get(name) for sizes, size in seen)]
    if extent in equal:
        return extent
    if axis == 0 and job.batch_dim in equal:
        return str(job.batch_dim)
    return equal[0] if len(equal) == 1 else f"{tensor.name}_{axis}"


def _check_observed(tensor: TensorSpec, observed: Observed) -> None:
    """Check every observed shape; a name that is no dimension of the inputs may take any size."""
    for sizes, shapes in observed:
        shape = shapes[tensor.name]
        for extent, size in zip(tensor.shape, shape, strict=True):
            wanted = sizes.get(extent) if isinstance(extent, str) else extent
            if wanted is not None and size != wanted:
                raise ExportError(
                    f"output {tensor.name!r} has shape {list(shape)} at {format_sizes(sizes)}, expected "
                    f"{[sizes.get(e, e) if isinstance(e, str) else e for e in tensor.shape]} "
                    f"from {list(tensor.shape)}",
                    hint="declare what the model gives, or leave the shape out",
                )
