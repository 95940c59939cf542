"""What a live server tells about the model to probe; asked once, before anything is sent."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import RefusedError, ServerError, UsageError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from triton_toolkit.client.triton import TritonClient
    from triton_toolkit.client.types import ModelState


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A model as its server declares it; shapes include the batch dimension (``batch``).

    Attributes:
        name: Its name on the server.
        version: The version asked for; empty lets the server choose.
        versions: The versions that the server has ready.
        inputs: Input tensors.
        outputs: Output tensors.
        max_batch_size: Triton's own; 0 where it does not batch the model.
        optional: Inputs that a request may leave out.
        config: The config as the server runs it.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int
    optional: frozenset[str]
    config: ModelConfig

    @property
    def batched(self) -> bool:
        """Whether axis 0 of every tensor is Triton's batch dimension."""
        return self.max_batch_size > 0

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is a wiring of other models."""
        return bool(self.config.HasField("ensemble_scheduling"))


def look_up(client: TritonClient, name: str, version: str = "") -> LiveModel:
    """Ask the server about a model.

    Raises:
        UsageError: The server has no model or version of that name, or it is of a kind that a plain
            request cannot drive (sequences, decoupled answers).
        ServerError: The model is there but not ready; names the server's reason.
    """
    try:
        metadata = client.model_metadata(name, version)
    except RefusedError as exc:
        raise _why_not(client, name, version, exc) from exc
    config = client.model_config(name, version)
    _check_drivable(config)
    return LiveModel(
        name=name,
        version=version,
        versions=metadata.versions,
        inputs=metadata.inputs,
        outputs=metadata.outputs,
        max_batch_size=config.max_batch_size,
        optional=frozenset(item.name for item in config.input if item.optional),
        config=config,
    )


def _why_not(
    client: TritonClient, name: str, version: str, refusal: RefusedError
) -> UsageError | ServerError | RefusedError:
    """Return the error for a model that the server does not describe, after a look at its index."""
    index = client.index()
    states = [state for state in index if state.name == name]
    ready = [state.version for state in states if state.ready]
    if not states:
        return _unknown(client.url, name, index)
    if version and ready and version not in ready:
        return UsageError(
            f"{client.url}: model {name!r} has no version {version} ready",
            hint=f"versions that are ready: {', '.join(ready)}",
        )
    if ready:
        return refusal
    reasons = "; ".join(_state(state) for state in states)
    return ServerError(
        f"{client.url}: model {name!r} is not ready: {reasons}",
        hint="load it (`tt deploy`, or the server's load API); the server's log says why a load failed",
    )


def _unknown(url: str, name: str, index: list[ModelState]) -> UsageError:
    known = sorted({state.name for state in index})
    near = difflib.get_close_matches(name, known, n=1)
    return UsageError(
        f"{url}: the server has no model {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
        hint=f"models of this server: {', '.join(known) or 'none'}",
    )


def _state(state: ModelState) -> str:
    if not state.state:
        return "it was never loaded"
    version = f"version {state.version} " if state.version else ""
    return f"{version}{state.state}" + (f" ({state.reason})" if state.reason else "")


def _check_drivable(config: ModelConfig) -> None:
    if config.HasField("sequence_batching"):
        raise UsageError(
            f"model {config.name!r} uses sequence batching: each request belongs to a sequence, and tt probe "
            "sends requests that stand alone",
            hint="tt probe can't measure such a model yet",
        )
    if config.model_transaction_policy.decoupled:
        raise UsageError(
            f"model {config.name!r} is decoupled: it answers on a stream, any number of times a request",
            hint="tt probe can't measure such a model yet",
        )
