"""The parent side of a step: write its job, run its process, read its report or its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit import errors
from triton_toolkit._files import write_text
from triton_toolkit._process import ChildResult, run_child
from triton_toolkit._progress import Progress
from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export import bootstrap
from triton_toolkit.export.interpreters import clean_environment
from triton_toolkit.export.record import Command, StepRecord, shown_path
from triton_toolkit.export.step_worker import BUG, MARK, REPORT_NAME

_FIXED = {"CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}

_DEFAULT = {
    "ORT_DISABLE_TELEMETRY": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_THRESHOLD_": str(2**25),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}
"""What holds unless the user has set it. PyTorch's threads spin while they wait for each other; where other
work takes a core, as on CI machines, that makes a ResNet-50 three times slower, and gains little elsewhere.
glibc gives the memory of every large tensor back at once, and the system fills each new one with zeros: a
sixth of the time of a ResNet-50. ONNX Runtime's official builds send usage data from 1.32 on unless they
are told not to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a build that runs in a process of its own.

    Attributes:
        root: The project's folder, the working directory of the process.
        model: Name of the model, for messages; may be empty.
        stage: What the step is called in messages and logs: export.
        module: The worker, run as ``python -m``; it ends with ``step_worker.run_worker``.
        job: What the worker reads, as JSON.
        python: The model's own interpreter; None for that of tt.
        inputs: Folders that the job names and that are gone after the step.
    """

    root: Path
    model: str
    stage: str
    module: str
    job: str
    python: str | None = None
    inputs: Sequence[Path] = ()


def run_step(step: Step, out: Path, progress: Progress) -> tuple[dict[str, Any], str]:
    """Run a step.

    The child sees no GPU and a fixed hash seed, so that the same source and tools give the same bytes on
    every machine.

    Args:
        step: What to run.
        out: An empty folder, which the step fills.
        progress: Is told what the worker tells.

    Returns:
        The worker's report, and everything that it printed.

    Raises:
        TritonToolkitError: What the worker raised, under the model's name.
        ExportError: The process crashed: the message says how it ended and how to run it again.
        RuntimeError: A bug in the worker; holds its traceback.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"tt-{step.stage}-"))
    try:
        command = _command(step, folder / "job.json", out.resolve())
        write_text(command.job, step.job + "\n")
        with StepRecord(step.root, step.model, step.stage) as record:
            forward = _Forward(progress, record)
            child = run_child(command.argv, env=_environment(step, folder), cwd=step.root, on_line=forward)
            answer = _answer(folder)
            if answer is None:
                how = record.keep_crash(command, child.how_it_ended)
                raise _ended_without_report(step, child, forward, how)
            if "error" in answer:
                raise _error(step, answer["error"], forward.text, record)
        report: dict[str, Any] = answer["report"]
        return report, forward.text
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _command(step: Step, job_path: Path, out: Path) -> Command:
    path = None
    if step.python is None:
        # -P keeps the working directory off sys.path: a project's onnx.py must not shadow ours.
        start: tuple[str, ...] = (sys.executable, "-P", "-m", step.module)
        path = os.environ.get("PYTHONPATH")
    else:
        start = (step.python, str(bootstrap.__file__), step.module)
    return Command(
        argv=(*start, str(job_path), str(out)),
        job=job_path,
        out=out,
        variables={**_FIXED, **({"PYTHONPATH": path} if path else {})},
        inputs=step.inputs,
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


def _environment(step: Step, temporary: Path) -> dict[str, str]:
    """Return our environment without GPUs and with a fixed hash seed, for reproducible bytes.

    Temporary files of the child lie in a folder that we remove, however the child ends.
    """
    ours = os.environ if step.python is None else clean_environment()
    return {**_DEFAULT, **ours, "TMPDIR": str(temporary), **_FIXED}


def _answer(folder: Path) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = json.loads((folder / REPORT_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return answer


def _error(step: Step, error: dict[str, str], log: str, record: StepRecord) -> TritonToolkitError:
    """Return the child's error again here, under the model's name and with what it printed."""
    kind: type[TritonToolkitError] = getattr(errors, error["error"])
    record.write(f"{error['message']}\n{error['detail']}")
    title = f"--- printed by the {step.stage} process ---\n"
    detail = error["detail"] + (title + log if log else "")
    return kind(_named(step, error["message"]), hint=_with_log(error["hint"], record), detail=detail)


def _ended_without_report(step: Step, child: ChildResult, forward: _Forward, how: str) -> Exception:
    """Tell a crash of native code, or user code that ends the process, from a bug of ours."""
    if forward.bug:
        return RuntimeError(f"the {step.stage} process has a bug; {how}\n{forward.text}")
    cause = " (the system may have run out of memory)" if child.returncode == -signal.SIGKILL else ""
    if child.returncode >= 0:
        cause = " and no report: does the source, or what it imports, end the process itself (os._exit)?"
    message = f"the {step.stage} process ended with {child.how_it_ended}{cause}"
    return ExportError(_named(step, message), hint=how, detail=forward.text)


def _with_log(hint: str, record: StepRecord) -> str:
    if record.path is None:
        return hint
    log = f"its log: {shown_path(record.path)}"
    return f"{hint}; {log}" if hint else log


def _named(step: Step, message: str) -> str:
    prefix = f"{step.model}: " if step.model else ""
    return prefix + message.removeprefix(prefix)  # a step may name the model itself
