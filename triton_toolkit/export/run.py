"""Run an export, in a process of its own."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from triton_toolkit._progress import Progress
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.step import Step, run_step


def run_export(job: ExportJob, out: Path, progress: Progress) -> ExportReport:
    """Export or copy a model into ``out`` and prove it, in a child process.

    A job of kind ``sample`` only writes ``samples.npz``, without outputs.

    It runs in the job's own interpreter, where that is named; ONNX Runtime then stays in this one. The
    child sees no GPU and a fixed hash seed, so that the same source and tools give the same
    bytes on every machine; its working directory is the project's root.

    Args:
        job: What to export.
        out: An empty folder; gets ``model.onnx`` (large weights beside it) and ``samples.npz``.
        progress: Is told each step.

    Raises:
        ExportError: The user's code, the exporter or the file is at fault, or the process crashed:
            then the message says how it ended and how to run it again.
        ParityError: The export is not what the original is, or cannot be batched.
        MissingDependencyError: A package of the extras torch or cpu is not installed.
        EnvironmentProblem: The disk is full or read-only.
        RuntimeError: A bug in the export process; holds its traceback.
    """
    report, log = run_step(job_step(job), out, progress)
    return replace(ExportReport.from_dict(report), log=log)


def job_step(job: ExportJob) -> Step:
    """Return the step that does a job."""
    if job.python is not None:
        job = replace(job, runtime=sys.executable)
    return Step(
        root=job.root,
        model=job.name,
        stage="sample" if job.kind == "sample" else "export",
        module="triton_toolkit.export.worker",
        job=job.to_json(),
        python=job.python,
    )
