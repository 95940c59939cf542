"""The child side: ``python -m triton_toolkit.export.worker JOB.json OUT_DIR``.

Prints progress as marked lines, writes ``report.json`` beside the job file and the model into
OUT_DIR. An expected failure is written there too, with the exit code of its class; anything else
is a bug and leaves a traceback, a marked line that says so, and no report.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from triton_toolkit._files import write_json
from triton_toolkit._progress import Progress
from triton_toolkit.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, ExportError, TritonToolkitError
from triton_toolkit.export.context import Context
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.remote_session import runtime_server
from triton_toolkit.export.samples import InputMaker
from triton_toolkit.export.session import running_in
from triton_toolkit.export.trace_files import FileTrace, ProjectFiles, native_readers
from triton_toolkit.export.trust import loading
from triton_toolkit.repository.passport import Samples, write_samples

MARK = "\x1ftt "
"""Begins a line of progress; the unit separator does not occur in what people print."""

BUG = "bug"
"""Kind of the marked line that tells a bug of ours from user code that ends the process itself."""

REPORT_NAME = "report.json"
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
    with trace.active(), loading(trust=job.trust), _runtime(job) as tools:
        report = _perform(context)
    for package in () if job.hashed else sorted(native_readers() - before - context.seen_readers):
        context.note(f"{package} reads files unseen by tt; list them under hashed so that a change rebuilds")
    versions = {"python": platform.python_version(), **_versions(), **tools}
    dependencies = sorted({*trace.dependencies(), *context.dependencies})
    return replace(report, dependencies=dependencies, tools=versions, notes=tuple(context.notes))


@contextlib.contextmanager
def _runtime(job: ExportJob) -> Iterator[dict[str, str]]:
    """Run sessions where the job says, and give the version of what runs them there."""
    if job.runtime is None:
        yield {}
        return
    with runtime_server(job.runtime) as server, running_in(server.open):
        yield {"onnxruntime": server.version}


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


class _Lines:
    """Progress as marked lines on stdout, which the parent takes out of the log."""

    def step(self, subject: str, text: str) -> None:
        _write_line("step", subject, text)

    def note(self, subject: str, text: str) -> None:
        _write_line("note", subject, text)


def _write_line(kind: str, subject: str, text: str) -> None:
    sys.stdout.write(f"{MARK}{json.dumps([kind, subject, text])}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run one job file; returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m triton_toolkit.export.worker JOB.json OUT_DIR\n")
        return EXIT_USAGE
    job_path, out = Path(arguments[0]), Path(arguments[1])
    job = ExportJob.from_json(job_path.read_text(encoding="utf-8"))
    out.mkdir(parents=True, exist_ok=True)
    report_path = job_path.with_name(REPORT_NAME)
    try:
        report = perform(job, out, _Lines())
    except TritonToolkitError as exc:
        write_json(report_path, {"error": exc.as_dict()})
        return exc.exit_code
    write_json(report_path, {"report": report.as_dict()})
    return EXIT_OK


def _main_or_bug(arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
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


if __name__ == "__main__":
    code = _main_or_bug(sys.argv[1:])
    if _left_running():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
