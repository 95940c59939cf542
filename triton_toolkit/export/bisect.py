"""Which exporter, opset and optimization of ONNX Runtime gives what the model gives: all of them tried."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from triton_toolkit._progress import Progress
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export import tracer
from triton_toolkit.export.context import Candidate, Context
from triton_toolkit.export.exported import Exporter
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.parity import try_cases
from triton_toolkit.export.proof import cases_of
from triton_toolkit.export.run import job_step
from triton_toolkit.export.session import Session
from triton_toolkit.export.step import run_step
from triton_toolkit.export.torch_onnx import HIGHEST_OPSET
from triton_toolkit.export.torch_source import export_candidate, load_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_LOWEST_OPSET = 17
"""Older ones are tried only where the release runs nothing newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One combination and what came of it.

    Attributes:
        exporter: ``dynamo`` or ``torchscript``.
        opset: The opset that was asked for.
        optimized: Whether ONNX Runtime's graph optimizations were on.
        outcome: ``right``, ``wrong``, or ``refused`` where there is no file to run.
        largest_error: Largest |a - b| of any output at any size; None where nothing could be compared.
        text: Why it is not right.
    """

    exporter: Exporter
    opset: int
    optimized: bool
    outcome: Literal["right", "wrong", "refused"]
    largest_error: float | None = None
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def run_bisect(job: ExportJob, out: Path, progress: Progress) -> tuple[Trial, ...]:
    """Try every combination, in one child process; see ``run.run_export``.

    Args:
        job: The model; its exporter does not matter, its opset is the highest that is tried.
        out: An empty folder, which is empty again afterwards.
        progress: Is told each trial.

    Raises:
        ExportError: The model itself fails, so there is nothing to compare with.
    """
    step = replace(job_step(job), stage="bisect", module="triton_toolkit.export.bisect_worker")
    report, _ = run_step(step, out, progress)
    return tuple(Trial(**trial) for trial in report["trials"])


def combinations(highest: int) -> Iterator[tuple[Exporter, int]]:
    """Yield exporters and opsets: from the highest that the release runs and the exporter writes, down."""
    exporters: tuple[tuple[Exporter, int], ...] = (
        ("dynamo", HIGHEST_OPSET),
        ("torchscript", tracer.HIGHEST_OPSET),
    )
    for exporter, newest in exporters:
        top = min(highest, newest)
        for opset in range(top, min(top, _LOWEST_OPSET) - 1, -1):
            yield exporter, opset


def bisect(context: Context) -> list[Trial]:
    """Try every combination in this process.

    Raises:
        ExportError: The model itself fails.
    """
    model = load_torch(context)
    answers: dict[str, Arrays] = {}

    def expected(arrays: Arrays, doing: str) -> Arrays:
        if doing not in answers:  # it names the sizes, and the same sizes have the same inputs
            answers[doing] = model.original.predict(arrays, doing)
        return answers[doing]

    trials: list[Trial] = []
    for exporter, opset in combinations(context.job.opset):
        context.step(f"try exporter {exporter}, opset {opset}")
        folder = context.out / f"{exporter}-{opset}"
        folder.mkdir()
        job = replace(context.job, exporter=exporter, opset=opset)
        here = replace(context, job=job, out=folder, progress=_Silent(), notes=[])
        chosen = replace(model, job=replace(model.job, exporter=exporter, opset=opset))
        try:
            candidate = replace(export_candidate(here, chosen), predict=expected)
        except ExportError as exc:
            trials.append(
                Trial(exporter=exporter, opset=opset, optimized=True, outcome="refused", text=exc.message)
            )
        else:
            trials += _judged(here, candidate, exporter, opset)
        shutil.rmtree(folder)
    return trials


def _judged(context: Context, candidate: Candidate, exporter: Exporter, opset: int) -> list[Trial]:
    """Judge a candidate as it is served and, where that is wrong, without graph optimizations.

    Raises:
        ExportError: The model itself fails.
    """
    trials = []
    cases = cases_of(candidate, candidate.maker.golden_sizes(context.job.batch_dim))
    for optimized in (True, False):
        session = candidate.session if optimized else Session(context.path, optimized=False)
        tried = try_cases(candidate.predict, session, cases, context.job.tolerances, candidate.sources)
        error = tried.error(lambda failed, right: "")
        if error is not None and not isinstance(error, ParityError):
            raise error
        figures = [output["max_absolute"] for entry in tried.proof.entries for output in entry["outputs"]]
        compared = not tried.broken and len(tried.proof.entries) == len(cases) and None not in figures
        trials.append(
            Trial(
                exporter=exporter,
                opset=opset,
                optimized=optimized,
                outcome="wrong" if error else "right",
                largest_error=max(figures, default=0.0) if compared else None,
                text=error.message if error else "",
            )
        )
        if error is None:
            break
    return trials


class _Silent:
    """The steps of one trial are no news."""

    def step(self, subject: str, text: str) -> None:
        """Do nothing."""

    def note(self, subject: str, text: str) -> None:
        """Do nothing."""
