"""The HTTP connection against a socket that says what Triton rarely does, byte by byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from triton_toolkit.client.endpoint import Endpoint
from triton_toolkit.probe.http_connection import HttpConnection, HttpRefusal

REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

Serve = Callable[..., HttpConnection]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that answers the n-th request with the n-th list of pieces, and connects."""
    threads = []
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(answers: list[list[bytes]], close_after: bool) -> None:
        accepted, _ = listener.accept()
        with accepted, suppress(ConnectionError):  # the client may leave before the end
            for pieces in answers:
                received = b""
                while not received.endswith(b"hi"):
                    received += accepted.recv(1000)
                for piece in pieces:
                    accepted.sendall(piece)
                    time.sleep(0.01)
            if not close_after:
                accepted.settimeout(5)
                accepted.recv(1)  # until the client closes

    def start(*answers: list[bytes], close_after: bool = False, timeout_s: float = 5.0) -> HttpConnection:
        thread = threading.Thread(target=answer, args=(list(answers), close_after))
        thread.start()
        threads.append(thread)
        port = listener.getsockname()[1]
        endpoint = Endpoint(url="", scheme="http", host="127.0.0.1", port=port)
        return HttpConnection(endpoint, None, timeout_s)

    yield start
    for thread in threads:
        thread.join(timeout=10)
    listener.close()


def exchange(connection: HttpConnection, times: int = 1) -> list[tuple[bytes, int | None]]:
    with closing(connection):
        return [connection.exchange(REQUEST) for _ in range(times)]


def test_answers_follow_one_another_on_one_connection(serve: Serve) -> None:
    other = b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: 3\r\ncontent-length: 6\r\n\r\nJSON12"
    assert exchange(serve([OK], [other]), 2) == [(b"hello", None), (b"JSON12", 3)]


def test_pieces_are_put_together(serve: Serve) -> None:
    assert exchange(serve([OK[:9], OK[9:40], OK[40:41], OK[41:]])) == [(b"hello", None)]


def test_chunks_are_put_together(serve: Serve) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=1\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
    assert exchange(serve([chunked[:60], chunked[60:]], [OK]), 2) == [(b"hello", None)] * 2


def test_body_without_a_length_ends_with_the_connection(serve: Serve) -> None:
    assert exchange(serve([b"HTTP/1.0 200 OK\r\n\r\nhello"], close_after=True)) == [(b"hello", None)]


def test_interim_answer_is_skipped(serve: Serve) -> None:
    assert exchange(serve([b"HTTP/1.1 100 Continue\r\n\r\n", OK])) == [(b"hello", None)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":"queue is full"}', "queue is full"),
        (b"<html>", "HTTP status 503: <html>"),
        (b"", "HTTP status 503"),
    ],
)
def test_refusal_has_the_server_s_words_and_the_connection_lives(
    serve: Serve, body: bytes, words: str
) -> None:
    refusal = b"HTTP/1.1 503 Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with closing(serve([refusal], [OK])) as connection:
        with pytest.raises(HttpRefusal) as caught:
            connection.exchange(REQUEST)
        assert (caught.value.status, caught.value.text) == (503, words)
        assert connection.exchange(REQUEST) == (b"hello", None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection without a whole answer"),
        (OK[:-1], "closed the connection without a whole answer"),
        (b"\x00\x00\x04\x10junk\r\n\r\n", "not HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "malformed"),
    ],
)
def test_broken_answer_is_a_connection_error(serve: Serve, answer: bytes, words: str) -> None:
    with pytest.raises(ConnectionError, match=words):
        exchange(serve([answer] if answer else [], close_after=True))


def test_deadline_holds_for_the_whole_answer(serve: Serve) -> None:
    """A server that sends a byte now and then must not keep the request alive."""
    drip = [OK[i : i + 1] for i in range(len(OK))]
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        exchange(serve(drip, timeout_s=0.1))
    assert time.monotonic() - start < 2


def test_nobody_there_is_an_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as unused:
        port = unused.getsockname()[1]
    connection = HttpConnection(Endpoint(url="", scheme="http", host="127.0.0.1", port=port), None, 1.0)
    with pytest.raises(ConnectionRefusedError):
        connection.exchange(REQUEST)
