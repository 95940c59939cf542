"""Ragged batches: requests of different lengths laid end to end, and the tensors that tell them apart.

A config asks for it with ``allow_ragged_batch`` on an input, ``batch_input`` entries (tensors that the
backend makes from the batch) and ``batch_output`` entries (outputs that are cut by an input's shapes).

Source: triton-inference-server/backend, backend_input_collector.cc (BatchInputShape, ProcessBatchInput) and
backend_output_responder.cc (ProcessBatchOutput).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np  # noqa: TID253 - runs in the server's stub process, which needs it at once

if TYPE_CHECKING:
    from triton_toolkit.server.backends.onnxruntime.tt_ort_signature import configured_dims
else:  # the stub imports model.py and its neighbours by their bare names
    from tt_ort_signature import configured_dims

Array = np.ndarray[Any, Any]

_DTYPES = {"TYPE_INT32": np.int32, "TYPE_FP32": np.float32}  # the server accepts no other


def _counts(sources: Sequence[Array]) -> Array:
    return np.array([source.size for source in sources])


def _accumulated(sources: Sequence[Array]) -> Array:
    return np.cumsum(_counts(sources))


def _accumulated_from_zero(sources: Sequence[Array]) -> Array:
    return np.concatenate([[0], _accumulated(sources)])


def _longest_as_shape(sources: Sequence[Array]) -> Array:
    return np.zeros(max(source.size for source in sources))  # the model reads its shape alone


def _item_shapes(sources: Sequence[Array]) -> Array:
    return np.array([source.shape[1:] for source in sources for _ in range(source.shape[0])])


_KINDS: dict[str, Callable[[Sequence[Array]], Array]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": _accumulated,
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": _accumulated_from_zero,
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": _longest_as_shape,
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda sources: _item_shapes(sources).ravel(),
}


class Ragged:
    """What a config says of ragged batches; mostly nothing.

    Args:
        config: The model's config, as Triton gives it to Python.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.inputs = frozenset(
            entry["name"] for entry in config["input"] if entry.get("allow_ragged_batch", False)
        )
        self._made = config["batch_input"]
        self._cut = {
            name: entry["source_input"][0]
            for entry in config["batch_output"]
            for name in entry["target_name"]
        }
        batch = [-1] if config["max_batch_size"] > 0 else []
        self._cut_dims = {
            entry["name"]: [*batch, *configured_dims(entry)]
            for entry in config["output"]
            if entry["name"] in self._cut
        }

    @property
    def outputs(self) -> frozenset[str]:
        """The outputs that have no batch dimension to be split along."""
        return frozenset(self._cut)

    def made_inputs(self, requests: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Return the ``batch_input`` tensors for the inputs of these requests, in their order."""
        made: dict[str, Array] = {}
        for entry in self._made:
            sources = [inputs[entry["source_input"][0]] for inputs in requests]
            array = _KINDS[entry["kind"]](sources).astype(_DTYPES[entry["data_type"]])
            made.update(dict.fromkeys(entry["target_name"], array))
        return made

    def cut(self, name: str, output: Array, requests: Sequence[Mapping[str, Array]]) -> list[Array]:
        """Return each request's part of a ``batch_output``, as views.

        A dynamic dimension of the output is taken to be the same dimension of the source input.

        Raises:
            ValueError: The output is shorter than the requests' shapes make it.
        """
        flat = output.reshape(-1)
        parts, start = [], 0
        for inputs in requests:
            source = inputs[self._cut[name]].shape
            shape = [
                source[axis] if extent == -1 else extent for axis, extent in enumerate(self._cut_dims[name])
            ]
            end = start + int(np.prod(shape))
            if end > flat.size:
                raise ValueError(
                    f"output '{name}' has {flat.size} elements, and the requests need {end} or more"
                )
            parts.append(flat[start:end].reshape(shape))
            start = end
        return parts
