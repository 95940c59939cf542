"""The spec as types. Field descriptions become the JSON Schema that editors show.

This module is pydantic throughout and is imported only when a command reads a spec.
"""
# ruff: noqa: TID253 - the module is pydantic; its importers load it late

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, field_validator, model_validator

from triton_toolkit.core.sources import SourceKind, source_kind
from triton_toolkit.core.tolerances import Tolerances, default_tolerances
from triton_toolkit.spec.entries import (
    Accuracy,
    Auth,
    Base,
    DimEntry,
    Environment,
    InputEntry,
    Name,
    OutputEntry,
    Reference,
    ReleaseTag,
    Slo,
    Step,
    Tolerance,
    Variant,
)
from triton_toolkit.spec.faults import ManyRulesError, RuleError

_SCHEMES = ("grpc://", "grpcs://", "http://", "https://")


class _Model(Base):
    extends: str | None = Field(None, description="A family whose keys this model starts from.")
    slo: Slo | None = Field(None, description="What tt probe requires of it where no --slo is given.")
    tolerance: Tolerance = Field(
        default=Tolerance(), description="How far outputs may lie from the original's or the sample's."
    )
    env: Environment | None = Field(
        None, description="Where the model's own functions run; in the interpreter of tt where left out."
    )
    trust: StrictBool = Field(
        False, description="Let files that the model is loaded from run code of their own (pickles)."
    )

    def tolerances(self, variant: Variant | None = None) -> Tolerances:
        """Return what each output is held to: what the spec states, else the precision's own.

        Args:
            variant: For a variant's outputs; for the model itself (FP32) where left out.
        """
        precision, own = (variant.precision, variant.tolerance.stated()) if variant else ("fp32", {})
        every = replace(default_tolerances(precision).default, **self.tolerance.stated())
        outputs = {name: replace(every, **{**stated, **own}) for name, stated in self._stated_of_outputs()}
        return Tolerances(default=replace(every, **own), outputs=outputs)

    def _stated_of_outputs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and stated tolerance of outputs that have one of their own."""
        return iter(())


class _Served(_Model):
    serve: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of model_config.proto under their own names; values may carry units (1ms). "
        "`warmup: auto | none` is ours.",
    )


class _Described(_Served):
    """A model whose inputs, outputs and dimensions are written in the spec."""

    inputs: dict[str, InputEntry] = Field(
        default_factory=dict, description="Name -> dtype and shape, in the order that forward takes them."
    )
    outputs: dict[str, OutputEntry] = Field(
        default_factory=dict, description="Name -> dtype and shape, in the order that forward returns them."
    )
    dims: dict[str, DimEntry] = Field(default_factory=dict, description="Range of each dynamic dimension.")
    batch_dim: str | None = Field(
        None, description="The dimension that Triton may batch over; none means max_batch_size 0."
    )
    sample: Reference | None = Field(
        None,
        description="module:callable giving named example inputs; made at random where left out.",
    )
    hashed: list[str] = Field(
        default_factory=list, description="Files that the build depends on beyond the source's modules."
    )

    def _stated_of_outputs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, entry in self.outputs.items():
            if stated := entry.tolerance.stated():
                yield name, stated

    @model_validator(mode="after")
    def _dims_are_known(self) -> Self:
        faults = [*self._dim_faults(), *self._batch_faults()]
        if faults:
            raise ManyRulesError(faults)
        return self

    def _dim_faults(self) -> Iterator[RuleError]:
        used = {e for t in self.inputs.values() for e in t.shape if isinstance(e, str)}
        for name in sorted(used - set(self.dims)):
            yield RuleError(
                f"dimension {name!r} is used in inputs but has no range",
                hint=f"add {name}: [min, opt, max] to dims, such as [1, 8, 32]",
            )
        used |= {e for t in self.outputs.values() for e in t.shape or () if isinstance(e, str)}
        for name in sorted(set(self.dims) - used) if self.inputs else ():
            yield RuleError("has a range but no input or output uses it", "dims", name)

    def _batch_faults(self) -> Iterator[RuleError]:
        batch = self.batch_dim
        if batch is None:
            return
        if self.inputs and batch not in self.dims:
            known = ", ".join(self.dims) or "none declared"
            yield RuleError(f"{batch!r} is not one of dims ({known})", "batch_dim")
            return
        if batch in self.dims and self.dims[batch].min > 1:
            yield RuleError(
                f"starts at {self.dims[batch].min}, and Triton sends batches of 1; begin it at 1, or leave "
                "batch_dim out (max_batch_size 0)",
                "dims",
                batch,
            )
        shapes = {("inputs", name): entry.shape for name, entry in self.inputs.items()}
        shapes |= {("outputs", name): e.shape for name, e in self.outputs.items() if e.shape is not None}
        for where, shape in shapes.items():
            if not shape or shape[0] != batch:
                yield RuleError(
                    f"its shape must start with {batch!r}, the batch_dim: Triton batches over the first "
                    "dimension of every tensor",
                    *where,
                    hint="or leave batch_dim out (max_batch_size 0)",
                )


class _Exported(_Described):
    """A model that becomes an ONNX file, in one or several precisions."""

    accuracy: Accuracy | None = Field(
        None, description="A task metric that the export and every variant must keep."
    )
    variants: dict[Name, Variant] = Field(
        default_factory=lambda: {"fp32": Variant()},
        min_length=1,
        description="Forms that can be built, by name.",
    )
    serve_variant: str | None = Field(None, description="The one that is served; the first where left out.")
    also: list[str] = Field(
        default_factory=list, description="Further variants to build, each served as MODEL_VARIANT."
    )

    @model_validator(mode="after")
    def _variants_exist(self) -> Self:
        chosen: list[tuple[str, tuple[str | int, ...]]] = [
            (name, ("also", index)) for index, name in enumerate(self.also)
        ]
        if self.serve_variant is not None:
            chosen.append((self.serve_variant, ("serve_variant",)))
        for name, where in chosen:
            if name not in self.variants:
                raise RuleError(f"{name!r} is not one of {', '.join(self.variants)}", *where)
        for index, name in enumerate(self.also):
            if name == self.variant:
                raise RuleError(f"{name!r} is served under the model's own name already", "also", index)
            if name in self.also[:index]:
                raise RuleError(f"{name!r} is listed twice", "also", index)
        return self

    @model_validator(mode="after")
    def _drops_are_of_a_metric(self) -> Self:
        for name, variant in self.variants.items():
            if variant.max_absolute_drop is not None and self.accuracy is None:
                raise RuleError(
                    "has no metric that could drop",
                    *("variants", name, "max_absolute_drop"),
                    hint="give the model accuracy: {metric: module:callable}, or use tolerance",
                )
        return self

    @property
    def variant(self) -> str:
        """The name of the variant that is served under the model's own name."""
        return self.serve_variant or next(iter(self.variants))

    @property
    def unbuilt(self) -> list[str]:
        """The names of variants that are declared, and neither served nor listed under also."""
        return [name for name in self.variants if name != self.variant and name not in self.also]


