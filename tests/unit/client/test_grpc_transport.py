import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.errors import ServerError, ServerTimeoutError


@pytest.fixture
def closed_port():
    """A port that is ours and that nothing listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def test_silent_server_is_given_up_at_the_deadline(serve):
    port = serve(lambda _: threading.Event().wait())
    with (
        TritonClient(f"grpc://127.0.0.1:{port}", timeout_s=0.3) as client,
        pytest.raises(ServerTimeoutError, match=r"no answer within 0\.3 s"),
    ):
        client.index()


def test_nobody_listens(closed_port):
    with (
        TritonClient(f"grpc://127.0.0.1:{closed_port}") as client,
        pytest.raises(ServerError, match=f"^grpc://127.0.0.1:{closed_port}: cannot be reached"),
    ):
        client.load("m")


def test_port_that_speaks_http_is_not_reached(answer):
    port = answer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    with TritonClient(f"grpc://127.0.0.1:{port}", timeout_s=5) as client, pytest.raises(ServerError):
        client.server()


def test_server_that_comes_up_after_a_refusal_is_found_at_once():
    """A new client must not inherit the back-off of an earlier one to the same address."""
    with socket.socket() as unused:  # holds the port until the server shares it
        unused.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        unused.bind(("127.0.0.1", 0))
        url = f"grpc://127.0.0.1:{unused.getsockname()[1]}"
        with TritonClient(url) as early:
            with pytest.raises(ServerError):
                early.server()
            server = _live_server(url)
            with TritonClient(url) as client:
                assert client.is_live() is True
            server.stop(None)


def _live_server(url: str) -> grpc.Server:
    class Live(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ServerLive(self, request, context):
            return service_pb2.ServerLiveResponse(live=True)

    server = grpc.server(ThreadPoolExecutor(1))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Live(), server)
    server.add_insecure_port(url.removeprefix("grpc://"))
    server.start()
    return server
