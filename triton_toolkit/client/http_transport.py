"""The same calls as JSON over HTTP, tensors in binary behind the JSON.

The standard library's client rather than a pool of green threads: one connection a thread, and a
deadline that holds for the whole call, even against a server that sends a byte now and then.

Source: Triton's HTTP/REST protocol with its "Binary Tensor Data" and "Model Repository" extensions.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from triton_toolkit.client.endpoint import Endpoint
from triton_toolkit.client.errors import TransportFailure, http_status
from triton_toolkit.core.addresses import model_path

if TYPE_CHECKING:
    from google.protobuf.message import Message

_JSON_LENGTH = "Inference-Header-Content-Length"


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class HttpTransport:
    """Calls over HTTP/1.1 with keep-alive; each thread has its own connection."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        self._headers = dict(headers)
        self._context = ssl.create_default_context() if endpoint.tls else None
        self._local = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Return the response message of ``method``."""
        verb, path, headers, body = _encode(method, request)
        answer = self._exchange(verb, path, headers, body, timeout_s)
        if method in ("ServerLive", "ServerReady") and answer.status in (200, 400):
            return _message(method, {"live" if method == "ServerLive" else "ready": answer.status == 200})
        if answer.status != 200:
            raise _refusal(answer)
        try:
            return _infer_response(answer) if method == "ModelInfer" else _response(method, answer.body)
        except (ValueError, KeyError, TypeError) as exc:
            text = f"the answer is not Triton's: {type(exc).__name__}: {exc}"
            raise TransportFailure("UNIMPLEMENTED", text, answered=True) from exc

    def close(self) -> None:
        """Close the connections of all threads."""
        while self._open:
            self._open.pop().close()

    def _exchange(
        self, verb: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
    ) -> _Answer:
        deadline = time.monotonic() + timeout_s
        connection = self._connection()
        connection.timeout = timeout_s
        try:
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(max(deadline - time.monotonic(), 1e-3))
            connection.response_class = _responses_until(deadline)
            connection.request(
                verb, self._endpoint.base_path + path, body=body, headers={**self._headers, **headers}
            )
            with connection.getresponse() as response:
                return _Answer(response.status, response.headers, response.read())
        except TimeoutError as exc:
            connection.close()
            raise TransportFailure("DEADLINE_EXCEEDED", "timed out", answered=None) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise TransportFailure("UNAVAILABLE", _reason(exc), answered=False) from exc
        except BaseException:  # a half-read answer must not be taken for the next one
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            host, port = self._endpoint.host, self._endpoint.port
            if self._context is None:
                connection = http.client.HTTPConnection(host, port)
            else:
                connection = http.client.HTTPSConnection(host, port, context=self._context)
            self._local.connection = connection
            self._open.append(connection)
        return connection


class _DeadlineReader(io.RawIOBase):
    """Reads a socket, giving each read only what is left of the whole call's time."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        self._sock.settimeout(remaining)
        return self._sock.recv_into(buffer)


class _DeadlineSocket:
    """What ``HTTPResponse`` needs of a socket: something to read from."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._reader = _DeadlineReader(sock, deadline)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self._reader)


def _responses_until(deadline: float) -> Any:
    def response(sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
        return http.client.HTTPResponse(_DeadlineSocket(sock, deadline), *args, **kwargs)  # type: ignore[arg-type]

    return response


def _reason(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return f"TLS: {(exc.reason or str(exc)).replace('_', ' ').lower()}"
    if isinstance(exc, http.client.RemoteDisconnected):
        return "the connection was closed without an answer"
    if isinstance(exc, http.client.HTTPException):  # its text may be the other protocol's raw bytes
        return f"the answer is not HTTP ({type(exc).__name__})"
    return getattr(exc, "strerror", None) or str(exc) or type(exc).__name__


def _refusal(answer: _Answer) -> TransportFailure:
    status = http_status(answer.status)
    try:
        value = json.loads(answer.body)
        return TransportFailure(status, str(value["error"]), answered=True)
    except (ValueError, KeyError, TypeError):
        text = f"HTTP status {answer.status} {http.client.responses.get(answer.status, '')}".rstrip()
    # Triton explains itself in JSON; a bare status comes from a proxy or from another kind of server.
    refused = status in ("UNAUTHENTICATED", "PERMISSION_DENIED", "DEADLINE_EXCEEDED")
    return TransportFailure(status if refused else "UNIMPLEMENTED", text, answered=True)


_GET_PATHS = {"ServerLive": "/v2/health/live", "ServerReady": "/v2/health/ready", "ServerMetadata": "/v2"}
_MODEL_PATHS = {"ModelMetadata": "", "ModelConfig": "/config", "ModelStatistics": "/stats"}


def _encode(method: str, request: Any) -> tuple[str, str, dict[str, str], bytes | None]:
    """Return verb, path, headers and body of a call."""
    if method in _GET_PATHS:
        return "GET", _GET_PATHS[method], {}, None
    if method in _MODEL_PATHS:
        path = "/v2" + model_path(request.name, request.version) + _MODEL_PATHS[method]
        return "GET", path, {}, None
    if method == "ModelInfer":
        header, body = _infer_body(request)
        headers = {"Content-Type": "application/octet-stream", _JSON_LENGTH: str(header)}
        path = f"/v2{model_path(request.model_name, request.model_version)}/infer"
        return "POST", path, headers, body
    path = "/v2/repository/index"
    if method != "RepositoryIndex":
        action = "load" if method == "RepositoryModelLoad" else "unload"
        path = f"/v2/repository{model_path(request.model_name)}/{action}"
    return "POST", path, {"Content-Type": "application/json"}, b"{}"


def _infer_body(request: Any) -> tuple[int, bytes]:
    """Return the length of the JSON part, and the whole body."""
    header: dict[str, Any] = {
        "inputs": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "parameters": {"binary_data_size": len(data)},
            }
            for tensor, data in zip(request.inputs, request.raw_input_contents, strict=True)
        ]
    }
    if request.outputs:
        wanted = [{"name": tensor.name, "parameters": {"binary_data": True}} for tensor in request.outputs]
        header["outputs"] = wanted
    else:
        header["parameters"] = {"binary_data_output": True}
    text = json.dumps(header).encode()
    return len(text), b"".join((text, *request.raw_input_contents))


def _infer_response(answer: _Answer) -> Any:
    from tritonclient.grpc import service_pb2

    start = int(answer.headers.get(_JSON_LENGTH, len(answer.body)))
    value = json.loads(answer.body[:start])
    response = service_pb2.ModelInferResponse(
        model_name=value["model_name"], model_version=value.get("model_version", "")
    )
    for output in value["outputs"]:
        response.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
        end = start + output["parameters"]["binary_data_size"]
        response.raw_output_contents.append(answer.body[start:end])
        start = end
    return response


def _response(method: str, body: bytes) -> Any:
    value = json.loads(body) if body else {}
    if method == "RepositoryIndex":
        value = {"models": value}
    elif method == "ModelConfig":
        value = {"config": value}
    return _message(method, value)


def _message(method: str, value: dict[str, Any]) -> Any:
    from google.protobuf import json_format
    from tritonclient.grpc import service_pb2

    try:
        return json_format.ParseDict(
            value, getattr(service_pb2, f"{method}Response")(), ignore_unknown_fields=True
        )
    except json_format.ParseError as exc:
        raise ValueError(str(exc)) from exc
