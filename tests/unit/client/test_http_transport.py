import socket
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.errors import RefusedError, ServerError, ServerTimeoutError


def _http(status: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def _dribble(connection: socket.socket, data: bytes) -> None:
    """Send a byte now and then: no single read ever waits long."""
    connection.recv(65536)
    for byte in data:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def _hang(connection: socket.socket) -> None:
    connection.recv(65536)
    threading.Event().wait()


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(_hang, id="silent"),
        pytest.param(lambda c: _dribble(c, b"HTTP/1.1 200 OK\r\n" * 99), id="header-dribbles"),
        pytest.param(lambda c: _dribble(c, _http("200 OK", b"{" * 999)), id="body-dribbles"),
    ],
)
def test_deadline_holds_for_the_whole_call(serve, handler):
    with (
        TritonClient(f"http://127.0.0.1:{serve(handler)}", timeout_s=0.3) as client,
        pytest.raises(ServerTimeoutError, match=r"no answer within 0\.3 s"),
    ):
        client.server()


def test_deadline_holds_for_a_request_that_is_not_read(serve):
    inputs = {"x": np.zeros(32 << 20, np.uint8)}
    with (
        TritonClient(f"http://127.0.0.1:{serve(lambda _: threading.Event().wait())}") as client,
        pytest.raises(ServerTimeoutError),
    ):
        client.infer("m", inputs, timeout_s=0.3)


def test_client_works_again_after_a_timeout(serve):
    calls = []

    def second_time_lucky(connection):
        connection.recv(65536)
        calls.append(connection)
        if len(calls) > 1:
            connection.sendall(_http("200 OK", b'{"name": "triton", "version": "2.51.0", "extensions": []}'))

    with TritonClient(f"http://127.0.0.1:{serve(second_time_lucky)}", timeout_s=0.2) as client:
        with pytest.raises(ServerTimeoutError):
            client.server()
        assert client.server().version == "2.51.0"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\x12\x04\0\0\r\n", "the answer is not HTTP"),
        (b"", "the connection was closed without an answer"),
        (_http("200 OK", b"<html>hello</html>"), "the answer is not Triton's"),
        (_http("404 Not Found", b"<html>nothing here</html>"), "HTTP status 404 Not Found"),
        (_http("502 Bad Gateway", b""), "HTTP status 502 Bad Gateway"),
        (_http("401 Unauthorized", b""), "HTTP status 401 Unauthorized"),
    ],
    ids=["grpc-port", "closed", "html-200", "html-404", "proxy-502", "unauthorised"],
)
def test_what_is_no_triton_is_a_server_error(serve, answer, data, text):
    port = answer(data) if data else serve(lambda connection: (connection.recv(9999), connection.close()))
    with TritonClient(f"http://127.0.0.1:{port}") as client, pytest.raises(ServerError, match=text):
        client.server()


def test_refusal_in_json_has_the_servers_words(answer):
    port = answer(_http("400 Bad Request", b'{"error": "no such thing"}'))
    with (
        TritonClient(f"http://127.0.0.1:{port}") as client,
        pytest.raises(RefusedError, match="refused to tell its version: no such thing"),
    ):
        client.server()


@pytest.mark.parametrize(("status", "live"), [("200 OK", True), ("400 Bad Request", False)])
def test_health_is_a_status_not_an_error(answer, status, live):
    with TritonClient(f"http://127.0.0.1:{answer(_http(status, b''))}") as client:
        assert client.is_live() is live


def test_headers_and_base_path_are_sent(serve):
    seen = []

    def keep(connection):
        seen.append(connection.recv(65536).decode())
        connection.sendall(_http("200 OK", b'{"name": "t", "version": "1"}'))

    headers = {"Authorization": "Bearer x"}
    with TritonClient(f"http://127.0.0.1:{serve(keep)}/gpu", headers=headers) as client:
        client.server()
    assert seen[0].startswith("GET /gpu/v2 HTTP/1.1\r\n")
    assert "Authorization: Bearer x\r\n" in seen[0]


def test_each_thread_has_its_own_connection(serve):
    connections = []

    def keep(connection):
        connections.append(connection)
        while connection.recv(65536):
            connection.sendall(_http("200 OK", b""))

    with TritonClient(f"http://127.0.0.1:{serve(keep)}") as client:
        threads = [threading.Thread(target=client.is_live) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (client.is_live(), client.is_live()) == (True, True)
    assert len(connections) == 4  # one a thread, kept alive


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 that signs itself: PEM file of certificate and key."""
    folder = tmp_path_factory.mktemp("tls")
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    try:
        subprocess.run(argv, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("the openssl command is not installed")
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture
def tls_port(serve, certificate):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def handle(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(_http("200 OK", b'{"name": "t", "version": "1.2.3"}'))

    return serve(handle)


def test_https_with_a_trusted_certificate(tls_port, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with TritonClient(f"https://127.0.0.1:{tls_port}") as client:
        assert client.server().version == "1.2.3"


def test_https_with_an_unknown_certificate_is_refused(tls_port):
    with (
        TritonClient(f"https://127.0.0.1:{tls_port}") as client,
        pytest.raises(ServerError, match="TLS: certificate verify failed"),
    ):
        client.server()
