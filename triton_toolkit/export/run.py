"""The parent side: write the job, run the export process, read its report or its end."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_toolkit import errors
from triton_toolkit._files import write_text
from triton_toolkit._process import ChildResult, run_child
from triton_toolkit._progress import Progress
from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.worker import BUG, MARK, REPORT_NAME

_OUTPUT_TITLE = "--- printed by the export process ---\n"


def run_export(job: ExportJob, out: Path, progress: Progress) -> ExportReport:
    """Export or copy a model into ``out`` and prove it, in a child process.

    A job of kind ``sample`` only writes ``samples.npz``, without outputs.

    The child sees no GPU and a fixed hash seed, so that the same source and tools give the same
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
    folder = Path(tempfile.mkdtemp(prefix="tt-export-"))
    keep = False
    try:
        job_path = folder / "job.json"
        write_text(job_path, job.to_json() + "\n")
        # -P keeps the working directory off sys.path: a project's onnx.py must not shadow ours.
        argv = [
            sys.executable,
            "-P",
            "-m",
            "triton_toolkit.export.worker",
            str(job_path),
            str(out.resolve()),
        ]
        log: list[str] = []
        forward = _Forward(progress, log)
        child = run_child(argv, env=_environment(), cwd=job.root, on_line=forward)
        answer = _answer(folder)
        keep = answer is None
        if answer is None:
            raise _ended_without_report(job, child, "".join(log), is_bug=forward.bug)
        if "error" in answer:
            raise _error(job, answer["error"], "".join(log))
        return replace(ExportReport.from_dict(answer["report"]), log="".join(log))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


class _Forward:
    """Takes the progress lines out of the child's output and keeps the rest."""

    def __init__(self, progress: Progress, log: list[str]) -> None:
        self.bug = False
        self._progress = progress
        self._log = log

    def __call__(self, line: str) -> None:
        before, mark, after = line.partition(MARK)
        if not mark:
            self._log.append(line + "\n")
            return
        if before:
            self._log.append(before + "\n")
        kind, subject, text = json.loads(after)
        if kind == BUG:
            self.bug = True
            return
        (self._progress.note if kind == "note" else self._progress.step)(subject, text)


def _environment() -> dict[str, str]:
    """Return our environment without GPUs and with a fixed hash seed, for reproducible bytes.

    ONNX Runtime's official builds send usage data from 1.32 on unless they are told not to.
    """
    fixed = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
    return {"ORT_DISABLE_TELEMETRY": "1", **os.environ, **fixed}


def _answer(folder: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return answer


def _error(job: ExportJob, error: dict[str, str], log: str) -> TritonToolkitError:
    """Raise the child's error again here, under the model's name and with what it printed."""
    kind: type[TritonToolkitError] = getattr(errors, error["error"])
    detail = error["detail"] + (_OUTPUT_TITLE + log if log else "")
    return kind(_named(job, error["message"]), hint=error["hint"], detail=detail)


def _ended_without_report(job: ExportJob, child: ChildResult, log: str, *, is_bug: bool) -> Exception:
    """Tell a crash of native code, or user code that ends the process, from a bug of ours.

    The job file stays where it is, so that the command can be run again.
    """
    command = shlex.join(child.argv)
    if is_bug:
        return RuntimeError(f"the export process has a bug; run it again with: {command}\n{log}")
    cause = " (the system may have run out of memory)" if child.returncode == -signal.SIGKILL else ""
    if child.returncode >= 0:
        cause = " and no report: does the source, or what it imports, end the process itself (os._exit)?"
    return ExportError(
        _named(job, f"the export process ended with {child.how_it_ended}{cause}"),
        hint=f"run it again with: CUDA_VISIBLE_DEVICES= PYTHONHASHSEED=0 {command}",
        detail=log,
    )


def _named(job: ExportJob, message: str) -> str:
    return f"{job.name}: {message}" if job.name else message
