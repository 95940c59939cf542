"""The ``input`` and ``output`` entries of a config, from the tensors that a build has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.config.fields import fill_message
from triton_toolkit.config.scalars import ServeKeyError
from triton_toolkit.config.vocabulary import did_you_mean, near
from triton_toolkit.core.tensors import TensorSpec

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

_DERIVED = ("name", "data_type", "dims")


def add_tensors(
    message: ModelConfig,
    side: str,
    tensors: Sequence[TensorSpec],
    *,
    batch_dim: str | None,
    serve: Any,
) -> None:
    """Add the entries of one side to a config.

    Args:
        message: The config; its sequence_batching and batch_input tell which tensors the server makes
            itself, since those must not be listed.
        side: ``input`` or ``output``.
        tensors: The model's tensors, the batch dimension included.
        batch_dim: The dimension that Triton batches over, None without.
        serve: ``serve.input`` or ``serve.output``: further fields by tensor name.

    Raises:
        ServeKeyError: ``serve`` names an unknown tensor or a field that the build derives, or a tensor
            is a scalar that Triton cannot serve.
    """
    extras = _extras(side, tensors, serve)
    made = _made_by_server(message, side) - set(extras)
    for tensor in tensors:
        if tensor.name in made:
            continue
        entry = getattr(message, side).add()
        entry.name = tensor.name
        entry.data_type = _number(tensor)
        _set_dims(entry, side, tensor, batch_dim, message.backend)
        if tensor.name in extras:
            if "reshape" in extras[tensor.name]:
                entry.ClearField("reshape")
            fill_message(entry, extras[tensor.name], (side, tensor.name))


def _extras(side: str, tensors: Sequence[TensorSpec], serve: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(serve, Mapping):
        raise ServeKeyError(
            (side,), f"maps names of {side}s to further fields", f"such as {side}: {{NAME: {{reshape: …}}}}"
        )
    names = [tensor.name for tensor in tensors]
    for name, values in serve.items():
        path = (side, name)
        if name not in names:
            raise ServeKeyError(
                path,
                f"the model has no {side} {name!r}{did_you_mean(near(name, names))}",
                f"its {side}s: {', '.join(names)}",
            )
        if not isinstance(values, Mapping):
            raise ServeKeyError(path, "is a block of fields")
        for key in _DERIVED:
            if key in values:
                raise ServeKeyError((*path, key), "cannot be set: it comes from the model")
    return serve


def _made_by_server(message: ModelConfig, side: str) -> set[str]:
    """Return the tensors that the batcher gives to the model, or takes from it, by itself."""
    sequence = message.sequence_batching
    if side == "output":
        return {state.output_name for state in sequence.state}
    return {
        *(control.name for control in sequence.control_input),
        *(state.input_name for state in sequence.state),
        *(name for batch_input in message.batch_input for name in batch_input.target_name),
    }


def _set_dims(
    entry: ModelInput | ModelOutput, side: str, tensor: TensorSpec, batch_dim: str | None, backend: str
) -> None:
    """Set ``dims``, which Triton refuses to be empty: one value a batch item has dims 1, reshaped away."""
    dims = tensor.dims(batch_dim=batch_dim)
    if dims:
        entry.dims.extend(dims)
        return
    if batch_dim is None and backend != "onnxruntime":  # that one takes dims 1 for a scalar by itself
        raise ServeKeyError(
            (side,),
            f"{side} {tensor.name!r} is a scalar; Triton has no scalars without a batch dimension",
            "give it a dimension of size 1",
        )
    entry.dims.append(1)
    if batch_dim is not None:
        entry.reshape.SetInParent()


def _number(tensor: TensorSpec) -> int:
    from tritonclient.grpc.model_config_pb2 import DataType

    return int(DataType.Value(tensor.dtype.triton))
