"""From the requests of a batch to what ONNX Runtime takes, and back. Pure numpy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - runs in the server's stub process, which needs it at once

if TYPE_CHECKING:
    from triton_toolkit.server.backends.onnxruntime.tt_ort_ragged import Ragged
    from triton_toolkit.server.backends.onnxruntime.tt_ort_signature import Signature, configured_dims
else:  # the stub imports model.py and its neighbours by their bare names
    from tt_ort_ragged import Ragged
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
        self._ragged = Ragged(config)
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
            joined.setdefault(self._key(member), []).append(member)
        yield from joined.values()

    def _key(self, member: Member) -> Key:
        shapes = {
            name: () if name in self._ragged.inputs else array.shape[1:]
            for name, array in member.inputs.items()
        }
        return tuple(sorted(shapes.items()))

    def feeds(self, group: Sequence[Member]) -> dict[str, Array]:
        """Return the inputs of a group: a single request's own, else one concatenation an input."""
        feeds = {
            name: self._joined(name, [member.inputs[name] for member in group]) for name in group[0].inputs
        }
        return feeds | self._ragged.made_inputs([member.inputs for member in group])

    def _joined(self, name: str, arrays: list[Array]) -> Array:
        if name in self._ragged.inputs:
            arrays = [array.reshape(-1) for array in arrays]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def wanted(self, group: Sequence[Member]) -> list[str]:
        """Return the outputs that any request of the group asks for, each once."""
        return list(dict.fromkeys(name for member in group for name in member.wanted))

    def split(self, group: Sequence[Member], outputs: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Give each request of a group the outputs that it asks for, as views.

        Raises:
            ValueError: They cannot be told apart; says which output and why.
        """
        parts = {name: self._parts(name, array, group) for name, array in outputs.items()}
        return [{name: parts[name][place] for name in member.wanted} for place, member in enumerate(group)]

    def _parts(self, name: str, array: Array, group: Sequence[Member]) -> list[Array]:
        if name in self._ragged.outputs:
            return self._ragged.cut(name, array, [member.inputs for member in group])
        if not self._batched:
            return [array if array.shape else array.reshape(self._scalar_dims[name])]
        total, found = sum(member.size for member in group), array.shape[0] if array.shape else 0
        if found != total:
            raise ValueError(
                f"failed to split the output tensor '{name}' in responses: expected batch size of {total} in "
                f"model output, got {found}"
            )
        ends = list(itertools.accumulate(member.size for member in group))
        return [array[end - member.size : end] for end, member in zip(ends, group, strict=True)]


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
