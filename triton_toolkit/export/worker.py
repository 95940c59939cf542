"""The child side of an export: ``python -m triton_toolkit.export.worker JOB.json OUT_DIR``.

Writes the model and the golden samples into OUT_DIR; see ``step_worker`` for the rest.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from triton_toolkit._progress import Progress
from triton_toolkit.errors import ExportError
from triton_toolkit.export.context import Context
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.remote_session import sessions_of
from triton_toolkit.export.samples import InputMaker
from triton_toolkit.export.step_worker import run_worker
from triton_toolkit.export.trace_files import FileTrace, ProjectFiles, imported_readers, native_readers
from triton_toolkit.export.trust import loading
from triton_toolkit.repository.passport import Samples, write_samples

_TOOLS = ("torch", "onnxscript", "onnx", "onnxruntime", "numpy")


def perform(job: ExportJob, out: Path, progress: Progress) -> ExportReport:
    """Do the job in this process; ``out`` must exist and be empty.

    Raises:
        ExportError: The user's code, the exporter or the file is at fault.
        ParityError: The export is not what the original is, or cannot be batched.
        MissingDependencyError: A package of the extras torch or cpu is not installed.
    """
    files = ProjectFiles(job.root, [*job.ignored, str(out.resolve())])
    context = Context(job, out, progress, files)
    trace = FileTrace(files)
    before = native_readers()
    with trace.active(), loading(trust=job.trust), sessions_of(job.runtime) as tools:
        report = _perform(context)
    read = {*trace.dependencies(), *context.dependencies}
    if not job.hashed:
        _note_unseen(context, trace, (native_readers() - before) | imported_readers(job.root, read))
    versions = {"python": platform.python_version(), **_versions(), **tools}
    dependencies = sorted({*read, *trace.missing()})
    return replace(report, dependencies=dependencies, tools=versions, notes=tuple(context.notes))


def _note_unseen(context: Context, trace: FileTrace, readers: frozenset[str]) -> None:
    """Tell what may have read files that decide about the model and that nobody saw."""
    unseen = [f"{package} reads" for package in sorted(readers - context.seen_readers)]
    if trace.ran_programs:
        unseen.append("programs that the source runs read")
    for what in unseen:
        context.note(f"{what} files unseen by tt; list them under hashed so that a change rebuilds")


def _perform(context: Context) -> ExportReport:
    from triton_toolkit.export.onnx_source import prepare_onnx
    from triton_toolkit.export.proof import prove_candidate
    from triton_toolkit.export.torch_source import prepare_torch

    match context.job.kind:
        case "sample":
            return _make_sample(context)
        case "torch":
            return prove_candidate(context, prepare_torch(context))
        case "onnx":
            return prove_candidate(context, prepare_onnx(context))


def _make_sample(context: Context) -> ExportReport:
    """Write only the golden inputs: the user's sample, or random arrays without one."""
    job = context.job
    context.step("make the sample")
    function = context.sample_function()
    if job.inputs:
        maker = InputMaker(job.inputs, job.dims, function)
        arrays = maker.at(maker.golden_sizes(job.batch_dim))
    elif function is None:
        raise ExportError("there are no declared inputs and no sample to make golden inputs from")
    else:
        arrays = function.call({name: dim.opt for name, dim in job.dims.items()})
    write_samples(context.out, Samples(arrays, {}))
    return ExportReport(inputs=job.inputs, dims=dict(job.dims))


def _versions() -> dict[str, str]:
    """Return the versions of the tools that are loaded: those are the ones that mattered."""
    return {name: metadata.version(name) for name in _TOOLS if name in sys.modules}


def _work(text: str, out: Path, progress: Progress) -> dict[str, Any]:
    return perform(ExportJob.from_json(text), out, progress).as_dict()


if __name__ == "__main__":
    sys.exit(run_worker(_work))
