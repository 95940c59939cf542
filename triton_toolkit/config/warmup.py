"""``warmup: auto``: samples for model_warmup, from the shapes of a model.

Each sample is a request that every instance answers before the model is READY, so the first caller
does not pay for allocations, kernel choices or CUDA graphs.

All data is zeros. Triton's random_data is random *bytes*: as FP32 they were seen to be 4e36 and 1e-23
on 2.51, as half precision they can be NaN, and as indices they point outside their table; a model that
fails on them fails to load. For BYTES, both give empty strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from triton_toolkit.config.scalars import ServeKeyError
from triton_toolkit.core.tensors import TensorSpec

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelSequenceBatching, ModelWarmup

_PATH = ("warmup",)
_BY_HAND = "write model_warmup, or warmup: none"


def warmup_samples(
    config: ModelConfig,
    tensors: Mapping[str, TensorSpec],
    *,
    batch_dim: str | None,
    sizes: Sequence[Mapping[str, int]],
) -> Iterator[ModelWarmup]:
    """Yield a sample for each batch size and each combination of the other dynamic dimensions.

    Batch sizes are 1, the preferred ones and the largest; without batching a sample has batch_size 1,
    as Triton skips one of 0.

    Args:
        config: The config with its inputs, batch size and scheduler.
        tensors: The inputs by name, the batch dimension included.
        batch_dim: The dimension that Triton batches over, None without.
        sizes: Combinations of sizes of the other dynamic dimensions; none needed where all are fixed.

    Raises:
        ServeKeyError: A dynamic dimension has no size, or the model keeps implicit state.
    """
    if config.sequence_batching.state:
        raise ServeKeyError(_PATH, "auto cannot make samples for a model with implicit state", _BY_HAND)
    combinations = [dict(each) for each in sizes] or [{}]
    for combination in combinations:
        for batch_size in _batch_sizes(config):
            yield _sample(config, tensors, batch_dim, batch_size, combination)


def _batch_sizes(config: ModelConfig) -> list[int]:
    preferred = {
        *config.dynamic_batching.preferred_batch_size,
        *config.sequence_batching.oldest.preferred_batch_size,
    }
    usable = {size for size in preferred if 1 <= size <= config.max_batch_size}
    return sorted({1, max(config.max_batch_size, 1), *usable})


def _sample(
    config: ModelConfig,
    tensors: Mapping[str, TensorSpec],
    batch_dim: str | None,
    batch_size: int,
    sizes: Mapping[str, int],
) -> ModelWarmup:
    from tritonclient.grpc.model_config_pb2 import ModelWarmup

    parts = [f"batch {batch_size}"] if config.max_batch_size else []
    parts += [f"{name} {size}" for name, size in sizes.items()]
    sample = ModelWarmup(name=", ".join(parts) or "fixed shapes", batch_size=batch_size)
    for entry in config.input:
        given = sample.inputs[entry.name]
        given.data_type = entry.data_type
        given.dims.extend(_dims(entry.dims, tensors[entry.name], batch_dim, sizes))
        given.zero_data = True
    for control_input in config.sequence_batching.control_input:
        for control in control_input.control:
            given = sample.inputs[control_input.name]
            given.data_type = _control_type(control)
            given.dims[:] = [1]
            given.zero_data = True
    return sample


def _dims(
    dims: Sequence[int], tensor: TensorSpec, batch_dim: str | None, sizes: Mapping[str, int]
) -> list[int]:
    """Return the dims of a config's input with a size for each dynamic dimension."""
    extents = tensor.shape[1:] if batch_dim is not None else tensor.shape
    chosen = []
    for size, extent in zip(dims, extents or dims, strict=True):
        if size != -1:
            chosen.append(size)
        elif extent in sizes:
            chosen.append(sizes[str(extent)])
        else:
            raise ServeKeyError(
                _PATH, f"auto needs a size for dimension {extent!r} of input {tensor.name!r}", _BY_HAND
            )
    return chosen


def _control_type(control: ModelSequenceBatching.Control) -> int:
    from tritonclient.grpc.model_config_pb2 import DataType

    if control.data_type:
        return int(control.data_type)
    for name, field in (("TYPE_INT32", "int32_false_true"), ("TYPE_BOOL", "bool_false_true")):
        if getattr(control, field):
            return int(DataType.Value(name))
    return int(DataType.Value("TYPE_FP32"))
