"""What the parent asks of the optimise process, and what it gets back; both travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from triton_toolkit.core.compare import Tolerances
from triton_toolkit.core.dims import Dim, dims_from_json, dims_to_json
from triton_toolkit.core.tensors import TensorSpec

METHODS = ("minmax", "entropy", "percentile")
"""The ways to choose INT8 ranges from calibration data."""

Precision = Literal["fp16", "int8", "int8-fp16", "int8-dynamic"]
"""The precisions that are made from an FP32 file; fp32 is that file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiseJob:
    """One variant of a proven FP32 ONNX file.

    Attributes:
        root: Project folder; ``sample``, ``calibration`` and ``metric`` are found from here.
        name: Model name, for messages.
        variant: Name of the variant, for messages.
        precision: What is made.
        exported: Folder with ``model.onnx`` (large weights beside it) and ``samples.npz``.
        inputs: Input tensors of the file, dynamic dimensions by name.
        outputs: Output tensors, likewise.
        dims: Range of each dynamic dimension.
        batch_dim: The dimension that Triton batches over, None without.
        opset: Highest ONNX opset that the serving release runs.
        tolerances: How far the outputs may lie from the FP32 file's.
        sample: ``module:callable`` giving named example inputs; random ones without.
        calibration: ``module:callable`` giving real input batches; None without.
        calibrators: Of ``METHODS``: those that are tried.
        metric: ``module:callable`` taking ``predict``; None without.
        original_metric: The metric of the original model; None without.
        max_absolute_drop: Largest loss of the metric against the original.
        keep: Patterns of node names that stay in FP32.
        reduce_range: Whether INT8 weights use 7 bits.
        on_cpu: Whether the variant may be served on a CPU of this machine's kind: then it must be
            right with ONNX Runtime's own INT8 kernels too, and is timed with them.
        on_gpu: Whether it may be served on a GPU: then it must be right as its graph says.
        attempts: Most variants that the sensitivity search may try.
        timing_s: About how long it is timed against FP32 at most; less where it is soon decided.
        state: Folder for calibration tables and the search's state, kept between builds.
        hashed: Files that the build watches anyway, from the spec.
        ignored: Folders below ``root`` that are outputs of a build, never inputs.
        trust: Whether files that the user's code loads may run code of their own.
        python: The model's own interpreter; None for that of tt.
    """

    root: Path
    name: str
    variant: str
    precision: Precision
    exported: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    dims: Mapping[str, Dim] = field(default_factory=dict)
    batch_dim: str | None = None
    opset: int = 18
    tolerances: Tolerances
    sample: str | None = None
    calibration: str | None = None
    calibrators: tuple[str, ...] = METHODS
    metric: str | None = None
    original_metric: float | None = None
    max_absolute_drop: float = 0.0
    keep: tuple[str, ...] = ()
    reduce_range: bool = False
    on_cpu: bool = True
    on_gpu: bool = True
    attempts: int = 24
    timing_s: float = 8.0
    state: Path
    hashed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    trust: bool = False
    python: str | None = None

    @property
    def batched(self) -> bool:
        """Whether the first axis of every input is the batch."""
        return self.batch_dim is not None and all(t.shape[:1] == (self.batch_dim,) for t in self.inputs)

    def to_json(self) -> str:
        """Return it as indented JSON, readable by whoever reproduces a crash."""
        value: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        for name in ("root", "exported", "state"):
            value[name] = str(value[name])
        for name in ("inputs", "outputs"):
            value[name] = [tensor.as_dict() for tensor in value[name]]
        value["dims"] = dims_to_json(self.dims)
        value["tolerances"] = self.tolerances.as_dict()
        return json.dumps(value, indent=2)

    @classmethod
    def from_json(cls, text: str) -> OptimiseJob:
        """Read what ``to_json`` wrote."""
        value = json.loads(text)
        for name in ("root", "exported", "state"):
            value[name] = Path(value[name])
        for name in ("inputs", "outputs"):
            value[name] = tuple(TensorSpec.from_dict(item) for item in value[name])
        for name in ("calibrators", "keep", "hashed", "ignored"):
            value[name] = tuple(value[name])
        value["dims"] = dims_from_json(value["dims"])
        value["tolerances"] = Tolerances.from_dict(value["tolerances"])
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiseReport:
    """What the variant is, how far it lies from the original, and whether it is faster.

    Attributes:
        onnx: ``{"opset": {domain: version}, "ir_version": n}``, read back from the file.
        parity: One entry a held-out batch: ``sizes`` and the figures of each output.
        accuracy: ``metric``, ``original``, ``exported`` (the variant), ``drop``; {} where none was asked for.
        precision: What runs in which precision: ``nodes`` (precision -> number), ``kept`` (node ->
            why it stays in FP32), ``tried`` (what was made and how it did), ``curve`` of the search.
        speed: Figures of ``timing.Speed``; {} where it was not timed.
        dependencies: Files of the project that were read, relative to its root, sorted.
        tools: Package -> version.
        notes: What the user should know though nothing failed.
        log: Everything that the child process printed.
    """

    onnx: dict[str, Any] = field(default_factory=dict)
    parity: list[dict[str, Any]] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    dependencies: list[str] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> OptimiseReport:
        """Read what ``as_dict`` gave."""
        return cls(**{**value, "notes": tuple(value["notes"])})