class TorchModel(_Exported):
    """A PyTorch model, exported to ONNX and proven against the original."""

    kind: Literal["torch"] = "torch"
    source: str = Field(
        description="module:callable returning a torch.nn.Module; or the path of a .pt2 or TorchScript file, "
        "or of a Hugging Face model folder."
    )
    exporter: Literal["auto", "dynamo", "torchscript"] = Field(
        "auto",
        description="Which of PyTorch's exporters writes the ONNX file: the one based on torch.export "
        "(dynamo), the older one that records a run (torchscript), or the first of the two that can (auto).",
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.inputs:
            raise RuleError("inputs are missing: name each input with its dtype and shape")
        for name in self.dims:
            if not name.isidentifier():
                raise RuleError(
                    f"{name!r} cannot name a dimension of a PyTorch model: use letters, digits and _, "
                    "not starting with a digit",
                    "dims",
                    name,
                )
        _check_source(self.source)
        return self


def _check_source(source: str) -> None:
    kind = source_kind(source)
    if kind is None:
        module, _, name = source.rpartition(".")
        meant = f"write {module}:{name} for a function, " if module else "write module:function, "
        raise RuleError(
            f"{source!r} is neither module:callable nor a path",
            "source",
            hint=f"{meant}models/net.pt2 for a file, or ./{source.partition(':')[0]} for a folder",
        )
    if kind is SourceKind.PATH and source.endswith(".onnx"):
        raise RuleError(f"{source!r} is an ONNX file, not a PyTorch model", "source", hint="add kind: onnx")


class OnnxModel(_Exported):
    """An ONNX file, taken as it is; inputs and outputs are read from it."""

    kind: Literal["onnx"]
    source: str = Field(description="Path of the .onnx file; external data beside it is taken along.")


class PythonModel(_Described):
    """A model for Triton's Python backend: model.py and whatever it needs."""

    kind: Literal["python"]
    files: str = Field(description="Folder with model.py and its assets.")
    requirements: list[str] = Field(
        default_factory=list, description="Packages that model.py imports, as pip requirements."
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for kind in ("inputs", "outputs"):
            if not getattr(self, kind):
                raise RuleError(f"{kind} are missing: a Python model's tensors cannot be read off its code")
        for name, output in self.outputs.items():
            if output.shape is None or output.dtype is None:
                raise RuleError("needs dtype and shape: they cannot be read off the code", "outputs", name)
        return self


class PrebuiltModel(_Model):
    """A model folder adopted as it is: config.pbtxt and version folders."""

    kind: Literal["prebuilt"]
    path: str = Field(description="The model folder; its name may differ from the model's.")
    sample: Reference | None = Field(None, description="module:callable giving named example inputs.")


class EnsembleModel(_Served):
    """Several models of this project, wired by tensor name."""

    kind: Literal["ensemble"]
    steps: list[Step] = Field(min_length=1, description="Models of this project, or how they are wired.")
    outputs: list[str] = Field(
        default_factory=list,
        description="Ensemble tensors to return; those that no step consumes where left out.",
    )
    sample: Reference | None = Field(None, description="module:callable giving named example inputs.")


Model = Annotated[
    TorchModel | OnnxModel | PythonModel | PrebuiltModel | EnsembleModel, Field(discriminator="kind")
]


class Target(Base):
    """A Triton host: where its model repository is and where it listens."""

    store: str = Field(description="The server's model repository as seen from here: a local folder.")
    servers: list[str] = Field(min_length=1, description="grpc://HOST:PORT, grpcs://, http:// or https://")
    release: ReleaseTag | None = Field(None, description="Its Triton container, such as '24.10', in quotes.")
    auth: dict[str, Auth] = Field(default_factory=dict, description="Header -> {env: VARIABLE}.")
    keep: StrictInt = Field(2, ge=1, description="Versions to keep on the target, the serving one included.")

    @field_validator("store")
    @classmethod
    def _local(cls, value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator:
            raise RuleError(
                f"{scheme}:// stores are not supported by this version of tt; give a local folder"
            )
        return value

    @field_validator("servers")
    @classmethod
    def _one(cls, value: list[str]) -> list[str]:
        if len(value) > 1:
            raise RuleError("several servers over one store are not supported by this tt; give one")
        if not value[0].startswith(_SCHEMES):
            raise RuleError(
                f"{value[0]!r} must start with {', '.join(_SCHEMES)}", 0, hint="such as grpc://HOST:8001"
            )
        return value


def _format(value: object) -> object:
    if type(value) is not int or value != 1:  # true == 1 as well
        raise RuleError(f"must be 1, the format that this version of tt reads, got {value!r}")
    return value


class Spec(Base):
    """A project: its models, where they are built, and where they are deployed."""

    spec: Annotated[Literal[1], BeforeValidator(_format)] = Field(description="Version of this format.")
    repository: str = Field("model_repository", description="Folder that tt build writes.")
    release: ReleaseTag | None = Field(
        None,
        description="Oldest Triton container that the models must run on; sets opset and IR version.",
    )
    templates: str | None = Field(None, description="Folder whose templates override the shipped ones.")
    targets: dict[Name, Target] = Field(default_factory=dict, description="Where tt deploy --to goes.")
    families: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Keys that models share.")
    models: dict[Name, Model] = Field(min_length=1)
