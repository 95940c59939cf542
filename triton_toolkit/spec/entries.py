"""The small parts of a spec as types: tensors, dimensions, tolerances, objectives, steps.

This module is pydantic throughout and is imported only when a command reads a spec.
"""
# ruff: noqa: TID253 - the module is pydantic; its importers load it late

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictInt,
    field_validator,
    model_serializer,
    model_validator,
)

from triton_toolkit._files import check_name
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.releases import at_most
from triton_toolkit.core.slo import parse_slo
from triton_toolkit.core.sources import SourceKind, source_kind
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import TritonToolkitError
from triton_toolkit.spec.faults import RuleError

_NOT_YET = "is not built by this version of tt (backend onnxruntime is)"

Precision = Literal["fp32", "fp16", "int8", "int8-fp16", "int8-dynamic"]
Calibrator = Literal["minmax", "entropy", "percentile"]
_MAX_SIZE = 2**31 - 1


class Base(BaseModel):
    """What all parts of a spec share: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _name(value: str) -> str:
    try:
        return check_name(value, "name")
    except TritonToolkitError as exc:
        raise RuleError.of(exc) from exc


def _release(value: str) -> str:
    try:
        at_most(value)
    except TritonToolkitError as exc:
        raise RuleError.of(exc) from exc
    return value


def _dtype(value: str) -> str:
    return DataType.parse(value).spec


def _extent(value: Any) -> int | str:
    """Check a size or the name of a dynamic dimension."""
    example = "name a dynamic dimension (such as batch), or give a fixed size"
    if isinstance(value, str) and value.strip() and not value.strip().lstrip("+-").isdigit():
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIZE:
        return value
    raise RuleError(f"{value!r} is neither a size from 1 nor the name of a dimension", hint=example)


Name = Annotated[str, AfterValidator(_name)]
"""A name that becomes a folder."""

ReleaseTag = Annotated[str, AfterValidator(_release)]
"""A Triton container, such as 24.10."""


def _reference(value: str) -> str:
    if source_kind(value) is SourceKind.CALLABLE:
        return value
    dotted = value.removeprefix("./").replace("/", ".").replace(".py:", ":").replace(":", ".")
    module, _, name = dotted.rpartition(".")
    meant = f"{module}:{'function' if name == 'py' else name}"
    known = source_kind(meant) is SourceKind.CALLABLE
    raise RuleError(
        f"{value!r} is not module:callable",
        hint=f"name a function of a module of the project: {meant if known else 'module:function'}",
    )


Reference = Annotated[str, AfterValidator(_reference)]
"""A function of the project, as module:callable."""

DtypeName = Annotated[str, AfterValidator(_dtype)]

Extent = Annotated[int | str, BeforeValidator(_extent)]

Share = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]

Part = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]


class Tolerance(Base):
    """How far an output may lie from the original: |a - b| <= absolute + relative * |b| + range * R."""

    absolute: Share = Field(1e-4, description="Allowed error, in the output's own unit.")
    relative: Share = Field(1e-3, description="Further error, a fraction of the expected magnitude.")
    range: Share = Field(
        0.0,
        description="Further error, a fraction of R, the largest magnitude of the output, or how far its "
        "values are apart where that is less; where one output mixes ranges (boxes beside scores), of the "
        "element's own range.",
    )
    max_noise: Share | None = Field(
        None,
        description="Largest root mean square of the error, a fraction of the expected values' standard "
        "deviation, in each range of the output.",
    )
    top1: Part | None = Field(
        None,
        description="Least share of rows whose largest element is where it should be; of integers, least "
        "share that is equal.",
    )
    min_distinct: Part | None = Field(
        None, description="Least share of distinct values that each range of the output keeps."
    )
    max_zero_share_rise: Part | None = Field(
        None, description="Most that the share of exact zeros in a range of the output may rise."
    )

    @model_serializer(mode="wrap")
    def _without_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what is unset, so that a key that is new to tt does not make built models stale."""
        always = {"absolute", "relative"} | self.model_fields_set
        return {key: value for key, value in serialise(self).items() if key in always}

    def stated(self) -> dict[str, Any]:
        """Return the keys that the spec states; the others are those of the precision."""
        return {key: getattr(self, key) for key in self.model_fields_set}


class InputEntry(Base):
    """An input."""

    dtype: DtypeName = Field("fp32", description="fp32, fp16, int64, int32, uint8, bool, bytes, …")
    shape: list[Extent] = Field(
        description="Fixed sizes, and names of dynamic dimensions; the batch dimension included."
    )

    def tensor(self, name: str) -> TensorSpec:
        """Return it as the type that the stages use."""
        return TensorSpec(name=name, dtype=DataType.parse(self.dtype), shape=tuple(self.shape))


