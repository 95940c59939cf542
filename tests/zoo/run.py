"""Take an architecture from its source to ONNX, FP16 and INT8, and keep how it went."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tests.zoo.catalogue import Architecture
from triton_toolkit._progress import Silent
from triton_toolkit.core.compare import default_tolerances
from triton_toolkit.errors import TritonToolkitError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.run import run_export
from triton_toolkit.optimise.job import OptimiseJob, OptimiseReport, Precision
from triton_toolkit.optimise.run import run_optimise
from triton_toolkit.repository.passport import read_samples

_HERE = Path(__file__).parent
OPSET, IR_VERSION = 21, 10
PRECISIONS: tuple[Precision, ...] = ("fp16", "int8")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of an architecture.

    Attributes:
        architecture: The architecture.
        exported: What the export says; None where it was refused.
        parameters: Values in the weights of the FP32 file.
        errors: ``export`` or precision -> largest error, as a share of the output's largest value.
        variants: Precision -> what the optimisation says, where it was not refused.
        refused: Precision (or ``export``) -> the reason, in the product's own words.
    """

    architecture: Architecture
    exported: ExportReport | None = None
    parameters: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    variants: dict[str, OptimiseReport] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Run:
    """One architecture in a scratch folder.

    Args:
        architecture: The architecture.
        folder: An empty one; becomes a project whose package ``zoo`` is a copy of this one.
    """

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self._architecture = architecture
        self._folder = folder
        self._exported = folder / "fp32"
        shutil.copytree(_HERE, folder / "zoo", ignore=shutil.ignore_patterns("__pycache__", "test_*"))

    @cached_property
    def _shared(self) -> dict[str, Any]:
        architecture = self._architecture
        return {
            "root": self._folder,
            "name": architecture.name,
            "inputs": architecture.input_specs,
            "dims": architecture.dim_ranges,
            "batch_dim": architecture.batch_dim,
            "sample": f"zoo.{architecture.data}.sample",
            "opset": OPSET,
            "metric": f"zoo.{architecture.metric}" if architecture.metric else None,
        }

    def outcome(self) -> Outcome:
        """Export it, make its variants, and keep what was refused."""
        refused: dict[str, str] = {}
        try:
            exported = self._export()
        except TritonToolkitError as exc:
            return Outcome(architecture=self._architecture, refused={"export": str(exc)})
        variants = {}
        for precision in PRECISIONS:
            try:
                variants[precision] = self._optimise(exported, precision)
            except TritonToolkitError as exc:
                refused[precision] = str(exc)
        return Outcome(
            architecture=self._architecture,
            exported=exported,
            parameters=_parameters(self._exported),
            errors=self._errors({"export": exported, **variants}),
            variants=variants,
            refused=refused,
        )

    def _export(self) -> ExportReport:
        self._exported.mkdir(parents=True)
        job = ExportJob(
            kind="torch",
            source=f"zoo.{self._architecture.source}",
            outputs=dict.fromkeys(self._architecture.outputs, (None, None)),
            ir_version=IR_VERSION,
            max_absolute_drop=0.01,
            **self._shared,
        )
        return run_export(job, self._exported, Silent())

    def _optimise(self, exported: ExportReport, precision: Precision) -> OptimiseReport:
        out = self._folder / precision
        out.mkdir()
        job = OptimiseJob(
            variant=precision,
            precision=precision,
            exported=self._exported,
            outputs=exported.outputs,
            tolerances=default_tolerances(precision),
            original_metric=exported.accuracy.get("original"),
            max_absolute_drop=self._architecture.drops.get(precision, 0.0),
            calibration=f"zoo.{self._architecture.data}.calibration",
            reduce_range=True,
            timing_s=0.1,
            state=self._folder / "state",
            **self._shared,
        )
        return run_optimise(job, out, Silent())

    def _errors(self, reports: Mapping[str, ExportReport | OptimiseReport]) -> dict[str, float]:
        """Return the largest errors over all sizes and outputs, by the golden sample's largest value."""
        samples = read_samples(self._exported)
        assert samples is not None
        largest = {name: float(np.abs(array).max()) for name, array in samples.outputs.items()}
        return {
            step: max(
                output["max_absolute"] / largest[output["output"]]
                for entry in report.parity
                for output in entry["outputs"]
            )
            for step, report in reports.items()
        }


def run(architecture: Architecture) -> Outcome:
    """Return what became of one architecture; its files are removed."""
    with tempfile.TemporaryDirectory(prefix="tt-zoo-") as folder:
        return Run(architecture, Path(folder)).outcome()


def _parameters(folder: Path) -> int:
    graph = load_graph(folder / "model.onnx").graph
    return sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)
