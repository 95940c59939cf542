"""From the requests of a batch to what ONNX Runtime takes, and back. Pure numpy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - runs in the server's stub process, which needs it at once

if TYPE_CHECKING:
    from triton_toolkit.server.backends.onnxruntime.tt_ort_signature import Signature, configured_dims
else:  # the stub imports model.py and its neighbours by their bare names
    from tt_ort_signature import configured_dims

Array = np.ndarray[Any, Any]
Key = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Member:
    """A request of a batch."""

    index: int
    """Its place among the requests."""
    inputs: dict[str, Array]
    wanted: tuple[str, ...]
    size: int
    """How many items it holds along the batch dimension; 1 without one."""


class BatchPlan:
    """How this model's requests are joined and its outputs split.

    Args:
        config: The model's config, as Triton gives it to Python.
        signature: The model's tensors.
    """

    def __init__(self, config: Mapping[str, Any], signature: Signature) -> None:
        self._batched = config["max_batch_size"] > 0
        inputs = signature.inputs | signature.initializers
        # Without batching Triton has no scalars: a request brings [1] (or [1,1] …) for one.
        self._scalar_inputs = {name for name, tensor in inputs.items() if not tensor.shape}
        self._text_inputs = {name for name, tensor in inputs.items() if tensor.data_type == "TYPE_STRING"}
        self._scalar_dims = {
            entry["name"]: configured_dims(entry)
            for entry in config["output"]
            if not signature.outputs[entry["name"]].shape
        }

    def request_input(self, tensor: Any) -> Array:
        """Return a request's tensor as ONNX Runtime takes it: in place, except for strings.

        Raises:
            ValueError: A string tensor's bytes cannot be given to ONNX Runtime from Python.
        """
        array: Array = tensor.as_numpy()
        name = tensor.name()
        if name in self._text_inputs:
            array = _text(name, array)
        return array.reshape(()) if name in self._scalar_inputs and not self._batched else array

    def member(self, index: int, inputs: dict[str, Array], wanted: Iterable[str]) -> Member:
        """Return a request with its size."""
        size = next(iter(inputs.values())).shape[0] if self._batched and inputs else 1
        return Member(index, inputs, tuple(wanted), size)

    def groups(self, members: Sequence[Member]) -> Iterator[list[Member]]:
        """Give the requests that can run together: same inputs, same shapes but for the batch dimension.

        The dynamic batcher only joins such requests, so there is one group nearly always; the sequence
        batcher may join others. Without a batch dimension each request runs alone.
        """
        if not self._batched:
            yield from ([member] for member in members)
            return
        joined: dict[Key, list[Member]] = {}
        for member in members:
            key = tuple(sorted((name, array.shape[1:]) for name, array in member.inputs.items()))
            joined.setdefault(key, []).append(member)
        yield from joined.values()

    def feeds(self, group: Sequence[Member]) -> dict[str, Array]:
        """Return the inputs of a group: a single request's own, else one concatenation an input."""
        if len(group) == 1:
            return group[0].inputs
        return {name: np.concatenate([member.inputs[name] for member in group]) for name in group[0].inputs}

    def wanted(self, group: Sequence[Member]) -> list[str]:
        """Return the outputs that any request of the group asks for, each once."""
        return list(dict.fromkeys(name for member in group for name in member.wanted))

    def split(
        self, group: Sequence[Member], outputs: Mapping[str, Array]
    ) -> Iterator[dict[str, Array] | str]:
        """Give each request its outputs, as views; or the reason why they cannot be told apart."""
        total = sum(member.size for member in group)
        if self._batched and (fault := _not_batched(outputs, total)):
            yield from (fault for _ in group)
            return
        start = 0
        for member in group:
            end = start + member.size
            yield {name: self._own(name, outputs[name], start, end) for name in member.wanted}
            start = end

    def _own(self, name: str, array: Array, start: int, end: int) -> Array:
        if self._batched:
            return array[start:end]
        return array.reshape(self._scalar_dims[name]) if not array.shape else array


def _not_batched(outputs: Mapping[str, Array], total: int) -> str:
    for name, array in outputs.items():
        found = array.shape[0] if array.shape else 0
        if found != total:
            return (
                f"failed to split the output tensor '{name}' in responses: expected batch size of {total} in "
                f"model output, got {found}"
            )
    return ""


def _text(name: str, array: Array) -> Array:
    """Return the bytes of a string tensor as ``str``, which is what ONNX Runtime takes from Python.

    Raises:
        ValueError: An element is not UTF-8. The C++ backend would pass its bytes through.
    """
    try:
        texts = [item.decode("utf-8") for item in array.ravel()]
    except UnicodeDecodeError as exc:
        raise ValueError(
            f"input '{name}': {exc.object!r} is not UTF-8; ONNX Runtime takes no other text from Python"
        ) from None
    decoded = np.empty(len(texts), dtype=np.object_)
    decoded[:] = texts
    return decoded.reshape(array.shape)