class OutputEntry(Base):
    """An output; where shape or dtype is left out, it is read from the exported model."""

    dtype: DtypeName | None = Field(None, description="As for inputs; read from the model where left out.")
    shape: list[Extent] | None = Field(None, description="Read from the model where left out.")
    tolerance: Tolerance = Field(
        default=Tolerance(), description="As the model's; its keys win over the model's, for this output."
    )

    @model_serializer(mode="wrap")
    def _without_unset(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        value: dict[str, Any] = serialise(self)
        if not self.tolerance.model_fields_set:
            del value["tolerance"]
        return value


class DimEntry(Base):
    """The range of a dynamic dimension: ``{min, opt, max}`` or ``[min, opt, max]``."""

    min: StrictInt = Field(1, ge=1, le=_MAX_SIZE)
    opt: StrictInt | None = Field(None, ge=1, description="The commonest size; max where left out.")
    max: StrictInt = Field(ge=1, le=_MAX_SIZE)
    multiple_of: StrictInt = Field(
        1, ge=1, le=_MAX_SIZE, description="Only multiples of this are sizes, such as 32 for image sides."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        if isinstance(value, list) and len(value) == 3:
            return dict(zip(("min", "opt", "max"), value, strict=True))
        if isinstance(value, dict):
            return value
        raise RuleError(f"must be [min, opt, max] or {{min: …, opt: …, max: …}}, got {value!r}")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        opt = self.max if self.opt is None else self.opt
        if not self.min <= opt <= self.max:
            raise RuleError(f"needs min <= opt <= max, got min {self.min}, opt {opt}, max {self.max}")
        for end, size in (("min", self.min), ("opt", opt), ("max", self.max)):
            if size % self.multiple_of:
                lower, upper = size - size % self.multiple_of, size + -size % self.multiple_of
                near = f"{lower} or {upper}" if lower else str(upper)
                raise RuleError(f"{end} {size} is no multiple of {self.multiple_of}", hint=f"near: {near}")
        return self

    def dim(self, name: str) -> Dim:
        """Return it as the type that the stages use."""
        opt = self.max if self.opt is None else self.opt
        return Dim(name=name, min=self.min, opt=opt, max=self.max, multiple_of=self.multiple_of)


class Variant(Base):
    """One precision and backend form of a model."""

    backend: Literal["onnxruntime"] = "onnxruntime"
    precision: Precision = Field(
        "fp32",
        description="fp32; fp16 and int8 as TensorRT takes them (FP32 inputs and outputs); int8-fp16: the "
        "rest in FP16; int8-dynamic: linear layers only, for serving on a CPU.",
    )
    calibration: Reference | None = Field(
        None,
        description="module:callable giving real input batches: a list of named arrays. INT8 is calibrated "
        "with them, FP16 looks for what overflows.",
    )
    calibrators: list[Calibrator] = Field(
        default=["minmax", "entropy", "percentile"],
        min_length=1,
        description="How INT8 ranges are chosen from the calibration data; each is tried, the best is kept.",
    )
    keep: list[str] = Field(
        default_factory=list,
        description="Modules (such as features.0 or head.*) or nodes (/head/Gemm) that stay in FP32.",
    )
    reduce_range: bool | None = Field(
        None,
        description="7-bit weights, for CPUs without VNNI, whose INT8 kernels saturate; where left out, "
        "yes unless every instance group is of KIND_GPU.",
    )
    max_absolute_drop: Share | None = Field(
        None, description="Largest loss of the accuracy metric; that of accuracy where left out."
    )
    tolerance: Tolerance = Field(
        default=Tolerance(),
        description="As the model's; its keys win over the model's and the outputs', for this variant.",
    )

    @model_validator(mode="before")
    @classmethod
    def _say_what_is_missing(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("backend", "onnxruntime") != "onnxruntime":
            raise RuleError(f"{value['backend']!r} {_NOT_YET}", "backend")
        return value

    @model_validator(mode="after")
    def _data_fits(self) -> Self:
        if self.precision in ("int8", "int8-fp16") and self.calibration is None:
            raise RuleError(
                f"precision {self.precision} needs calibration: module:callable giving real input batches",
                "calibration",
                hint="ranges measured on random data are wrong for real data; int8-dynamic needs none",
            )
        if self.precision in ("fp16", "int8-fp16") and self.reduce_range:
            raise RuleError(f"means nothing for precision {self.precision}", "reduce_range")
        if self.precision not in ("int8", "int8-fp16") and "calibrators" in self.model_fields_set:
            raise RuleError(f"means nothing for precision {self.precision}", "calibrators")
        if self.precision in ("fp32", "int8-dynamic"):
            for key in ("calibration", *(("keep", "reduce_range") if self.precision == "fp32" else ())):
                if getattr(self, key):
                    raise RuleError(f"means nothing for precision {self.precision}", key)
        return self


class Accuracy(Base):
    """A task metric that the export must keep."""

    metric: Reference = Field(
        description="module:callable taking predict (named arrays -> named arrays) and returning a number, "
        "higher is better."
    )
    max_absolute_drop: Share = Field(0.01, description="Largest loss against the original.")


class Slo(Base):
    """What `tt probe` requires where no --slo is given."""

    require: list[str] = Field(min_length=1, description="Conditions such as p99<20ms.")

    @field_validator("require")
    @classmethod
    def _parses(cls, value: list[str]) -> list[str]:
        for index, text in enumerate(value):
            try:
                parse_slo(text)
            except TritonToolkitError as exc:
                raise RuleError(exc.message, index, hint=exc.hint) from exc
        return value


class Step(Base):
    """One step of an ensemble; left-out maps wire tensors of equal name."""

    model: str
    inputs: dict[str, str] = Field(default_factory=dict, description="model input -> ensemble tensor")
    outputs: dict[str, str] = Field(default_factory=dict, description="model output -> ensemble tensor")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value


class Environment(Base):
    """Where a model's own functions run: an interpreter that is there, or one that is made from a lock."""

    python: str | None = Field(
        None,
        description="Path of a Python interpreter with torch, onnx and onnxscript; with lock, the one that "
        "the environment is made with.",
    )
    lock: str | None = Field(
        None, description="A pip requirements file; a virtual environment is made from it, once."
    )

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if not (self.python or self.lock):
            raise RuleError("names neither python nor lock", hint="such as {python: envs/nlp/bin/python}")
        return self


class Auth(Base):
    """A header's value, taken from the environment so that no secret is in the spec."""

    env: str
