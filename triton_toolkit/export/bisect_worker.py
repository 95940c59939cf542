"""The child side of a bisect: ``python -m triton_toolkit.export.bisect_worker JOB.json OUT_DIR``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triton_toolkit._progress import Progress
from triton_toolkit.export.bisect import bisect
from triton_toolkit.export.context import Context
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.remote_session import sessions_of
from triton_toolkit.export.step_worker import run_worker
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.trust import loading


def _work(text: str, out: Path, progress: Progress) -> dict[str, Any]:
    job = ExportJob.from_json(text)
    context = Context(job, out, progress, ProjectFiles(job.root, [*job.ignored, str(out.resolve())]))
    with loading(trust=job.trust), sessions_of(job.runtime):
        return {"trials": [trial.as_dict() for trial in bisect(context)]}


if __name__ == "__main__":
    run_worker(_work)
