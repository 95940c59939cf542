"""From what a build knows of a model, and the spec's ``serve:``, to the ModelConfig that Triton reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from triton_toolkit.config.fields import fill_message
from triton_toolkit.config.rules import Finding, Severity, check_config
from triton_toolkit.config.scalars import ServeKeyError, whole
from triton_toolkit.config.tensors import add_tensors
from triton_toolkit.config.warmup import warmup_samples
from triton_toolkit.core.tensors import TensorSpec

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

__all__ = ["ConfigDescription", "EnsembleStep", "ServeKeyError", "build_message", "check_serve"]

_DERIVED = {
    "name": ("is the model's key in the spec", "rename the model there"),
    "backend": ("comes from the model's kind and variant", "choose it there"),
    "platform": ("comes from the model's kind and variant", "choose it there"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One step of an ensemble: a model, and the ensemble tensors at its inputs and outputs.

    ``model_version`` -1 is the latest one; the maps go from the model's names to the ensemble's.
    """

    model_name: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_version: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDescription:
    """All that a config.pbtxt is made from.

    Attributes:
        name: The model's name on the server.
        backend: Triton's backend; empty for an ensemble.
        platform: ``ensemble``, or empty: Triton fills in what belongs to the backend.
        max_batch_size: Largest batch that the build has proven; 0 without a batch dimension.
        inputs: Input tensors, the batch dimension included.
        outputs: Output tensors, likewise.
        batch_dim: Name of the dimension that Triton batches over; None without.
        default_model_filename: The model's file, where it is not the backend's usual one.
        serve: Fields of model_config.proto from the spec, without ``warmup``.
        warmup: ``auto`` derives model_warmup from the shapes, unless ``serve`` has one.
        warmup_sizes: Sizes of the other dynamic dimensions to warm up with; each has all of them.
        ensemble_steps: The steps of an ensemble.
    """

    name: str
    backend: str
    max_batch_size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_dim: str | None
    platform: str = ""
    default_model_filename: str = ""
    serve: Mapping[str, Any] = field(default_factory=dict)
    warmup: Literal["auto", "none"] = "none"
    warmup_sizes: Sequence[Mapping[str, int]] = ()
    ensemble_steps: tuple[EnsembleStep, ...] = ()


def build_message(description: ConfigDescription) -> ModelConfig:
    """Return the config that a description stands for, checked against the server's rules.

    Raises:
        ServeKeyError: A key of ``serve`` that is unknown, derived by tt, or makes a config that the
            server refuses; its ``path`` is relative to ``serve``.
    """
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    check_serve(description.serve)
    _refuse_file(description)
    message = ModelConfig()
    fill_message(message, _free(description.serve))
    message.name = description.name
    message.backend = description.backend
    message.platform = description.platform
    message.max_batch_size = _max_batch_size(description)
    if description.default_model_filename:
        message.default_model_filename = description.default_model_filename
    batch_dim = description.batch_dim if description.max_batch_size else None
    for side, tensors in (("input", description.inputs), ("output", description.outputs)):
        add_tensors(message, side, tensors, batch_dim=batch_dim, serve=description.serve.get(side, {}))
    _add_steps(message, description.ensemble_steps)
    if description.warmup == "auto" and not message.model_warmup and not description.ensemble_steps:
        shapes = {tensor.name: tensor for tensor in description.inputs}
        message.model_warmup.extend(
            warmup_samples(message, shapes, batch_dim=batch_dim, sizes=description.warmup_sizes)
        )
    _raise_first(check_config(message))
    return message


def check_serve(serve: Mapping[str, Any]) -> None:
    """Check what needs no built model: the names, types and units of the keys of ``serve``.

    Raises:
        ServeKeyError: As ``build_message``, for those.
    """
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    for key, (why, hint) in _DERIVED.items():
        if key in serve:
            raise ServeKeyError((key,), f"cannot be set: it {why}", hint)
    ensemble = serve.get("ensemble_scheduling")
    if isinstance(ensemble, Mapping) and "step" in ensemble:
        raise ServeKeyError(
            ("ensemble_scheduling", "step"), "cannot be set: it comes from the spec's steps", "edit steps"
        )
    fill_message(ModelConfig(), _free(serve))


def _free(serve: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are taken over as they are."""
    return {key: value for key, value in serve.items() if key not in ("input", "output", "max_batch_size")}


def _refuse_file(description: ConfigDescription) -> None:
    if "default_model_filename" in description.serve and (
        description.default_model_filename or description.backend == "onnxruntime"
    ):
        raise ServeKeyError(
            ("default_model_filename",), "cannot be set: tt names the file that it builds", "leave it out"
        )


def _max_batch_size(description: ConfigDescription) -> int:
    """Return the batch size to serve: at most what the build has proven."""
    largest = description.max_batch_size
    if "max_batch_size" not in description.serve:
        return largest
    path = ("max_batch_size",)
    wanted = whole(description.serve["max_batch_size"], path)
    if not largest and wanted:
        raise ServeKeyError(
            path, f"{wanted} needs a batch dimension, and this model has none", "name it with batch_dim"
        )
    if largest and not 1 <= wanted <= largest:
        raise ServeKeyError(
            path,
            f"{wanted} is outside 1 to {largest}, the sizes that the build has proven",
            f"raise the maximum of dimension {description.batch_dim}"
            if wanted > largest
            else "without batch_dim, max_batch_size is 0",
        )
    return wanted


def _add_steps(message: ModelConfig, steps: Iterable[EnsembleStep]) -> None:
    for step in steps:
        entry = message.ensemble_scheduling.step.add()
        entry.model_name = step.model_name
        entry.model_version = step.model_version
        entry.input_map.update(step.input_map)
        entry.output_map.update(step.output_map)


def _raise_first(findings: Iterable[Finding]) -> None:
    for finding in findings:
        if finding.severity is Severity.ERROR:
            raise ServeKeyError(finding.path, f"{finding.message}; {finding.consequence}", finding.hint)
