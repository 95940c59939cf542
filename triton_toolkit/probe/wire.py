"""Requests as bytes made once, answers as bytes, and the connections that carry them.

The formats are tritonclient's: gRPC requests are its ``ModelInferRequest`` serialised once, HTTP
bodies come from its ``generate_request_body``, and answers are read back through it. In between
nothing touches the bytes, so that a latency holds the server's work and little of the client's.
"""

from __future__ import annotations

import contextlib
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from triton_toolkit.client.endpoint import Endpoint, parse_url
from triton_toolkit.client.errors import http_status
from triton_toolkit.client.payloads import infer_request, infer_result, to_wire
from triton_toolkit.client.transport import open_channel
from triton_toolkit.client.types import InferResult
from triton_toolkit.core.addresses import model_path
from triton_toolkit.errors import RefusedError, ServerError
from triton_toolkit.probe.http_connection import HttpConnection, HttpRefusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

TIMEOUT = "timeout"
"""Kind of a request that had no answer before its deadline."""
UNREACHABLE = "unreachable"
"""Kind of a request whose connection could not be made, or broke."""

_LIVE_METHOD = "/inference.GRPCInferenceService/ServerLive"
_INFER_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_BROKEN = (
    "failed to connect",
    "socket closed",
    "connection re",
    "broken pipe",
    "cancelling all calls",
    "goaway",
)


class Answer(NamedTuple):
    """An answer as it came; ``header_length`` (HTTP) is the size of its JSON part, None if all is."""

    body: bytes
    header_length: int | None = None


