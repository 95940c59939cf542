"""Recipes for ONNX Runtime: a PyTorch model that is exported, and an ONNX file taken as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._progress import Progress
from triton_toolkit.build.configure import render
from triton_toolkit.build.recipe import Context, Made, file_hashes, spec_hash, tool_versions
from triton_toolkit.build.stage import Stage, run_stage
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from triton_toolkit.export.job import ExportJob
    from triton_toolkit.spec.models import OnnxModel, TorchModel


class ExportRecipe:
    """Runs the export worker, which writes ``model.onnx`` and the golden samples."""

    backend = "onnxruntime"
    measured = False

    def __init__(self, context: Context, name: str, model: TorchModel | OnnxModel) -> None:
        self.name = name
        self.variant = model.variant if model.kind == "torch" else ""
        self._context = context
        self._model = model

    def key(self) -> dict[str, str]:
        """Return the spec part, the release's limits, the tools, and the files named in the spec."""
        tools = ("torch", "onnxscript") if self._model.kind == "torch" else ()
        return {
            "spec": spec_hash(self._model),
            "opset": str(self._context.opset),
            "ir_version": str(self._context.ir_version),
            **tool_versions("triton-toolkit", "onnx", "onnxruntime", *tools),
            **{f"hashed {name}": sha for name, sha in self._hashed().items()},
        }

    def _hashed(self) -> dict[str, str]:
        root = self._context.project.root
        hashes = file_hashes(root, self._model.hashed)
        for index, name in enumerate(self._model.hashed):
            if hashes[name] == "missing":
                at = ("models", self.name, "hashed", index)
                raise self._context.project.error(at, f"no such file: {name}")
        return hashes

    def make(self, folder: Path, progress: Progress) -> Made:
        """Export and prove; see ``triton_toolkit.export``."""
        from triton_toolkit.export.job import ExportReport
        from triton_toolkit.export.run import run_export

        stage = Stage(
            name="export",
            model=self.name,
            key=self.key,
            run=lambda: run_export(self._job(), folder, progress),
            read=ExportReport.from_dict,
        )
        report = run_stage(self._context, stage, folder, progress)
        return Made(
            inputs=report.inputs,
            outputs=report.outputs,
            batch_dim=self._model.batch_dim,
            dims={name: [dim.min, dim.opt, dim.max] for name, dim in report.dims.items()},
            onnx=report.onnx,
            parity=report.parity,
            accuracy=report.accuracy,
            dependencies=tuple(report.dependencies),
            tools=report.tools,
        )

    def config(self, passport: Passport) -> str:
        """Render the config from the passport and ``serve:``."""
        return render(self._context, passport, self._model.serve)

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield nothing: an exported model has no further files."""
        return iter(())

    def _job(self) -> ExportJob:
        from triton_toolkit.export.job import ExportJob

        model = self._model
        accuracy = model.accuracy if model.kind == "torch" else None
        return ExportJob(
            root=self._context.project.root,
            kind=model.kind,
            source=model.source,
            name=self.name,
            sample=model.sample,
            inputs=tuple(entry.tensor(name) for name, entry in model.inputs.items()),
            outputs={name: (entry.dtype, entry.shape) for name, entry in model.outputs.items()},
            dims={name: entry.dim(name) for name, entry in model.dims.items()},
            batch_dim=model.batch_dim,
            opset=self._context.opset,
            ir_version=self._context.ir_version,
            tolerances=model.tolerances(),
            hashed=tuple(model.hashed),
            ignored=self._context.ignored,
            metric=accuracy.metric if accuracy else None,
            max_absolute_drop=accuracy.max_absolute_drop if accuracy else 0.0,
        )
