"""PyTorch to ONNX by way of torch.export, dynamic dimensions by name."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import host_errors
from triton_toolkit.errors import ExportError
from triton_toolkit.export.capture import Captured
from triton_toolkit.export.finish import PLACEHOLDER, Finished, finish
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.original import Original
from triton_toolkit.export.refusals import refusal
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch

HIGHEST_OPSET = 21
"""Newest opset that is written, whatever the release could run. From 23 on the exporter writes an
attention as one operator, which opset 24 defined anew; the ONNX Runtime that proves the export is
not the one that serves it, and all of them agree on the small operators that 21 is written in."""


def export_captured(
    job: ExportJob, original: Original, captured: Captured, path: Path, files: ProjectFiles
) -> tuple[torch.export.ExportedProgram, Finished]:
    """Write a program of torch.export as ONNX, and read back what was written.

    Args:
        job: What to export; its opset and IR version are upper limits.
        original: The model.
        captured: Its program.
        path: ``model.onnx``; large weights go beside it, into ``model.onnx.data``.
        files: The project's files, to name the user's line in errors.

    Returns:
        The program as it was decomposed into what ONNX has operators for, and what is known of the file.

    Raises:
        ExportError: The exporter refuses, a dynamic dimension came out fixed, or the file needs a
            newer opset or IR version than the release has.
    """
    program = _convert(job, original, captured, files)
    weights = [value.const_value for value in program.model.graph.initializers.values()]
    size = sum(weight.nbytes for weight in weights if weight is not None)
    with host_errors(f"write {path}"):
        program.save(path, external_data=size > job.external_data_bytes)
    decomposed = program.exported_program or captured.program
    return decomposed, finish(path, job, original.outputs, original.modules, files)


def _convert(
    job: ExportJob, original: Original, captured: Captured, files: ProjectFiles
) -> torch.onnx.ONNXProgram:
    import torch

    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    names = tuple(
        {
            axis: n
            for axis, n in enumerate(tensor.shape)
            if n in job.dims and job.dims[str(n)].min < job.dims[str(n)].max
        }
        for tensor in job.inputs
    )
    with warnings.catch_warnings(), torch.no_grad(), _small_numbers_kept():
        warnings.simplefilter("ignore")  # forward's own were shown when it was tried
        try:
            program = torch.onnx.export(
                captured.program,
                (),
                input_names=[PLACEHOLDER.format("input", n) for n in range(len(job.inputs))],
                output_names=[PLACEHOLDER.format("output", n) for n in range(len(original.outputs))],
                opset_version=min(job.opset, HIGHEST_OPSET),
                dynamic_shapes=(names,),
                dynamo=True,
                verbose=False,
            )
        except Exception as exc:
            raise refusal(exc, files, "torch.onnx.export") from exc
    if program is None:  # only the older exporter returns None
        raise ExportError("torch.onnx.export gave no program")
    return program


@contextlib.contextmanager
def _small_numbers_kept() -> Iterator[None]:
    """Keep onnxscript from dropping additions of 1e-8 or less, and factors within 1e-5 of 1.

    It takes them for 0 and 1, but such an epsilon is what keeps a division from 0 / 0. Runtimes drop what
    truly does nothing. A version without these names keeps its rules; the proof's zeros show it.
    """
    from onnxscript import rewriter

    name = "_DEFAULT_REWRITE_RULES"
    every = getattr(rewriter, name, None)
    dropped = {id(rule) for rule in getattr(getattr(rewriter, "_no_op", None), "rules", ())}
    kept = tuple(rule for rule in every or () if id(rule) not in dropped)
    if not kept:
        yield
        return
    setattr(rewriter, name, kept)
    try:
        yield
    finally:
        setattr(rewriter, name, every)
