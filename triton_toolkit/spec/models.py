"""The spec as types. Field descriptions become the JSON Schema that editors show.

This module is pydantic throughout and is imported only when a command reads a spec.
"""
# ruff: noqa: TID253 - the module is pydantic; its importers load it late

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from triton_toolkit._files import check_name
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.slo import parse_slo
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import TritonToolkitError

_NOT_YET = "is not built by this version of tt (backend onnxruntime, precision fp32 are)"


class _Base(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


def _check_shape(shape: list[int | str]) -> list[int | str]:
    for extent in shape:
        if isinstance(extent, int) and extent < 1:
            raise ValueError(
                f"size {extent} is not allowed; name a dynamic dimension (such as batch) instead"
            )
    return shape


class InputEntry(_Base):
    """An input."""

    dtype: str = Field("fp32", description="fp32, fp16, int64, int32, uint8, bool, bytes, …")
    shape: list[int | str] = Field(
        description="Fixed sizes, and names of dynamic dimensions; the batch dimension included."
    )

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, value: str) -> str:
        return DataType.parse(value).spec

    @field_validator("shape")
    @classmethod
    def _usable_shape(cls, value: list[int | str]) -> list[int | str]:
        return _check_shape(value)

    def tensor(self, name: str) -> TensorSpec:
        """Return it as the type that the stages use."""
        return TensorSpec(name=name, dtype=DataType.parse(self.dtype), shape=tuple(self.shape))


class OutputEntry(_Base):
    """An output; where shape or dtype is left out, it is read from the exported model."""

    dtype: str | None = Field(None, description="As for inputs; read from the model where left out.")
    shape: list[int | str] | None = Field(None, description="Read from the model where left out.")

    @field_validator("dtype")
    @classmethod
    def _known_dtype(cls, value: str | None) -> str | None:
        return None if value is None else DataType.parse(value).spec

    @field_validator("shape")
    @classmethod
    def _usable_shape(cls, value: list[int | str] | None) -> list[int | str] | None:
        return None if value is None else _check_shape(value)


class DimEntry(_Base):
    """The range of a dynamic dimension: ``{min, opt, max}`` or ``[min, opt, max]``."""

    min: int = Field(1, ge=1)
    opt: int | None = Field(None, ge=1, description="The commonest size; max where left out.")
    max: int = Field(ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list):
            if len(value) != 3:
                raise ValueError("a list of a range is [min, opt, max]")
            return dict(zip(("min", "opt", "max"), value, strict=True))
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        self.dim("")
        return self

    def dim(self, name: str) -> Dim:
        """Return it as the type that the stages use."""
        return Dim(name=name, min=self.min, opt=self.max if self.opt is None else self.opt, max=self.max)


class Tolerance(_Base):
    """How far a served output may lie from the original: |a - b| <= absolute + relative * |b|."""

    absolute: float = Field(1e-4, ge=0)
    relative: float = Field(1e-3, ge=0)


class Variant(_Base):
    """One precision and backend form of a model."""

    backend: Literal["onnxruntime"] = "onnxruntime"
    precision: Literal["fp32"] = "fp32"

    @model_validator(mode="before")
    @classmethod
    def _say_what_is_missing(cls, value: Any) -> Any:
        known = {"backend": ("onnxruntime",), "precision": ("fp32",)}
        for key, names in known.items():
            if isinstance(value, dict) and key in value and value[key] not in names:
                raise ValueError(f"{key} {value[key]!r} {_NOT_YET}")
        return value


class Accuracy(_Base):
    """A task metric that the export must keep."""

    metric: str = Field(
        description="module:callable taking predict (named arrays -> named arrays) and returning a number, "
        "higher is better."
    )
    max_absolute_drop: float = Field(0.01, ge=0, description="Largest loss against the original.")


class Slo(_Base):
    """What `tt probe` requires where no --slo is given."""

    require: list[str] = Field(min_length=1, description="Conditions such as p99<20ms.")

    @field_validator("require")
    @classmethod
    def _parses(cls, value: list[str]) -> list[str]:
        for text in value:
            try:
                parse_slo(text)
            except TritonToolkitError as exc:
                raise ValueError(exc.message) from exc
        return value


class _Model(_Base):
    extends: str | None = Field(None, description="A family whose keys this model starts from.")
    slo: Slo | None = None
    tolerance: Tolerance = Tolerance()


class _Served(_Model):
    serve: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of model_config.proto under their own names; values may carry units (1ms). "
        "`warmup: auto | none` is ours.",
    )


