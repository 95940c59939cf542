"""Which exporter writes a model: torch.export's, or where that refuses the older one, and why."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.dims import Sizes, example_sizes
from triton_toolkit.errors import ExportError
from triton_toolkit.export.capture import Captured, capture
from triton_toolkit.export.context import Context
from triton_toolkit.export.exported import WORDS, Exported
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.inner_values import module_values, program_values
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.original import Original
from triton_toolkit.export.samples import InputMaker
from triton_toolkit.export.session import Session
from triton_toolkit.export.torch_onnx import export_captured
from triton_toolkit.export.tracer import export_traced, sizes_to_try, trace
from triton_toolkit.export.watch import Seen

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What there is to export.

    Attributes:
        job: The job, its dimensions those that inputs have.
        original: The model.
        maker: Makes inputs.
        example: Inputs at ``core.dims.example_sizes``.
        seen: What forward did when it was watched.
    """

    job: ExportJob
    original: Original
    maker: InputMaker
    example: Arrays
    seen: Seen


def export_model(context: Context, model: Model) -> tuple[Exported, Session]:
    """Write ``model.onnx`` with the declared exporter, or with the first of both that can.

    Args:
        context: Where to write, and whom to tell.
        model: What to export.

    Returns:
        What was written, and the file as it is served.

    Raises:
        ExportError: No exporter writes it; holds the reason of each that was tried.
    """
    job = model.job
    captured, first = _capture(context, model)
    if job.exporter != "torchscript":
        if captured is not None:
            try:
                return _from_captured(context, model, captured)
            except ExportError as exc:
                first = exc
        if job.exporter == "dynamo" and first is not None:
            raise first
        _clear(context)
        context.step("export to ONNX with the older exporter, which records one run")
    try:
        return _from_trace(context, model, captured, first)
    except ExportError as exc:
        if first is None or job.exporter == "torchscript":
            raise
        raise both(first, exc) from exc


def both(first: ExportError, second: ExportError) -> ExportError:
    """Return one error about two exporters, of the second's class."""
    if first.message.startswith(second.message):
        return first
    return type(second)(
        f"{first.message}. The TorchScript-based exporter, tried next: {second.message}",
        hint=first.hint or second.hint,
        detail="\n\n".join(error.detail for error in (first, second) if error.detail),
    )


def _capture(context: Context, model: Model) -> tuple[Captured | None, ExportError | None]:
    """Run torch.export, whichever exporter writes the file: it knows where forward branches on sizes."""
    if model.original.compiled:
        return None, ExportError("it is TorchScript, which torch.export does not follow")
    try:
        return capture(model.job, model.original, model.example, context.files), None
    except ExportError as exc:
        return None, exc


def _from_captured(context: Context, model: Model, captured: Captured) -> tuple[Exported, Session]:
    program, finished = export_captured(model.job, model.original, captured, context.path, context.files)
    exported = Exported(
        exporter="dynamo",
        sources=finished.sources,
        branches=captured.branches,
        widened=finished.widened,
        inner=partial(program_values, model.original, program, context.path),
    )
    return exported, Session(context.path)


def _from_trace(
    context: Context, model: Model, captured: Captured | None, first: ExportError | None
) -> tuple[Exported, Session]:
    job, original = model.job, model.original
    traced = export_traced(
        job, original, model.example, context.path, context.files, by_values=model.seen.decisions
    )
    session = Session(context.path)
    sizes: list[Sizes] = []
    if captured is None and traced.decisions:  # nobody knows at which sizes it takes another path
        sizes = sizes_to_try(list(traced.decisions), job.dims)
        context.note(
            "the trace keeps what forward decided by the example's sizes "
            f"({', '.join(traced.decisions.values())}); it is proven at {len(sizes)} combinations of them"
        )
    refused = first if job.exporter == "auto" else None
    if refused is not None:
        context.note(f"{WORDS['torchscript']} wrote it, because the other refused: {refused.message}")
    exported = Exported(
        exporter="torchscript",
        sources=traced.finished.sources,
        widened=traced.finished.widened,
        branches=captured.branches if captured else (),
        sizes=tuple(sizes),
        refused=refused,
        inner=partial(module_values, original, context.path),
        again=partial(_again, context, model),
    )
    return exported, session


def _again(context: Context, model: Model, names: Sequence[str]) -> onnx.ModelProto | None:
    """Trace once more, from an example of other sizes of these dimensions; None where that fails."""
    sizes = example_sizes(model.job.dims)
    for name in names:
        sizes[name] = model.job.dims[name].example_size(set(sizes.values()))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / context.path.name
            trace(model.job, model.original, model.maker.at(sizes), path, context.files)
            return load_graph(path)
    except ExportError:
        return None


def _clear(context: Context) -> None:
    """Remove what the first exporter left."""
    for path in context.out.iterdir():
        path.unlink()