class RequestFailed(Exception):  # noqa: N818 - counted by the load, not shown to users
    """A request without a good answer: its kind, and the server's or transport's words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Connection(Protocol):
    """Carries one request at a time."""

    def ready(self) -> None:
        """Connect where that is still to be done; not part of a request's time."""

    def exchange(self, request: bytes) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            RequestFailed: No answer in time, a broken connection, or the server's refusal.
        """

    def close(self) -> None:
        """Drop the connection; another thread may do this to end a wait."""


class Wire(Protocol):
    """A protocol: how requests of one model are made, sent and read."""

    def encode(self, inputs: Arrays) -> bytes:
        """Return a request, whole, as it is sent."""

    def decode(self, answer: Answer) -> InferResult:
        """Return an answer's outputs.

        Raises:
            RefusedError: The bytes are not an answer of the protocol.
        """

    def connect(self) -> Connection:
        """Return a connection for one worker; connects with ``ready``."""

    def close(self) -> None:
        """Drop what the connections share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Where requests go: server, headers for each request, model, version, deadline a request."""

    url: str
    headers: Mapping[str, str]
    model: str
    version: str
    timeout_s: float


def open_wire(destination: Destination) -> Wire:
    """Return the wire of a URL's scheme.

    Raises:
        UsageError: The URL cannot be used.
    """
    endpoint = parse_url(destination.url)
    return (GrpcWire if endpoint.is_grpc else HttpWire)(endpoint, destination)


class GrpcWire:
    """gRPC over one channel that all workers share."""

    def __init__(self, endpoint: Endpoint, destination: Destination) -> None:
        self._destination = destination
        self._channel = open_channel(endpoint)

    def encode(self, inputs: Arrays) -> bytes:
        """Return a serialised ``ModelInferRequest``."""
        request = infer_request(self._destination.model, inputs, version=self._destination.version)
        return bytes(request.SerializeToString())

    def decode(self, answer: Answer) -> InferResult:
        """Parse a ``ModelInferResponse``."""
        from google.protobuf.message import DecodeError
        from tritonclient.grpc import service_pb2

        try:
            message = service_pb2.ModelInferResponse.FromString(answer.body)
        except DecodeError as exc:
            raise RefusedError(f"the answer is not a ModelInferResponse: {exc}") from exc
        return infer_result(message)

    def connect(self) -> Connection:
        """Return a handle on the shared channel."""
        # Without (de)serialisers grpc passes the bytes through.
        call = self._channel.unary_unary(_INFER_METHOD)
        # HTTP/2 has lower-case header names, and grpc refuses others.
        metadata = tuple((name.lower(), value) for name, value in self._destination.headers.items())
        return _GrpcConnection(call, metadata, self._destination.timeout_s, self._channel)

    def close(self) -> None:
        """Close the channel; waiting calls end."""
        self._channel.close()


class _GrpcConnection:
    def __init__(
        self, call: Any, metadata: tuple[tuple[str, str], ...], timeout_s: float, channel: Any
    ) -> None:
        self._call = call
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._channel = channel
        self._connected = False

    def ready(self) -> None:
        if self._connected:
            return
        import grpc

        # A first call pays for the connection and for grpcio's own start: let it not be a request.
        with contextlib.suppress(grpc.RpcError):  # the request itself will say what is wrong
            self._channel.unary_unary(_LIVE_METHOD)(b"", timeout=self._timeout_s, metadata=self._metadata)
        self._connected = True

    def exchange(self, request: bytes) -> Answer:
        import grpc

        try:
            return Answer(self._call(request, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.RpcError as exc:
            status, text = exc.code().name, exc.details() or ""
            raise RequestFailed(_grpc_kind(status, text), text or status) from exc
        except ValueError as exc:  # "Cannot invoke RPC on closed channel!": the run is being stopped
            raise RequestFailed(UNREACHABLE, str(exc)) from exc

    def close(self) -> None:
        """The channel is shared: its owner closes it."""


def _grpc_kind(status: str, text: str) -> str:
    if status == "DEADLINE_EXCEEDED":
        return TIMEOUT
    # grpcio gives a broken connection and a server's own "unavailable" (queue full) the same code.
    if status == "UNAVAILABLE" and any(words in text.lower() for words in _BROKEN):
        return UNREACHABLE
    return status.lower()


class HttpWire:
    """HTTP/1.1, a persistent connection for each worker."""

    def __init__(self, endpoint: Endpoint, destination: Destination) -> None:
        self._endpoint = endpoint
        self._destination = destination
        self._tls = ssl.create_default_context() if endpoint.tls else None

    def encode(self, inputs: Arrays) -> bytes:
        """Return request line, headers and body."""
        from tritonclient.http import InferenceServerClient, InferInput

        body: bytes
        tensors = []
        for name, array in inputs.items():
            dtype, _ = to_wire(name, array)
            tensor = InferInput(name, list(array.shape), dtype.wire)
            tensors.append(tensor.set_data_from_numpy(array))
        body, json_length = InferenceServerClient.generate_request_body(tensors)
        headers = {
            **self._destination.headers,
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(body)),
        }
        if "host" not in map(str.lower, headers):  # an ingress may route by another name
            headers = {"Host": self._endpoint.address, **headers}
        if json_length is not None:
            headers["Inference-Header-Content-Length"] = str(json_length)
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {self._path()} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body

    def _path(self) -> str:
        path = model_path(self._destination.model, self._destination.version)
        return f"{self._endpoint.base_path}/v2{path}/infer"

    def decode(self, answer: Answer) -> InferResult:
        """Parse a response body."""
        from tritonclient.http import InferenceServerClient
        from tritonclient.utils import InferenceServerException

        try:
            result = InferenceServerClient.parse_response_body(
                answer.body, header_length=answer.header_length
            )
            response = result.get_response()
            outputs = {item["name"]: result.as_numpy(item["name"]) for item in response["outputs"]}
            return InferResult(
                model_name=response["model_name"],
                model_version=response.get("model_version", ""),
                outputs=outputs,
            )
        except (ValueError, KeyError, TypeError, struct.error, InferenceServerException) as exc:
            raise RefusedError(f"the answer is not Triton's: {exc or type(exc).__name__}") from exc

    def connect(self) -> Connection:
        """Return a connection of its own."""
        return _HttpConnection(HttpConnection(self._endpoint, self._tls, self._destination.timeout_s))

    def close(self) -> None:
        """Nothing is shared."""


class _HttpConnection:
    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def ready(self) -> None:
        with contextlib.suppress(OSError):  # the request itself will say what is wrong
            self._connection.connect()

    def exchange(self, request: bytes) -> Answer:
        try:
            return Answer(*self._connection.exchange(request))
        except TimeoutError as exc:
            raise RequestFailed(TIMEOUT, "no answer before the deadline") from exc
        except OSError as exc:
            raise RequestFailed(UNREACHABLE, str(exc) or type(exc).__name__) from exc
        except HttpRefusal as exc:
            raise RequestFailed(http_status(exc.status).lower(), exc.text) from exc

    def close(self) -> None:
        self._connection.close()


def refused(failure: RequestFailed, destination: Destination) -> ServerError | RefusedError:
    """Return the error for a single request that failed before any load."""
    from triton_toolkit.client.errors import Call, TransportFailure, to_error

    answered = failure.kind != UNREACHABLE
    status = {TIMEOUT: "DEADLINE_EXCEEDED", UNREACHABLE: "UNAVAILABLE"}.get(
        failure.kind, failure.kind.upper()
    )
    call = Call(
        url=destination.url, doing=f"run model {destination.model!r}", timeout_s=destination.timeout_s
    )
    error = to_error(TransportFailure(status, failure.text, answered=answered), call)
    if not isinstance(error, ServerError | RefusedError):
        raise TypeError(type(error).__name__)
    return error
