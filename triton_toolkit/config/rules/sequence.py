"""Rules on the sequence batcher: its strategies, control tensors and implicit state.

Source, where a rule names a function: triton-inference-server/core, src/model_config_utils.cc and
sequence_batch_scheduler.cc; read at commit 73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.batching import preferred_size_problems
from triton_toolkit.config.rules.rule import Problem, rule
from triton_toolkit.config.rules.tensors import type_name
from triton_toolkit.spec.source import KeyPath

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching

_LISTS = ("int32_false_true", "fp32_false_true", "bool_false_true")
_ID_TYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


@rule("sequence/preferred-size", source="ValidateModelConfig")
def preferred_sizes(config: ModelConfig) -> Iterator[Problem]:
    """The oldest-first strategy forms batches as the dynamic batcher does."""
    oldest = config.sequence_batching.oldest
    path = ("sequence_batching", "oldest")
    yield from preferred_size_problems(path, oldest.preferred_batch_size, config.max_batch_size)


@rule(
    "sequence/slot-utilization",
    source="ValidateModelConfig, whose message excludes 0 and whose code allows it",
)
def slot_utilization(config: ModelConfig) -> Iterator[Problem]:
    """The share of slots to fill is a share."""
    share = config.sequence_batching.direct.minimum_slot_utilization
    if not 0 <= share <= 1:
        path = ("sequence_batching", "direct", "minimum_slot_utilization")
        yield Problem(path, f"{share:g} is not a share of 0 to 1")


@rule("sequence/control-tensor", source="GetBooleanSequenceControlProperties")
def control_tensors(config: ModelConfig) -> Iterator[Problem]:
    """A control tensor has a name and one entry; a kind of control is given once."""
    tensors: set[str] = set()
    kinds: set[int] = set()
    for index, entry in enumerate(config.sequence_batching.control_input):
        path = ("sequence_batching", "control_input", index)
        if not entry.name:
            yield Problem(path, "has no name")
        elif entry.name in tensors:
            yield Problem(path, f"tensor {entry.name!r} has an entry already")
        tensors.add(entry.name)
        for position, control in enumerate(entry.control):
            if control.kind in kinds:
                name = control.Kind.Name(control.kind)
                yield Problem((*path, "control", position), f"{name} is given twice")
            kinds.add(control.kind)


@rule(
    "sequence/control-values", source="GetBooleanSequenceControlProperties, GetTypedSequenceControlProperties"
)
def control_values(config: ModelConfig) -> Iterator[Problem]:
    """A boolean control has one list of two values, the correlation id a type."""
    for index, entry in enumerate(config.sequence_batching.control_input):
        for position, control in enumerate(entry.control):
            path = ("sequence_batching", "control_input", index, "control", position)
            yield from _control_problems(path, control)


def _control_problems(path: KeyPath, control: ModelSequenceBatching.Control) -> Iterator[Problem]:
    given = [name for name in _LISTS if getattr(control, name)]
    if control.kind == control.CONTROL_SEQUENCE_CORRID:
        if given:
            yield Problem((*path, given[0]), "is not for the correlation id", "give it a data_type")
        if type_name(control.data_type) not in _ID_TYPES:
            yield Problem(
                (*path, "data_type"),
                f"{type_name(control.data_type)} cannot hold a correlation id",
                f"use {', '.join(_ID_TYPES)}",
            )
    elif len(given) != 1:
        found = " and ".join(given) or "none"
        yield Problem(
            path, f"needs one of {', '.join(_LISTS)}, got {found}", "such as fp32_false_true: [0, 1]"
        )
    elif len(getattr(control, given[0])) != 2:
        count = len(getattr(control, given[0]))
        yield Problem((*path, given[0]), f"needs 2 values, for false and for true, got {count}")


@rule(
    "sequence/initial-state",
    source="SequenceBatchScheduler::GenerateInitialStateData; 1 of 46 loads ended the server (Triton 2.51)",
    consequence="the load fails, and rarely the whole server ends",
)
def initial_states(config: ModelConfig) -> Iterator[Problem]:
    """A state starts from one value of its own type and shape."""
    for index, state in enumerate(config.sequence_batching.state):
        path = ("sequence_batching", "state", index, "initial_state")
        if len(state.initial_state) > 1:
            yield Problem(path, f"has {len(state.initial_state)} entries, at most one is allowed")
        for position, initial in enumerate(state.initial_state[:1]):
            yield from _initial_problems((*path, position), initial, state)


def _initial_problems(
    path: KeyPath, initial: ModelSequenceBatching.InitialState, state: ModelSequenceBatching.State
) -> Iterator[Problem]:
    if not initial.name:
        yield Problem(path, "has no name")
    if initial.data_type != state.data_type:
        yield Problem(
            (*path, "data_type"),
            f"{type_name(initial.data_type)} is not the state's {type_name(state.data_type)}",
        )
    if initial.WhichOneof("state_data") is None:
        yield Problem(path, "has no data", "set zero_data: true, or data_file")
    fits = len(initial.dims) == len(state.dims) and all(
        wanted in (-1, size) for size, wanted in zip(initial.dims, state.dims, strict=True)
    )
    if not fits:
        yield Problem((*path, "dims"), f"{list(initial.dims)} does not fit the state's {list(state.dims)}")
    if any(size == -1 for size in initial.dims):
        yield Problem((*path, "dims"), "has a dynamic dimension; data needs a size")
