"""Make a variant, in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from triton_toolkit._progress import Progress
from triton_toolkit.export.step import Step, run_step
from triton_toolkit.optimise.job import OptimiseJob, OptimiseReport


def run_optimise(job: OptimiseJob, out: Path, progress: Progress) -> OptimiseReport:
    """Make, judge and time one variant, in a child process.

    The user's metric and data are asked for in the model's own interpreter, where that is named.

    Args:
        job: What to make.
        out: An empty folder; gets ``model.onnx``, large weights beside it.
        progress: Is told each step.

    Raises:
        ExportError: The user's code or data is at fault, the model cannot have this precision, or the
            process crashed: then the message says how it ended and how to run it again.
        ParityError: The variant is not close enough to the original, whatever stays in FP32.
        MissingDependencyError: A package of the extras optimise or cpu is not installed.
        EnvironmentProblem: The disk is full or read-only.
        RuntimeError: A bug in the process; holds its traceback.
    """
    step = Step(
        root=job.root,
        model=job.name,
        stage=f"optimise-{job.variant}",
        module="triton_toolkit.optimise.worker",
        job=job.to_json(),
        inputs=(job.exported,),
    )
    report, log = run_step(step, out, progress)
    return replace(OptimiseReport.from_dict(report), log=log)
