"""How a call travels: the protocol's protobuf messages over gRPC or as JSON over HTTP.

Both carry the same messages, so that everything above is written once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from triton_toolkit.client.endpoint import Endpoint
from triton_toolkit.client.errors import TransportFailure

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

_CONNECTION_TEXT = re.compile(r"^failed to connect to all addresses; last error: [A-Z_]+: (ipv[46]:\S+: )?")
_MAX_MESSAGE_BYTES = 2**31 - 1  # the limit of protobuf itself


class Transport(Protocol):
    """Carries one call of ``GRPCInferenceService`` at a time a thread."""

    def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Return the response message of ``method``.

        Raises:
            TransportFailure: The server refused, could not be reached, or did not answer in time.
        """

    def close(self) -> None:
        """Drop the connections; calling it twice is fine."""


def open_transport(endpoint: Endpoint, headers: Mapping[str, str]) -> Transport:
    """Return the transport for a URL's scheme; connects with the first call."""
    if endpoint.is_grpc:
        return GrpcTransport(endpoint, headers)
    from triton_toolkit.client.http_transport import HttpTransport

    return HttpTransport(endpoint, headers)


def open_channel(endpoint: Endpoint) -> grpc.Channel:
    """Return a gRPC channel of its own to an endpoint; connects with the first call.

    Messages may be as large as protobuf allows. With TLS the server's certificate is checked against
    the system's authorities.
    """
    import grpc

    options = [
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        # Channels otherwise share connections by address, and with them the back-off of one
        # that failed: a server that has just come up would still be "unreachable".
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if endpoint.tls:
        return grpc.secure_channel(endpoint.address, grpc.ssl_channel_credentials(), options=options)
    return grpc.insecure_channel(endpoint.address, options=options)


class GrpcTransport:
    """Calls over one gRPC channel; safe to share between threads."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        from tritonclient.grpc import service_pb2_grpc

        self._channel = open_channel(endpoint)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # HTTP/2 has lower-case header names, and grpc refuses others.
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())

    def call(self, method: str, request: Message, timeout_s: float) -> Any:
        """Return the response message of ``method``."""
        import grpc

        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as exc:
            status = exc.code().name
            answered = None if status == "UNAVAILABLE" else True
            text = _CONNECTION_TEXT.sub("", exc.details() or status)
            raise TransportFailure(status, text, answered=answered) from exc

    def close(self) -> None:
        """Close the channel; calls in flight on other threads are cancelled."""
        self._channel.close()
