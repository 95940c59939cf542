"""An ONNX file taken as it is: copied with its external data, its tensors read and checked."""

from __future__ import annotations

import contextlib
import difflib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import host_errors
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.releases import first_to_load
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.clean import check_graph, write_graph
from triton_toolkit.export.context import Candidate, Context, check_deterministic, used_dims
from triton_toolkit.export.finish import check_opsets
from triton_toolkit.export.graph import (
    all_tensors,
    graph_inputs,
    graph_outputs,
    inline_functions,
    load_graph,
    versions_of,
    with_output_shapes,
)
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.memory import same_arrays
from triton_toolkit.export.onnx_habits import check_drawn, notes_on
from triton_toolkit.export.samples import InputMaker, SampleFunction, check_arrays, format_sizes, sizes_of
from triton_toolkit.export.session import RunFailed, Session

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_RESERVED = ("model.onnx", "samples.npz", "passport.json")


def prepare_onnx(context: Context) -> Candidate:
    """Copy the file and read its inputs and outputs.

    Its reference is the same file without the runtime's graph optimizations, so the proof shows that
    it runs at every size and that the optimizations keep its results. A dynamic dimension without a
    range takes its only size from the sample.

    Raises:
        ExportError: The file, its external data, or what the spec declares about it is wrong, or it
            does not run.
    """
    job = context.job
    context.step("read the ONNX file")
    context.dependencies.update(copy_onnx(job, context.path))
    model = load_graph(context.path)
    if model.functions:
        count = len(model.functions)
        model = inline_functions(model)
        write_graph(model, context.path)
        context.note(
            f"its {count} functions were written out as nodes: TensorRT before 9.1 does not read functions"
        )
    inputs, outputs = described_inputs(job, model), described_outputs(job, model)
    sample = context.sample_function()
    dims = _ranges(job, inputs, sample)
    maker = InputMaker(inputs, dims, sample)
    plain = Session(context.path, optimized=False)
    predict = _reference(plain, job.source, {tensor.name for tensor in outputs})
    golden = maker.golden_sizes(job.batch_dim)
    arrays, doing = maker.at(golden), f"fails at {format_sizes(golden)}"
    runs: list[Arrays] = []
    with contextlib.suppress(ExportError):  # the proof tells it, with all sizes that fail
        runs = [predict(arrays, doing), predict(arrays, doing)]
    if runs:
        check_drawn(model, job.source, same=same_arrays(*runs))
        check_deterministic(runs[0], runs[1], context.job.tolerances)
    for note in notes_on(model, job):
        context.note(note)
    return Candidate(
        predict=predict,
        session=Session(context.path),
        inputs=inputs,
        outputs=outputs,
        dims=dims,
        maker=maker,
    )


def _ranges(job: ExportJob, inputs: tuple[TensorSpec, ...], sample: SampleFunction | None) -> dict[str, Dim]:
    """Return the range of each dynamic dimension of the inputs, from the spec or the sample."""
    dims = used_dims(inputs, job.dims)
    if sample is not None and not sample.takes:
        arrays = sample.call({})
        check_arrays(arrays, inputs, "the sample")
        for name, size in sizes_of(arrays, inputs).items():
            dims.setdefault(name, Dim(name=name, min=size, opt=size, max=size))
    for tensor in inputs:
        for name in tensor.dynamic:
            if name not in dims:
                raise ExportError(
                    f"{job.source}: dimension {name!r} of input {tensor.name!r} is dynamic and has no range",
                    hint=f"add dims: {{{name}: [1, 8, 32]}} to the model (min, opt, max), or give a sample",
                )
        if job.batch_dim is not None and tensor.shape[:1] != (job.batch_dim,):
            raise ExportError(
                f"{job.source}: input {tensor.name!r} has shape {list(tensor.shape)}, which does not start "
                f"with the batch dimension {job.batch_dim!r}",
                hint="give the dimensions your names under inputs; a size that the file fixes stays fixed "
                "until it is exported again, so leave batch_dim out (max_batch_size 0)",
            )
    return dims


def _reference(session: Session, source: str, outputs: set[str]) -> Callable[[Arrays, str], Arrays]:
    def predict(arrays: Arrays, doing: str) -> Arrays:
        try:
            found = session.predict(arrays)
        except RunFailed as exc:
            node = f" in node {exc.node!r} ({exc.operator})" if exc.node else ""
            raise ExportError(f"{source} {doing}{node}: {exc.reason}") from exc
        return {name: array for name, array in found.items() if name in outputs}

    return predict


