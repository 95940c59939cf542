"""Rules on warm-up samples: each is a real request to the model before it is READY.

Source: triton-inference-server/core, src/backend_model_instance.cc, WarmUp and GenerateWarmupData; read at
commit 73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.rule import Problem, Severity, rule
from triton_toolkit.config.rules.tensors import type_name
from triton_toolkit.spec.source import KeyPath

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelWarmup


def _samples(config: ModelConfig) -> Iterator[tuple[KeyPath, ModelWarmup]]:
    """Yield the samples that the server runs; one of batch_size 0 is not looked at any further."""
    for index, sample in enumerate(config.model_warmup):
        if sample.batch_size:
            yield ("model_warmup", index), sample


@rule(
    "warmup/skipped",
    source="GenerateWarmupData",
    severity=Severity.WARNING,
    consequence="Triton skips the sample without a word",
)
def skipped(config: ModelConfig) -> Iterator[Problem]:
    """A sample of no request warms nothing."""
    for index, sample in enumerate(config.model_warmup):
        if not sample.batch_size:
            path = ("model_warmup", index, "batch_size")
            yield Problem(path, "is 0 or left out", "write 1, without a batch dimension as well")


@rule(
    "warmup/batch-size",
    source="seen on Triton 2.51 with the Python backend: 5 of 12 loads ended the server",
    consequence="the load fails, or the whole server ends",
)
def batch_sizes(config: ModelConfig) -> Iterator[Problem]:
    """A sample of N is executed as one batch of N."""
    largest = max(config.max_batch_size, 1)
    for path, sample in _samples(config):
        if sample.batch_size > largest:
            yield Problem(
                (*path, "batch_size"),
                f"{sample.batch_size} is above the largest batch, {largest}",
                "lower it, or raise max_batch_size",
            )


@rule("warmup/data", source="GenerateWarmupData")
def data(config: ModelConfig) -> Iterator[Problem]:
    """An input of a sample has a size in every dimension, and says where its data comes from."""
    for path, sample in _samples(config):
        for name, entry in sorted(sample.inputs.items()):
            at = (*path, "inputs", name)
            if any(size == -1 for size in entry.dims):
                yield Problem((*at, "dims"), f"{list(entry.dims)} has a dynamic dimension", "give it a size")
            if entry.WhichOneof("input_data_type") is None:
                yield Problem(at, "has no data", "set zero_data: true")


@rule("warmup/inputs", source="InferenceRequest::Normalize, as for any request")
def inputs(config: ModelConfig) -> Iterator[Problem]:
    """A sample has the inputs that a request must have, in type and shape as well."""
    for path, sample in _samples(config):
        for entry in config.input:
            if entry.name in sample.inputs:
                at = (*path, "inputs", entry.name)
                yield from _input_problems(at, sample.inputs[entry.name], entry)
            elif not entry.optional:
                yield Problem((*path, "inputs"), f"lacks input {entry.name!r}")


def _input_problems(path: KeyPath, given: ModelWarmup.Input, wanted: ModelInput) -> Iterator[Problem]:
    if given.data_type != wanted.data_type:
        yield Problem(
            (*path, "data_type"),
            f"{type_name(given.data_type)} is not the input's {type_name(wanted.data_type)}",
        )
    fits = len(given.dims) == len(wanted.dims) and all(
        size in (-1, given_size) for given_size, size in zip(given.dims, wanted.dims, strict=True)
    )
    # a dynamic dimension in the sample has a finding of its own; shape tensors have rules of their own
    if not fits and -1 not in given.dims and not wanted.is_shape_tensor:
        yield Problem((*path, "dims"), f"{list(given.dims)} does not fit the input's {list(wanted.dims)}")
