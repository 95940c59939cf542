"""Recipes for ONNX Runtime: a PyTorch model that is exported, and an ONNX file, in any precision."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from triton_toolkit._files import canonical_json, hash_tree, sha256_bytes
from triton_toolkit._progress import Progress
from triton_toolkit.build.configure import render
from triton_toolkit.build.recipe import (
    NOT_BUILT,
    Context,
    Made,
    environment_key,
    file_hashes,
    interpreter,
    spec_hash,
    tool_versions,
)
from triton_toolkit.build.stage import Stage, processor, run_stage
from triton_toolkit.core.dims import dims_to_json
from triton_toolkit.core.sources import SourceKind, near_path, source_kind
from triton_toolkit.errors import ExportError
from triton_toolkit.repository.layout import SAMPLES_NAME
from triton_toolkit.repository.passport import MISSING, Passport

if TYPE_CHECKING:
    from triton_toolkit.export.job import ExportJob, ExportReport
    from triton_toolkit.optimise.job import OptimiseJob, OptimiseReport, Precision
    from triton_toolkit.spec.entries import Variant
    from triton_toolkit.spec.models import OnnxModel, TorchModel

_OF_VARIANTS = frozenset({"variants", "serve_variant", "also"})
_SEARCH_FOLDER = ".tt/optimise"
"""Below the project's root: calibration tables and the state of sensitivity searches."""


