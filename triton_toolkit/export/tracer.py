"""PyTorch to ONNX with the older exporter, which records one run (a TorchScript trace).

It can write some models that torch.export refuses, and lower opsets. But whatever Python decides during
that run, a branch or a size read as a number, becomes a constant. Those decisions are collected: where they
are by values, the trace is refused; where they are by sizes, the proof runs at more of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.export.finish import PLACEHOLDER, Finished, finish, store
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.original import Original
from triton_toolkit.export.refusals import refusal, value_decision
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.watch import Line

if TYPE_CHECKING:
    from numpy.typing import NDArray

HIGHEST_OPSET = 20
"""The newest opset that this exporter has operators for; it is developed no further."""

_DECISION = re.compile(r"Converting a tensor to a Python (boolean|integer|float|number|index)")
_MOST_SIZES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What a trace gave beside the file.

    Attributes:
        finished: What is known of the file.
        decisions: Lines that took a size for a number or a branch -> their place in words.
    """

    finished: Finished
    decisions: dict[Line, str]


def export_traced(
    job: ExportJob,
    original: Original,
    example: Mapping[str, NDArray[Any]],
    path: Path,
    files: ProjectFiles,
    *,
    by_values: Mapping[Line, str],
) -> Traced:
    """Trace a model, write it as ONNX, and read back what was written.

    Args:
        job: What to export; its opset and IR version are upper limits.
        original: The model.
        example: Inputs at ``core.dims.example_sizes``.
        path: ``model.onnx``; large weights go beside it, into ``model.onnx.data``.
        files: The project's files, to name lines.
        by_values: Lines of forward that decide by values (``watch.Seen.decisions``).

    Raises:
        ExportError: The exporter refuses, forward decides by values, a dynamic dimension came out
            fixed, or the file needs a newer opset or IR version than the release has.
    """
    import onnx

    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        written = Path(scratch) / path.name
        lines = trace(job, original, example, written, files)
        for line in lines:
            if line in by_values:
                raise value_decision(f" ({by_values[line]})")
        store(onnx.load(str(written)), path, job.external_data_bytes)
    finished = finish(path, job, original.outputs, original.modules, files)
    return Traced(finished=finished, decisions={line: _words(line, files) for line in lines})


def trace(
    job: ExportJob, original: Original, example: Mapping[str, NDArray[Any]], path: Path, files: ProjectFiles
) -> list[Line]:
    """Write the ONNX file of a trace; return the lines where Python took something for a constant.

    Raises:
        ExportError: The exporter refuses.
    """
    import torch

    tensors = tuple(torch.from_numpy(example[tensor.name].copy()) for tensor in job.inputs)
    inputs = [PLACEHOLDER.format("input", n) for n in range(len(job.inputs))]
    free = {name for name, dim in job.dims.items() if dim.min < dim.max}
    axes = {
        name: {axis: extent for axis, extent in enumerate(tensor.shape) if extent in free}
        for name, tensor in zip(inputs, job.inputs, strict=True)
    }
    with warnings.catch_warnings(record=True) as told, torch.no_grad(), _no_output():
        warnings.simplefilter("always")
        try:
            torch.onnx.export(
                original.traceable(tensors),
                tensors,
                str(path),
                input_names=inputs,
                output_names=[PLACEHOLDER.format("output", n) for n in range(len(original.outputs))],
                opset_version=min(job.opset, HIGHEST_OPSET),
                dynamic_axes=axes,
                dynamo=False,
                verbose=True,  # or it keeps no stack traces
            )
        except Exception as exc:
            raise refusal(exc, files, "the TorchScript-based exporter") from exc
    decided = [warning for warning in told if _DECISION.search(str(warning.message))]
    return list(dict.fromkeys((warning.filename, warning.lineno) for warning in decided))


@contextlib.contextmanager
def _no_output() -> Iterator[None]:
    """Send what native code prints, the whole graph here, nowhere."""
    kept = os.dup(1)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _words(line: Line, files: ProjectFiles) -> str:
    return f"{files.relative(line[0]) or Path(line[0]).name}:{line[1]}"


def sizes_to_try(decisions: Sequence[Line], dims: Mapping[str, Dim]) -> list[Sizes]:
    """Return sizes at which a branch that nobody could read shows: all of a dimension, if they are few.

    Of more, evenly spaced ones and those near the numbers that stand in the line.
    """
    numbers = {int(number) for line in decisions for number in re.findall(r"\d+", _source(line))}
    opt = {name: dim.opt for name, dim in dims.items()}
    found = []
    for name, dim in dims.items():
        sizes = dim.sizes()
        near = {number + shift * dim.multiple_of for number in numbers for shift in (-1, 0, 1)} & set(sizes)
        spaced = sizes[:: -(-len(sizes) // _MOST_SIZES)]
        found += [opt | {name: size} for size in sorted({*spaced, *near})]
    return found


def _source(line: Line) -> str:
    import linecache

    return linecache.getline(*line)
