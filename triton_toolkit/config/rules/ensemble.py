"""Rules on ensembles, as far as they need no other model.

Source: triton-inference-server/core, src/model_config_utils.cc, ValidateEnsembleSchedulingConfig; read at
commit 73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.rule import Problem, Severity, rule

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

_FOREIGN = ("instance_group", "optimization", "model_warmup")
_STEPS = ("ensemble_scheduling", "step")


@rule("ensemble/platform", source="ValidateEnsembleSchedulingConfig")
def platform(config: ModelConfig) -> Iterator[Problem]:
    """Only the platform ensemble has an ensemble's scheduler."""
    if config.HasField("ensemble_scheduling") and config.platform != "ensemble":
        yield Problem(("platform",), f"{config.platform!r} is not ensemble", 'set platform: "ensemble"')


@rule("ensemble/foreign-field", source="ValidateEnsembleSchedulingConfig")
def foreign_fields(config: ModelConfig) -> Iterator[Problem]:
    """What concerns instances and their execution belongs to the steps' own models."""
    if not config.HasField("ensemble_scheduling"):
        return
    present = {field.name for field, _ in config.ListFields()}
    for name in _FOREIGN:
        if name in present:
            yield Problem((name,), "is not for ensembles", "set it for the models of the steps")


@rule("ensemble/step", source="ValidateEnsembleSchedulingConfig")
def steps(config: ModelConfig) -> Iterator[Problem]:
    """An ensemble has steps, each with a model and both maps."""
    if not config.HasField("ensemble_scheduling"):
        return
    if not config.ensemble_scheduling.step:
        yield Problem(_STEPS, "is empty: an ensemble has at least one step")
    for index, step in enumerate(config.ensemble_scheduling.step):
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                yield Problem((*_STEPS, index, name), "is missing")


@rule(
    "ensemble/step-version",
    source="proto3: an omitted number is 0",
    severity=Severity.WARNING,
    consequence="Triton asks for version 0 of the model, which is rarely there",
)
def step_versions(config: ModelConfig) -> Iterator[Problem]:
    """A step without model_version does not take the latest one."""
    for index, step in enumerate(config.ensemble_scheduling.step):
        if step.model_version == 0:
            yield Problem(
                (*_STEPS, index, "model_version"),
                "is 0 or left out",
                "write model_version: -1 for the latest",
            )


@rule("ensemble/wiring", source="BuildEnsembleGraph, ValidateEnsembleSchedulingConfig")
def wiring(config: ModelConfig) -> Iterator[Problem]:
    """Each tensor is written once, by a step that can run, and is read or returned."""
    scheduling = config.ensemble_scheduling
    if not scheduling.step:
        return
    inputs = [entry.name for entry in config.input]
    outputs = [entry.name for entry in config.output]
    written: set[str] = set()
    for index, step in enumerate(scheduling.step):
        for tensor in sorted(step.output_map.values()):
            if tensor in written:
                yield Problem((*_STEPS, index, "output_map"), f"tensor {tensor!r} is written already")
            written.add(tensor)
    read = {tensor for step in scheduling.step for tensor in step.input_map.values()}
    ready = _ready(scheduling, set(inputs))
    for name in inputs:
        if name not in read:
            yield Problem(("input", name), "is read by no step")
    for name in outputs:
        if name not in written:
            yield Problem(("output", name), "is written by no step")
        elif name not in ready:
            yield Problem(("output", name), "is written by a step that never gets all its inputs")
    yield from _loose_ends(scheduling, ready, read | set(outputs))


def _ready(scheduling: ModelEnsembling, inputs: set[str]) -> set[str]:
    """Return the tensors that come to hold data: a step runs when all its inputs have some."""
    ready = set(inputs)
    waiting = list(scheduling.step)
    while runnable := [step for step in waiting if ready.issuperset(step.input_map.values())]:
        waiting = [step for step in waiting if step not in runnable]
        ready.update(tensor for step in runnable for tensor in step.output_map.values())
    return ready


def _loose_ends(scheduling: ModelEnsembling, ready: set[str], used: set[str]) -> Iterator[Problem]:
    for index, step in enumerate(scheduling.step):
        for tensor in sorted(step.input_map.values()):
            if tensor not in ready:
                yield Problem((*_STEPS, index, "input_map"), f"tensor {tensor!r} never holds data")
        for tensor in sorted(step.output_map.values()):
            if tensor not in used:
                yield Problem(
                    (*_STEPS, index, "output_map"),
                    f"tensor {tensor!r} is neither read nor returned",
                    "leave that output of the model out of the map",
                )