class ExportRecipe:
    """Runs the export, which every variant starts from, and then what makes the variant."""

    backend = "onnxruntime"

    def __init__(self, context: Context, name: str, model: TorchModel | OnnxModel) -> None:
        self.name = name
        self.variant = model.variant
        self._context = context
        self._model = model
        if model.kind == "torch" and source_kind(model.source) is SourceKind.PATH:
            self._check_path(model.source)

    @property
    def measured(self) -> bool:
        """Whether the passport holds figures of this processor: every variant is timed."""
        return self._chosen.precision != "fp32"

    @property
    def _chosen(self) -> Variant:
        return self._model.variants[self.variant]

    def key(self) -> dict[str, str]:
        """Return the spec part, the release's limits, the tools, and the files named in the spec."""
        variant = {} if self._chosen.precision == "fp32" else self._variant_key()
        return {**self._export_key(), **variant}

    def _export_key(self) -> dict[str, str]:
        """Return what the FP32 file depends on, the same for all variants."""
        tools = ("onnx", "torch", "onnxscript") if self._model.kind == "torch" else ("onnx",)
        return {
            "spec": spec_hash(self._model, without=NOT_BUILT | _OF_VARIANTS),
            "opset": str(self._context.opset),
            "ir_version": str(self._context.ir_version),
            **tool_versions("triton-toolkit", "onnxruntime", *(() if self._model.env else tools)),
            **environment_key(self._context, self._model),
            **({} if self._export_served else {"served": "no"}),
            **{f"hashed {name}": sha for name, sha in self._hashed().items()},
        }

    @property
    def _export_served(self) -> bool:
        """Whether the FP32 file is a variant itself."""
        return any(variant.precision == "fp32" for variant in self._model.variants.values())

    def _variant_key(self) -> dict[str, str]:
        """Return what making the variant depends on beyond the FP32 file."""
        chosen = canonical_json(self._chosen.model_dump(mode="json"))
        return {
            "variant": sha256_bytes(chosen.encode()),
            "on cpu": str(self._on_cpu()),
            "on gpu": str(self._on_gpu()),
            "reduce_range": str(self._reduce_range()),
            **tool_versions("onnx"),  # ours, whatever the model's own environment has
        }

    def _hashed(self) -> dict[str, str]:
        root = self._context.project.root
        hashes = file_hashes(root, self._model.hashed)
        for index, name in enumerate(self._model.hashed):
            if hashes[name] == MISSING:
                at = ("models", self.name, "hashed", index)
                raise self._context.project.error(at, f"no such file: {name}")
        return hashes

    def _check_path(self, source: str) -> None:
        project = self._context.project
        path = project.root / source
        if not path.exists():
            near = near_path(path)
            meant = f"; did you mean {(Path(source).parent / near).as_posix()!r}?" if near else ""
            message = f"there is no file or folder {source!r}{meant}"
            raise project.error(("models", self.name, "source"), message, "a function is module:callable")

    def make(self, folder: Path, progress: Progress) -> Made:
        """Export and prove, then make and judge the variant; see ``export`` and ``optimise``."""
        if self._chosen.precision == "fp32":
            return self._made(self._export(folder, progress))
        with tempfile.TemporaryDirectory(prefix="tt-variant-") as scratch:
            exported = self._export(Path(scratch), progress)
            variant = self._optimise(Path(scratch), exported, folder, progress)
            shutil.copyfile(Path(scratch) / SAMPLES_NAME, folder / SAMPLES_NAME)
        return self._made(exported, variant)

    def _export(self, folder: Path, progress: Progress) -> ExportReport:
        from triton_toolkit.export.job import ExportReport
        from triton_toolkit.export.run import run_export

        stage = Stage(
            name="export",
            model=self.name,
            key=self._export_key,
            run=lambda: run_export(self.export_job(progress), folder, progress),
            read=ExportReport.from_dict,
            result="export" if self._model.kind == "torch" else "the checked ONNX file",
        )
        refused, key = self._context.refused, canonical_json(self._export_key())
        if key in refused:
            raise refused[key]
        try:
            return run_stage(self._context, stage, folder, progress)
        except ExportError as exc:
            refused[key] = exc
            raise

    def _optimise(
        self, exported: Path, report: ExportReport, folder: Path, progress: Progress
    ) -> OptimiseReport:
        from triton_toolkit.optimise.job import OptimiseReport
        from triton_toolkit.optimise.run import run_optimise

        given = {f"exported {name}": sha for name, sha in hash_tree(exported).items()}
        given["original metric"] = str(report.accuracy.get("original"))
        stage = Stage(
            name="optimise",
            model=self.name,
            key=lambda: {**self.key(), **given, "processor": processor()},
            run=lambda: run_optimise(self._optimise_job(exported, report, progress), folder, progress),
            read=OptimiseReport.from_dict,
        )
        return run_stage(self._context, stage, folder, progress)

    def _made(self, exported: ExportReport, variant: OptimiseReport | None = None) -> Made:
        made: dict[str, Any] = {
            "onnx": exported.onnx,
            "parity": exported.parity,
            "accuracy": exported.accuracy,
            "dependencies": tuple(exported.dependencies),
            "tools": exported.tools,
        }
        if variant is not None:
            made = {
                "onnx": variant.onnx,
                "parity": variant.parity,
                "accuracy": variant.accuracy,
                "precision": variant.precision,
                "speed": variant.speed,
                "tolerance": self._model.tolerances(self._chosen).as_dict(),
                "dependencies": tuple(sorted({*exported.dependencies, *variant.dependencies})),
                "tools": {**exported.tools, **variant.tools},
            }
        return Made(
            inputs=exported.inputs,
            outputs=exported.outputs,
            batch_dim=self._model.batch_dim,
            dims=dims_to_json(exported.dims),
            **made,
        )

    def config(self, passport: Passport) -> str:
        """Render the config from the passport and ``serve:``."""
        return render(self._context, passport, self._model.serve)

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield nothing: an exported model has no further files."""
        return iter(())

    def _on_cpu(self) -> bool:
        """Say whether the variant may be served on a CPU: unless every instance is asked onto a GPU."""
        return self._device_kinds() != {"KIND_GPU"}

    def _on_gpu(self) -> bool:
        """Say whether it may be served on a GPU: unless every instance is asked onto the CPU."""
        return self._device_kinds() != {"KIND_CPU"}

    def _device_kinds(self) -> set[str]:
        groups = self._model.serve.get("instance_group") or [{}]
        return {str(group.get("kind", "KIND_AUTO")) for group in groups if isinstance(group, dict)}

    def _reduce_range(self) -> bool:
        """Say whether INT8 weights get 7 bits, the same on every machine.

        A CPU without VNNI adds two products of 8 bits in 16, which saturates; nobody knows at build
        time on which CPU the model will be served.
        """
        chosen = self._chosen.reduce_range
        return self._on_cpu() if chosen is None else chosen

    def export_job(self, progress: Progress) -> ExportJob:
        """Return what the export process is asked; makes the model's environment where it needs one."""
        from triton_toolkit.export.job import ExportJob

        model = self._model
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
            python=interpreter(self._context, self.name, model.kind, progress),
            trust=model.trust,
            metric=model.accuracy.metric if model.accuracy else None,
            max_absolute_drop=model.accuracy.max_absolute_drop if model.accuracy else 0.0,
            served=self._export_served,
            exporter=model.exporter if model.kind == "torch" else "auto",
        )

    def _optimise_job(self, exported: Path, report: ExportReport, progress: Progress) -> OptimiseJob:
        from triton_toolkit.optimise.job import OptimiseJob

        model, chosen, root = self._model, self._chosen, self._context.project.root
        drop = model.accuracy.max_absolute_drop if model.accuracy else 0.0
        return OptimiseJob(
            root=root,
            name=self.name,
            variant=self.variant,
            precision=cast("Precision", chosen.precision),
            exported=exported,
            inputs=report.inputs,
            outputs=report.outputs,
            dims=report.dims,
            batch_dim=model.batch_dim,
            opset=self._context.opset,
            tolerances=model.tolerances(self._chosen),
            sample=model.sample,
            calibration=chosen.calibration,
            calibrators=tuple(chosen.calibrators),
            metric=model.accuracy.metric if model.accuracy else None,
            original_metric=report.accuracy.get("original"),
            max_absolute_drop=drop if chosen.max_absolute_drop is None else chosen.max_absolute_drop,
            keep=tuple(chosen.keep),
            reduce_range=self._reduce_range(),
            on_cpu=self._on_cpu(),
            on_gpu=self._on_gpu(),
            state=root / _SEARCH_FOLDER / self.name,
            hashed=tuple(model.hashed),
            ignored=self._context.ignored,
            trust=model.trust,
            python=interpreter(self._context, self.name, model.kind, progress),
        )
