"""``tt build --bisect``: what each exporter, opset and optimization makes of the models; writes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress
from triton_toolkit.build.exported import ExportRecipe
from triton_toolkit.build.run import BuildOptions, build_context
from triton_toolkit.errors import TritonToolkitError, UsageError
from triton_toolkit.spec.load import Project

if TYPE_CHECKING:
    from triton_toolkit.export.bisect import Trial
    from triton_toolkit.spec.models import TorchModel


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectReport:
    """What was tried of one model; ``error`` where the model itself fails."""

    name: str
    trials: tuple[Trial, ...] = ()
    error: TritonToolkitError | None = None

    @property
    def ok(self) -> bool:
        """Whether some combination is right."""
        return any(trial.outcome == "right" for trial in self.trials)

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "name": self.name,
            "ok": self.ok,
            "trials": [trial.as_dict() for trial in self.trials],
            "error": self.error.as_dict() if self.error else None,
        }


def bisect_models(project: Project, names: Sequence[str], progress: Progress) -> list[BisectReport]:
    """Try every exporter, opset and, where that is wrong, ONNX Runtime without graph optimizations.

    Args:
        project: The loaded spec.
        names: PyTorch models; all of the spec without names.
        progress: Is told each trial.

    Raises:
        UsageError: A named model is of another kind, or there is none of this.
        SpecError: An unknown model.
    """
    from triton_toolkit.export.bisect import run_bisect

    context = build_context(project, BuildOptions(), progress)
    models = _pytorch_models(project, names)
    reports = []
    for name, model in models.items():
        try:
            job = ExportRecipe(context, name, model).export_job(progress)
            with tempfile.TemporaryDirectory(prefix="tt-bisect-") as scratch:
                reports.append(BisectReport(name=name, trials=run_bisect(job, Path(scratch), progress)))
        except TritonToolkitError as exc:
            reports.append(BisectReport(name=name, error=exc))
    return reports


def _pytorch_models(project: Project, names: Sequence[str]) -> dict[str, TorchModel]:
    """Return the models to try, all of them known to be of the kind before the first takes its minutes."""
    found = {}
    own = (name for name in project.spec.models if name not in project.variant_of)  # they share one export
    for name in names or own:
        model = project.model(name)
        if model.kind == "torch":
            found[name] = model
        elif names:
            raise UsageError(
                f"{name} is of kind {model.kind}: --bisect is about how PyTorch models are exported",
                hint="name PyTorch models only; without names all of them are tried",
            )
    if not found:
        raise UsageError("this spec has no PyTorch model to bisect")
    return found