def copy_onnx(job: ExportJob, path: Path) -> list[str]:
    """Copy ``job.source`` to ``path`` and its external data beside it, bytes unchanged.

    Returns:
        The files that were copied, relative to the project's root (with ``..`` where outside of it).

    Raises:
        ExportError: Missing, not ONNX, too new for the release, or external data that is missing or
            lies outside the model's folder.
    """
    source = job.root / job.source
    model = load_graph(source)
    _check_versions(versions_of(model), job)
    check_opsets(model, job, job.source)
    names = sorted({_location(tensor.external_data, source) for tensor in all_tensors(model)} - {""})
    with host_errors(f"write {path.parent}"):
        shutil.copyfile(source, path)
        for name in names:
            target = path.parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.parent / name, target)
    _check(path, model)
    return [os.path.relpath(source.parent / name, job.root) for name in (source.name, *names)]


def _check(path: Path, model: onnx.ModelProto) -> None:
    """Check the copied file; one without output shapes through a version that has them.

    onnx.checker wants them, runtimes do not. The version stands beside the copy, where the external
    data is found, and goes.
    """
    shaped = with_output_shapes(model)
    if shaped is model:
        check_graph(path)
        return
    version = path.with_name(f"{path.stem}-shaped{path.suffix}")
    try:
        write_graph(shaped, version)
    finally:
        version.unlink(missing_ok=True)


def _location(entries: Iterable[onnx.StringStringEntryProto], source: Path) -> str:
    """Return a tensor's external file, checked; "" for one that is stored in the model."""
    name = next((entry.value for entry in entries if entry.key == "location"), "")
    if not name:
        return ""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or name in _RESERVED:
        raise ExportError(
            f"{source}: its external data {name!r} cannot be taken along",
            hint="save the model with external data in its own folder, under another name",
        )
    if not (source.parent / name).is_file():
        raise ExportError(
            f"{source}: its external data {name!r} is missing", hint="it belongs beside the .onnx file"
        )
    return name


def _check_versions(versions: dict[str, Any], job: ExportJob) -> None:
    opset = versions["opset"].get("", 0)
    first = first_to_load(opset=opset, ir_version=versions["ir_version"])
    newer = f'or set release: "{first}" in tt.yaml' if first else "no known Triton release loads it"
    if opset > job.opset:
        raise ExportError(
            f"{job.source} has opset {opset}, the release runs at most {job.opset}",
            hint=f"export it with an older opset; {newer}",
        )
    if versions["ir_version"] > job.ir_version:
        raise ExportError(
            f"{job.source} has ONNX IR version {versions['ir_version']}, the release reads at most "
            f"{job.ir_version}",
            hint=f"save it with an older IR version; {newer}",
        )


def described_inputs(job: ExportJob, model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the inputs: as the file has them, with the names of dimensions that the spec gives.

    Raises:
        ExportError: Declared inputs contradict the file.
    """
    written = graph_inputs(model)
    declared = {tensor.name: tensor for tensor in job.inputs} or {tensor.name: tensor for tensor in written}
    _check_names(declared, written, "input", job.source)
    for tensor in written:
        if tensor.name not in declared:
            raise ExportError(
                f"{job.source} has an input {tensor.name!r} that the spec does not declare",
                hint="declare all inputs, or none",
            )
    return tuple(_merge(tensor, declared[tensor.name], "input", job.source) for tensor in written)


def described_outputs(job: ExportJob, model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    """Return the declared outputs, all of the file's where none is; likewise.

    Raises:
        ExportError: Declared outputs contradict the file.
    """
    written = graph_outputs(model)
    _check_names(job.outputs, written, "output", job.source)
    outputs = []
    for tensor in written:
        if job.outputs and tensor.name not in job.outputs:
            continue
        dtype, shape = job.outputs.get(tensor.name, (None, None))
        declared = TensorSpec(
            name=tensor.name,
            dtype=tensor.dtype if dtype is None else DataType.parse(dtype),
            shape=tensor.shape if shape is None else tuple(shape),
        )
        outputs.append(_merge(tensor, declared, "output", job.source))
    return tuple(outputs)


def _check_names(declared: Iterable[str], written: tuple[TensorSpec, ...], kind: str, source: str) -> None:
    names = [tensor.name for tensor in written]
    for name in declared:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise ExportError(
                f"{source} has no {kind} {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"{kind}s of the file: {', '.join(names)}",
            )


def _merge(written: TensorSpec, declared: TensorSpec, kind: str, source: str) -> TensorSpec:
    fits = written.dtype is declared.dtype and len(written.shape) == len(declared.shape)
    # A size may be declared where the file leaves it open, never a name where the file fixes it.
    fits = fits and all(
        got == want or isinstance(got, str) for got, want in zip(written.shape, declared.shape, strict=True)
    )
    if not fits:
        raise ExportError(
            f"{source}: {kind} {written.name!r} is {written.dtype.spec} {list(written.shape)}, the spec says "
            f"{declared.dtype.spec} {list(declared.shape)}",
            hint="a dimension that the file fixes cannot be declared dynamic",
        )
    return declared
