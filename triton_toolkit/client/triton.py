"""A client of one Triton server, over gRPC or HTTP. Every call has a deadline.

It may be shared between threads. Errors are ours (see ``client.errors``): a server that is not
there, hangs or cannot be controlled is a ``ServerError``; a live server's "no" is a
``RefusedError`` with its own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from triton_toolkit.client.endpoint import parse_url
from triton_toolkit.client.errors import Call, TransportFailure, to_error
from triton_toolkit.client.headers import check_headers
from triton_toolkit.client.payloads import infer_request, infer_result
from triton_toolkit.client.transport import open_transport
from triton_toolkit.client.types import (
    BatchStatistics,
    DurationStatistics,
    InferResult,
    ModelMetadata,
    ModelState,
    ModelStatistics,
    ServerInfo,
)
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import RefusedError, ServerError, TritonToolkitError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from numpy.typing import NDArray
    from tritonclient.grpc.model_config_pb2 import ModelConfig

CONTROL_TIMEOUT_S = 120.0
"""Default deadline of load and unload: they return when the model is ready, or gone."""


class TritonClient:
    """Talks to one server.

    Args:
        url: ``grpc://HOST:PORT``, ``grpcs://…``, ``http://…`` or ``https://…``. With TLS the server's
            certificate is checked against the system's authorities (``SSL_CERT_FILE`` for https,
            ``GRPC_DEFAULT_SSL_ROOTS_FILE_PATH`` for grpcs name others).
        timeout_s: Deadline of a call that names none.
        headers: Sent with every call, for authorisation.

    Raises:
        UsageError: The URL cannot be used, or a header cannot be sent.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 10.0, headers: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.timeout_s = timeout_s
        check_headers(headers or {})
        self._transport = open_transport(parse_url(url), headers or {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self._transport.close()

    def server(self) -> ServerInfo:
        """Return the server's name, version and extensions."""
        answer = self._call("ServerMetadata", "tell its version")
        return ServerInfo(name=answer.name, version=answer.version, extensions=tuple(answer.extensions))

    def is_live(self) -> bool:
        """Say whether the server takes calls at all."""
        return bool(self._call("ServerLive", "tell whether it is live").live)

    def is_ready(self) -> bool:
        """Say whether the server and all its loaded models are ready.

        With Triton's default ``--strict-readiness`` this is False while any model loads, so it is
        no test of whether the process is alive.
        """
        return bool(self._call("ServerReady", "tell whether it is ready").ready)

    def index(self) -> list[ModelState]:
        """Return the repository index: every model folder, and the state of each loaded version."""
        answer = self._call("RepositoryIndex", "list its models")
        return [
            ModelState(name=item.name, version=item.version, state=item.state, reason=item.reason)
            for item in answer.models
        ]

    def model_metadata(self, name: str, version: str = "") -> ModelMetadata:
        """Return a model's tensors; without a version, of the one that answers by default.

        Raises:
            RefusedError: No such model or version is loaded, or a tensor has a type (such as BF16)
                that ``tt`` does not know.
        """
        answer = self._call("ModelMetadata", f"describe model {name!r}", {"name": name, "version": version})
        batched = self._is_batched(name, version)
        try:
            inputs = tuple(_tensor(item, batched) for item in answer.inputs)
            outputs = tuple(_tensor(item, batched) for item in answer.outputs)
        except ValueError as exc:
            raise RefusedError(f"{self.url}: model {name!r} has a tensor of an {exc}") from exc
        return ModelMetadata(
            name=answer.name,
            versions=tuple(answer.versions),
            platform=answer.platform,
            inputs=inputs,
            outputs=outputs,
        )

    def _is_batched(self, name: str, version: str) -> bool:
        try:
            return bool(self.model_config(name, version).max_batch_size > 0)
        except RefusedError:  # the API may be restricted; the names of dimensions are all that is lost
            return False

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the config as the server runs it: with the defaults that it filled in."""
        request = {"name": name, "version": version}
        config: ModelConfig = self._call("ModelConfig", f"show the config of model {name!r}", request).config
        return config

    def statistics(self, name: str, version: str = "") -> ModelStatistics:
        """Return a model version's counters; without a version, of the highest that is loaded."""
        request = {"name": name, "version": version}
        answer = self._call("ModelStatistics", f"tell the statistics of model {name!r}", request)
        if not answer.model_stats:
            raise RefusedError(f"{self.url}: no statistics of model {name!r} {version}".rstrip())
        return _statistics(max(answer.model_stats, key=lambda item: int(item.version or 0)))

    def load(self, name: str, timeout_s: float = CONTROL_TIMEOUT_S) -> None:
        """Load or reload a model; return when its versions are ready.

        The server compares modification times: where no file of the model's folder is newer than at
        the last load, it answers yes and does nothing.

        Raises:
            RefusedError: The model does not load; the versions that were loaded keep answering.
            ServerError: The server is not in explicit model control mode.
        """
        self._call("RepositoryModelLoad", f"load model {name!r}", {"model_name": name}, timeout_s)

    def unload(self, name: str, timeout_s: float = CONTROL_TIMEOUT_S) -> None:
        """Unload a model once its running requests are done; an unknown name is no error.

        Raises:
            ServerError: The server is not in explicit model control mode.
        """
        self._call("RepositoryModelUnload", f"unload model {name!r}", {"model_name": name}, timeout_s)

    def infer(
        self,
        name: str,
        inputs: Mapping[str, NDArray[Any]],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> InferResult:
        """Run one request.

        Args:
            name: The model.
            inputs: Input name -> array, batch dimension included; strings as object arrays.
            version: The version to ask; empty lets the server choose (its highest).
            outputs: The outputs to return; all where left out.
            timeout_s: Deadline in seconds, client side.

        Raises:
            RefusedError: The server refuses the request; ``detail`` lists what the model expects.
            UsageError: An array has a type that Triton has not.
        """
        request = infer_request(name, inputs, version=version, outputs=outputs)
        try:
            answer = self._send("ModelInfer", f"run model {name!r}", request, timeout_s)
        except RefusedError as exc:
            exc.detail = "\n".join(filter(None, (exc.detail, self._expectations(name, version))))
            raise
        try:
            return infer_result(answer)
        except RefusedError as exc:
            raise RefusedError(f"{self.url}: model {name!r}: {exc.message}") from exc

    def _expectations(self, name: str, version: str) -> str:
        """Say what a model expects, in one line a tensor; empty when the server does not tell."""
        try:
            metadata = self.model_metadata(name, version)
        except TritonToolkitError:
            return ""
        lines = [
            f"{kind} {tensor.name}: {tensor.dtype.wire} [{', '.join(map(str, tensor.shape))}]"
            for kind, tensors in (("input", metadata.inputs), ("output", metadata.outputs))
            for tensor in tensors
        ]
        return "\n".join([f"{self.url} says that model {name!r} has:", *lines])

    def _call(
        self,
        method: str,
        doing: str,
        fields: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        from tritonclient.grpc import service_pb2

        request: Message = getattr(service_pb2, f"{method}Request")(**(fields or {}))
        return self._send(method, doing, request, timeout_s)

    def _send(self, method: str, doing: str, request: Message, timeout_s: float | None) -> Any:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            return self._transport.call(method, request, limit_s)
        except TransportFailure as failure:
            if failure.answered is None and failure.status == "UNAVAILABLE":
                failure.answered = method != "ServerLive" and self._answers()
            raise to_error(failure, Call(url=self.url, doing=doing, timeout_s=limit_s)) from failure

    def _answers(self) -> bool:
        """Tell a server's own UNAVAILABLE (queue full, wrong mode) from an unreachable server.

        gRPC reports both with the same code.
        """
        try:
            return self.is_live()
        except ServerError:
            return False


def _tensor(item: Any, batched: bool) -> TensorSpec:
    shape: list[int | str] = []
    for axis, extent in enumerate(item.shape):
        if extent >= 0:
            shape.append(int(extent))
        else:
            shape.append("batch" if batched and axis == 0 else f"{item.name}_{axis}")
    return TensorSpec(name=item.name, dtype=DataType.parse(item.datatype), shape=tuple(shape))


def _duration(item: Any) -> DurationStatistics:
    return DurationStatistics(count=item.count, ns=item.ns)


_DURATIONS = (
    "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
)  # fmt: skip


def _statistics(item: Any) -> ModelStatistics:
    batches = tuple(
        BatchStatistics(
            batch_size=entry.batch_size,
            compute_input=_duration(entry.compute_input),
            compute_infer=_duration(entry.compute_infer),
            compute_output=_duration(entry.compute_output),
        )
        for entry in item.batch_stats
    )
    return ModelStatistics(
        name=item.name,
        version=item.version,
        last_inference_ms=item.last_inference,
        inference_count=item.inference_count,
        execution_count=item.execution_count,
        batch_stats=batches,
        **{name: _duration(getattr(item.inference_stats, name)) for name in _DURATIONS},
    )