class _Described(_Served):
    """A model whose inputs, outputs and dimensions are written in the spec."""

    inputs: dict[str, InputEntry] = Field(default_factory=dict)
    outputs: dict[str, OutputEntry] = Field(default_factory=dict)
    dims: dict[str, DimEntry] = Field(default_factory=dict, description="Range of each dynamic dimension.")
    batch_dim: str | None = Field(
        None, description="The dimension that Triton may batch over; none means max_batch_size 0."
    )
    sample: str | None = Field(
        None,
        description="module:callable giving named example inputs; made at random where left out.",
    )
    hashed: list[str] = Field(
        default_factory=list, description="Files that the build depends on beyond the source's modules."
    )

    @model_validator(mode="after")
    def _dims_are_known(self) -> Self:
        used = {e for t in self.inputs.values() for e in t.shape if isinstance(e, str)}
        for name in sorted(used - set(self.dims)):
            raise ValueError(
                f"dimension {name!r} is used in inputs but has no range; add dims: {{{name}: [1, 8, 32]}}"
            )
        used |= {e for t in self.outputs.values() for e in t.shape or () if isinstance(e, str)}
        for name in sorted(set(self.dims) - used) if self.inputs else ():
            raise ValueError(f"dims.{name} has a range but no input or output uses it")
        if self.batch_dim is not None:
            self._check_batch_dim(self.batch_dim)
        return self

    def _check_batch_dim(self, batch: str) -> None:
        if self.inputs and batch not in self.dims:
            raise ValueError(
                f"batch_dim {batch!r} is not one of dims ({', '.join(self.dims) or 'none declared'})"
            )
        shapes = {f"inputs.{name}": entry.shape for name, entry in self.inputs.items()}
        shapes |= {f"outputs.{name}": e.shape for name, e in self.outputs.items() if e.shape is not None}
        for where, shape in shapes.items():
            if not shape or shape[0] != batch:
                raise ValueError(
                    f"{where}: Triton batches over the first dimension of every tensor, so its "
                    f"shape must start with {batch!r}; or leave batch_dim out (max_batch_size 0)"
                )


class TorchModel(_Described):
    """A PyTorch model, exported to ONNX and proven against the original."""

    kind: Literal["torch"] = "torch"
    source: str = Field(description="module:callable returning a torch.nn.Module.")
    accuracy: Accuracy | None = None
    variants: dict[str, Variant] = Field(default_factory=lambda: {"fp32": Variant()}, min_length=1)
    serve_variant: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.inputs:
            raise ValueError("inputs are missing: name each input with its dtype and shape")
        if ":" not in self.source:
            raise ValueError(f"source {self.source!r} is not module:callable, such as examples.digits:model")
        if self.serve_variant is not None and self.serve_variant not in self.variants:
            raise ValueError(f"serve_variant {self.serve_variant!r} is not one of {', '.join(self.variants)}")
        return self

    @property
    def variant(self) -> str:
        """The name of the variant that is built and served."""
        return self.serve_variant or next(iter(self.variants))


class OnnxModel(_Described):
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
                raise ValueError(f"{kind} are missing: a Python model's tensors cannot be read off its code")
        for name, output in self.outputs.items():
            if output.shape is None or output.dtype is None:
                raise ValueError(f"outputs.{name} needs dtype and shape: they cannot be read off the code")
        return self


class PrebuiltModel(_Model):
    """A model folder adopted as it is: config.pbtxt and version folders."""

    kind: Literal["prebuilt"]
    path: str = Field(description="The model folder; its name may differ from the model's.")
    sample: str | None = Field(None, description="module:callable giving named example inputs.")


class Step(_Base):
    """One step of an ensemble; left-out maps wire tensors of equal name."""

    model: str
    inputs: dict[str, str] = Field(default_factory=dict, description="model input -> ensemble tensor")
    outputs: dict[str, str] = Field(default_factory=dict, description="model output -> ensemble tensor")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value


class EnsembleModel(_Served):
    """Several models of this project, wired by tensor name."""

    kind: Literal["ensemble"]
    steps: list[Step] = Field(min_length=1)
    outputs: list[str] = Field(
        default_factory=list,
        description="Ensemble tensors to return; those that no step consumes where left out.",
    )
    sample: str | None = Field(None, description="module:callable giving named example inputs.")


Model = Annotated[
    TorchModel | OnnxModel | PythonModel | PrebuiltModel | EnsembleModel, Field(discriminator="kind")
]


class Auth(_Base):
    """A header's value, taken from the environment so that no secret is in the spec."""

    env: str


class Target(_Base):
    """A Triton host: where its model repository is and where it listens."""

    store: str = Field(description="The server's model repository as seen from here: a local folder.")
    servers: list[str] = Field(min_length=1, description="grpc://HOST:PORT, grpcs://, http:// or https://")
    release: str | None = Field(None, pattern=r"^\d\d\.\d\d$", description="Triton container, such as 24.10.")
    auth: dict[str, Auth] = Field(default_factory=dict, description="Header -> {env: VARIABLE}.")
    keep: int = Field(2, ge=1, description="Versions to keep on the target, the serving one included.")

    @field_validator("store")
    @classmethod
    def _local(cls, value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator:
            raise ValueError(
                f"{scheme}:// stores are not supported by this version of tt; give a local folder"
            )
        return value

    @field_validator("servers")
    @classmethod
    def _one(cls, value: list[str]) -> list[str]:
        if len(value) > 1:
            raise ValueError(
                "several servers over one store are not supported by this version of tt; give one"
            )
        return value


class Spec(_Base):
    """A project: its models, where they are built, and where they are deployed."""

    spec: Literal[1] = Field(description="Version of this format.")
    repository: str = Field("model_repository", description="Folder that tt build writes.")
    release: str | None = Field(
        None,
        pattern=r"^\d\d\.\d\d$",
        description="Oldest Triton container that the models must run on; sets opset and IR version.",
    )
    templates: str | None = Field(None, description="Folder whose templates override the shipped ones.")
    targets: dict[str, Target] = Field(default_factory=dict)
    families: dict[str, dict[str, Any]] = Field(default_factory=dict, description="Keys that models share.")
    models: dict[str, Model] = Field(min_length=1)

    @field_validator("models", "targets")
    @classmethod
    def _names(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            try:
                check_name(name, "name")
            except TritonToolkitError as exc:
                raise ValueError(f"{exc.message} ({exc.hint})") from exc
        return value
