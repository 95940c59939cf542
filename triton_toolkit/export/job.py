"""What the parent asks of the export process, and what it gets back; both travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from triton_toolkit.core.compare import Tolerances, default_tolerances
from triton_toolkit.core.dims import Dim, dims_from_json, dims_to_json
from triton_toolkit.core.tensors import Extent, TensorSpec

Declared = tuple[str | None, Sequence[Extent] | None]
"""An output's dtype (as in ``tt.yaml``) and shape; None where they are read from the model."""

EXTERNAL_DATA_BYTES = 1536 * 2**20
"""Weights above this go to a file beside the model: protobuf refuses messages over 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """One export, or one run of a sample function.

    Attributes:
        root: Project folder; ``source`` and ``sample`` are found from here.
        kind: ``torch``, ``onnx``, or ``sample`` (only call the sample function).
        source: ``module:callable`` giving an nn.Module, or the path of a file or folder with a model.
        sample: ``module:callable`` giving named example inputs; random ones without.
        inputs: As the spec declares them; may be empty for an ONNX file.
        outputs: As the spec declares them; empty means the model's own names.
        dims: Range of each dynamic dimension.
        batch_dim: The dimension that Triton batches over, None without.
        opset: Highest ONNX opset that the serving release runs.
        ir_version: Highest ONNX IR version that the serving release reads.
        tolerances: How far each output may lie from the original's.
        metric: ``module:callable`` taking ``predict``; None without.
        max_absolute_drop: Largest loss of the metric against the original.
        served: Whether the FP32 file itself is a variant of the model; else the metric is measured with
            the original only, for the variants that are made from the file.
        exporter: Of PyTorch's two exporters the one to take; ``auto``: the first that can.
        name: Model name, for messages.
        hashed: Files that the build watches anyway, from the spec.
        ignored: Folders below ``root`` that are outputs of a build, never inputs.
        external_data_bytes: Weights larger than this in total are stored beside the model.
        trust: Whether files that the model is loaded from may run code of their own.
        python: The model's own interpreter; None for that of tt.
        runtime: The interpreter that has ONNX Runtime; None where the job's own has it.
    """

    root: Path
    kind: Literal["torch", "onnx", "sample"]
    source: str
    sample: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: Mapping[str, Declared] = field(default_factory=dict)
    dims: Mapping[str, Dim] = field(default_factory=dict)
    batch_dim: str | None = None
    opset: int = 18
    ir_version: int = 8
    tolerances: Tolerances = field(default_factory=lambda: default_tolerances("fp32"))
    metric: str | None = None
    max_absolute_drop: float = 0.0
    served: bool = True
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto"
    name: str = ""
    hashed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    external_data_bytes: int = EXTERNAL_DATA_BYTES
    trust: bool = False
    python: str | None = None
    runtime: str | None = None

    def to_json(self) -> str:
        """Return it as indented JSON, readable by whoever reproduces a crash."""
        value = {item.name: getattr(self, item.name) for item in fields(self)}
        value["root"] = str(self.root)
        value["inputs"] = [tensor.as_dict() for tensor in self.inputs]
        value["outputs"] = {
            name: [d, None if s is None else list(s)] for name, (d, s) in self.outputs.items()
        }
        value["dims"] = dims_to_json(self.dims)
        value["tolerances"] = self.tolerances.as_dict()
        return json.dumps(value, indent=2)

    @classmethod
    def from_json(cls, text: str) -> ExportJob:
        """Read what ``to_json`` wrote."""
        value = json.loads(text)
        value["root"] = Path(value["root"])
        value["inputs"] = tuple(TensorSpec.from_dict(item) for item in value["inputs"])
        value["outputs"] = {name: (dtype, shape) for name, (dtype, shape) in value["outputs"].items()}
        value["dims"] = dims_from_json(value["dims"])
        value["tolerances"] = Tolerances.from_dict(value["tolerances"])
        value["hashed"], value["ignored"] = tuple(value["hashed"]), tuple(value["ignored"])
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export made and proved.

    Attributes:
        inputs: Input tensors, batch dimension included, dynamic dimensions by name.
        outputs: Output tensors, likewise.
        dims: Range of each dynamic dimension that the proof covered.
        onnx: ``{"opset": {domain: version}, "ir_version": n}``, read back from the file.
        parity: One entry a combination of sizes: ``sizes`` and the figures of each output.
        accuracy: ``metric``, ``original``, and of a file that is served ``exported`` and ``drop``; {}
            where none was asked for.
        dependencies: Files of the project that were read, relative to its root, sorted.
        tools: Package -> version.
        notes: What the user should know though nothing failed.
        log: Everything that the child process printed.
    """

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    dims: dict[str, Dim] = field(default_factory=dict)
    onnx: dict[str, Any] = field(default_factory=dict)
    parity: list[dict[str, Any]] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)
    dependencies: list[str] = field(default_factory=list)
    tools: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        value: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        value["inputs"] = [tensor.as_dict() for tensor in self.inputs]
        value["outputs"] = [tensor.as_dict() for tensor in self.outputs]
        value["dims"] = dims_to_json(self.dims)
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> ExportReport:
        """Read what ``as_dict`` gave."""
        read = dict(value)
        read["inputs"] = tuple(TensorSpec.from_dict(item) for item in value["inputs"])
        read["outputs"] = tuple(TensorSpec.from_dict(item) for item in value["outputs"])
        read["dims"] = dims_from_json(value["dims"])
        read["notes"] = tuple(value["notes"])
        return cls(**read)
