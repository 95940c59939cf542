"""Rules on inputs and outputs: names, types, dims, reshape, and what the batch adds to them.

Source, where a rule names a function: triton-inference-server/core, src/model_config_utils.cc; read at
commit 73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.model import may_be_tensorrt
from triton_toolkit.config.rules.rule import Problem, Severity, rule
from triton_toolkit.spec.source import KeyPath

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

_BATCH_TYPES = ("TYPE_INT32", "TYPE_FP32")


def tensors(config: ModelConfig) -> Iterator[tuple[KeyPath, ModelInput | ModelOutput]]:
    """Yield each input and output with its key; by position where it has no name."""
    for side, entries in (("input", config.input), ("output", config.output)):
        for index, entry in enumerate(entries):
            yield (side, entry.name or index), entry


def type_name(number: int) -> str:
    """Return a data type's name, or its number where the proto has none."""
    from tritonclient.grpc.model_config_pb2 import DataType

    return str(DataType.Name(number)) if number in DataType.values() else str(number)


@rule("tensor/name", source="ValidateModelInput, ValidateModelOutput")
def names(config: ModelConfig) -> Iterator[Problem]:
    """Tensors are found by name."""
    for path, entry in tensors(config):
        if not entry.name:
            yield Problem(path, "has no name")


@rule("tensor/data-type", source="ValidateIOShape")
def data_types(config: ModelConfig) -> Iterator[Problem]:
    """A listed tensor has a type; only the TensorRT backend completes one that has none."""
    for path, entry in tensors(config):
        if not entry.data_type and not may_be_tensorrt(config):
            yield Problem((*path, "data_type"), "is missing")


@rule("tensor/dims", source="ValidateIOShape")
def dims(config: ModelConfig) -> Iterator[Problem]:
    """A listed tensor has dims, each at least 1 or -1 for a dynamic dimension."""
    for path, entry in tensors(config):
        if not entry.dims and not may_be_tensorrt(config):
            yield Problem(
                (*path, "dims"), "is missing", "a scalar a batch item is dims: [1] with an empty reshape"
            )
        for index, size in enumerate(entry.dims):
            if size < 1 and size != -1:
                yield Problem(
                    (*path, "dims", index), f"{size} is no size", "at least 1, or -1 for a dynamic dimension"
                )


@rule("tensor/reshape", source="ValidateIOShape")
def reshape(config: ModelConfig) -> Iterator[Problem]:
    """A reshape keeps the number of elements, dynamic dimensions included."""
    for path, entry in tensors(config):
        if entry.HasField("reshape") and entry.dims:
            batched = config.max_batch_size > 0
            problem = _reshape_problem(entry.dims, entry.reshape.shape, batched=batched)
            if problem:
                yield Problem((*path, "reshape"), problem)


def _reshape_problem(dims: Sequence[int], shape: Sequence[int], *, batched: bool) -> str:
    if not shape and not batched:
        return "is empty, which needs a batch dimension (max_batch_size above 0)"
    if any(size < 1 and size != -1 for size in shape):
        return f"{list(shape)} has a size that is neither at least 1 nor -1"
    if not shape and any(size != 1 for size in dims):
        return f"is empty, so dims must hold one element, got {list(dims)}"
    between, wanted = _products(dims), _products(shape)
    if len(between) != len(wanted):
        return f"{list(shape)} has {len(wanted) - 1} dynamic dimensions, dims has {len(between) - 1}"
    if between != wanted:
        return f"{list(shape)} holds another number of elements than dims {list(dims)}"
    return ""


def _products(sizes: Sequence[int]) -> list[int]:
    """Return the number of elements before, between and after the dynamic dimensions."""
    groups: list[list[int]] = [[]]
    for size in sizes:
        if size == -1:
            groups.append([])
        else:
            groups[-1].append(size)
    return [math.prod(group) for group in groups]


@rule("tensor/format", source="ValidateModelInput")
def formats(config: ModelConfig) -> Iterator[Problem]:
    """An image format describes three dimensions."""
    from tritonclient.grpc.model_config_pb2 import ModelInput

    for index, entry in enumerate(config.input):
        if entry.format != ModelInput.FORMAT_NONE and len(entry.dims) != 3:
            path = ("input", entry.name or index, "format")
            yield Problem(path, f"describes 3 dimensions, dims has {len(entry.dims)}")


@rule("tensor/tensorrt-only", source="ValidateIOShape; the TensorRT side read, not run")
def tensorrt_only(config: ModelConfig) -> Iterator[Problem]:
    """Shape tensors and non-linear formats exist in TensorRT engines alone."""
    for path, entry in tensors(config):
        for name in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(entry, name) and not may_be_tensorrt(config):
                yield Problem((*path, name), "is for the TensorRT backend only")
        if entry.is_non_linear_format_io and len(entry.dims) != 3:
            yield Problem((*path, "is_non_linear_format_io"), f"needs 3 dims, got {len(entry.dims)}")


@rule(
    "tensor/duplicate",
    source="model.cc keeps the first; required inputs are counted twice",
    severity=Severity.WARNING,
    consequence="Triton loads the model and ignores the second one; requests fail",
)
def duplicates(config: ModelConfig) -> Iterator[Problem]:
    """A name stands for one tensor."""
    for side in ("input", "output"):
        seen: set[str] = set()
        for entry in getattr(config, side):
            if entry.name and entry.name in seen:
                yield Problem((side, entry.name), "is listed twice")
            seen.add(entry.name)


@rule("tensor/batch-input", source="ValidateBatchIO")
def batch_inputs(config: ModelConfig) -> Iterator[Problem]:
    """What the backend makes from the batch has one source, an input, and a type it can make."""
    inputs = {entry.name for entry in config.input}
    for index, entry in enumerate(config.batch_input):
        path = ("batch_input", index)
        yield from _source_problems(path, entry.source_input, inputs)
        if type_name(entry.data_type) not in _BATCH_TYPES:
            yield Problem(
                (*path, "data_type"), f"{type_name(entry.data_type)} is neither {' nor '.join(_BATCH_TYPES)}"
            )


@rule("tensor/batch-output", source="ValidateBatchIO")
def batch_outputs(config: ModelConfig) -> Iterator[Problem]:
    """What the backend scatters over the batch is an output, once, by one input's shape."""
    inputs = {entry.name for entry in config.input}
    outputs = {entry.name for entry in config.output}
    for index, entry in enumerate(config.batch_output):
        path = ("batch_output", index)
        yield from _source_problems(path, entry.source_input, inputs)
        for position, name in enumerate(entry.target_name):
            if name not in outputs:
                yield Problem((*path, "target_name", position), f"{name!r} is not an output")
            if name in entry.target_name[:position]:
                yield Problem((*path, "target_name", position), f"{name!r} is named twice")


def _source_problems(path: KeyPath, sources: Sequence[str], inputs: set[str]) -> Iterator[Problem]:
    if len(sources) != 1:
        yield Problem((*path, "source_input"), f"needs one name, got {len(sources)}")
    for name in sources:
        if name not in inputs:
            yield Problem((*path, "source_input"), f"{name!r} is not an input")
