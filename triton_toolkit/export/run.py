"""The parent side: write the job, run the export process, read its report or its end."""

from __future__ import annotations

import json
import os
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
from triton_toolkit.export import bootstrap
from triton_toolkit.export.environments import clean_environment
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.record import Command, StepRecord, shown_path
from triton_toolkit.export.worker import BUG, MARK, REPORT_NAME

_FIXED = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}
_WORKER = "triton_toolkit.export.worker"
_OUTPUT_TITLE = "--- printed by the export process ---\n"


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
    if job.python is not None:
        job = replace(job, runtime=sys.executable)
    folder = Path(tempfile.mkdtemp(prefix="tt-export-"))
    try:
        command = _command(job, folder / "job.json", out.resolve())
        write_text(command.job, job.to_json() + "\n")
        with StepRecord(job.root, job.name, "sample" if job.kind == "sample" else "export") as record:
            forward = _Forward(progress, record)
            child = run_child(command.argv, env=_environment(job), cwd=job.root, on_line=forward)
            answer = _answer(folder)
            if answer is None:
                how = record.keep_crash(command, child.how_it_ended)
                raise _ended_without_report(job, child, forward, how)
            if "error" in answer:
                raise _error(job, answer["error"], forward.text, record)
        return replace(ExportReport.from_dict(answer["report"]), log=forward.text)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(job: ExportJob, job_path: Path, out: Path) -> Command:
    path = None
    if job.python is None:
        # -P keeps the working directory off sys.path: a project's onnx.py must not shadow ours.
        start: tuple[str, ...] = (sys.executable, "-P", "-m", _WORKER)
        path = os.environ.get("PYTHONPATH")
    else:
        start = (job.python, str(bootstrap.__file__), _WORKER)
    return Command(
        argv=(*start, str(job_path), str(out)),
        job=job_path,
        out=out,
        variables={**_FIXED, **({"PYTHONPATH": path} if path else {})},
    )


class _Forward:
    """Takes the progress lines out of the child's output and keeps the rest."""

    def __init__(self, progress: Progress, record: StepRecord) -> None:
        self.bug = False
        self._progress = progress
        self._record = record
        self._log: list[str] = []

    @property
    def text(self) -> str:
        """What the child printed, without the progress lines."""
        return "".join(self._log)

    def __call__(self, line: str) -> None:
        before, mark, after = line.partition(MARK)
        if not mark or before:
            self._log.append(before + "\n")
            self._record.write(before + "\n")
        if not mark:
            return
        kind, subject, text = json.loads(after)
        if kind == BUG:
            self.bug = True
            return
        self._record.write(f"# {text}\n")
        (self._progress.note if kind == "note" else self._progress.step)(subject, text)


def _environment(job: ExportJob) -> dict[str, str]:
    """Return our environment without GPUs and with a fixed hash seed, for reproducible bytes.

    ONNX Runtime's official builds send usage data from 1.32 on unless they are told not to.
    """
    ours = os.environ if job.python is None else clean_environment()
    return {"ORT_DISABLE_TELEMETRY": "1", **ours, **_FIXED}


def _answer(folder: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return answer


def _error(job: ExportJob, error: dict[str, str], log: str, record: StepRecord) -> TritonToolkitError:
    """Return the child's error again here, under the model's name and with what it printed."""
    kind: type[TritonToolkitError] = getattr(errors, error["error"])
    record.write(f"{error['message']}\n{error['detail']}")
    detail = error["detail"] + (_OUTPUT_TITLE + log if log else "")
    return kind(_named(job, error["message"]), hint=_with_log(error["hint"], record), detail=detail)


def _ended_without_report(job: ExportJob, child: ChildResult, forward: _Forward, how: str) -> Exception:
    """Tell a crash of native code, or user code that ends the process, from a bug of ours."""
    if forward.bug:
        return RuntimeError(f"the export process has a bug; {how}\n{forward.text}")
    cause = " (the system may have run out of memory)" if child.returncode == -signal.SIGKILL else ""
    if child.returncode >= 0:
        cause = " and no report: does the source, or what it imports, end the process itself (os._exit)?"
    message = f"the export process ended with {child.how_it_ended}{cause}"
    return ExportError(_named(job, message), hint=how, detail=forward.text)


def _with_log(hint: str, record: StepRecord) -> str:
    if record.path is None:
        return hint
    log = f"its log: {shown_path(record.path)}"
    return f"{hint}; {log}" if hint else log


def _named(job: ExportJob, message: str) -> str:
    return f"{job.name}: {message}" if job.name else message
