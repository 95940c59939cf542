"""The child side of a step: ``python -m MODULE JOB.json OUT_DIR``.

Prints progress as marked lines, and writes ``report.json`` beside the job file. An expected failure is
written there too, with the exit code of its class; anything else is a bug and leaves a traceback, a
marked line that says so, and no report.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton_toolkit._files import write_json
from triton_toolkit._progress import Progress
from triton_toolkit.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, TritonToolkitError

MARK = "\x1ftt "
"""Begins a line of progress; the unit separator does not occur in what people print."""

BUG = "bug"
"""Kind of the marked line that tells a bug of ours from user code that ends the process itself."""

REPORT_NAME = "report.json"

Work = Callable[[str, Path, Progress], dict[str, Any]]
"""Does a job, given as JSON: fills a folder, tells its progress, returns its report."""


def run_worker(work: Work) -> int:
    """Do the job that the command line names; returns the exit code, for ``sys.exit``.

    Where user code left threads or processes running, which Python would wait for, the process ends here.

    Args:
        work: Does it. What it raises of our own errors goes into the report.
    """
    code = _main_or_bug(work, sys.argv[1:])
    if _left_running():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def main(work: Work, arguments: list[str]) -> int:
    """Do the job of a command line; returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m MODULE JOB.json OUT_DIR\n")
        return EXIT_USAGE
    job_path, out = Path(arguments[0]), Path(arguments[1])
    out.mkdir(parents=True, exist_ok=True)
    report_path = job_path.with_name(REPORT_NAME)
    try:
        report = work(job_path.read_text(encoding="utf-8"), out, Lines())
    except TritonToolkitError as exc:
        write_json(report_path, {"error": exc.as_dict()})
        return exc.exit_code
    write_json(report_path, {"report": report})
    return EXIT_OK


class Lines:
    """Progress as marked lines on stdout, which the parent takes out of the log."""

    def step(self, subject: str, text: str) -> None:
        """Tell what is being done."""
        _write_line("step", subject, text)

    def note(self, subject: str, text: str) -> None:
        """Tell something that matters later."""
        _write_line("note", subject, text)


def _write_line(kind: str, subject: str, text: str) -> None:
    sys.stdout.write(f"{MARK}{json.dumps([kind, subject, text])}\n")
    sys.stdout.flush()


def _main_or_bug(work: Work, arguments: list[str]) -> int:
    try:
        return main(work, arguments)
    except Exception:  # noqa: BLE001 - the process edge: a bug keeps its traceback
        traceback.print_exc()
        _write_line(BUG, "", "")
        return EXIT_BUG


def _left_running() -> bool:
    """Say whether user code left a thread or process that Python waits for at its end."""
    threads = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    processes = sys.modules.get("multiprocessing.process")
    children = processes.active_children() if processes else ()
    return any(not item.daemon for item in (*threads, *children))
