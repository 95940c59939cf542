"""Servers of a few lines, for what a real one never does: hang, dribble, or speak something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

Handler = Callable[[socket.socket], None]


@contextmanager
def _listening(handler: Handler) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has gone, which is what the test is about
            handler(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in open_sockets:
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Handler], int]]:
    """Start a server whose connections are handled by a function; returns its port."""
    with ExitStack() as stack:
        yield lambda handler: stack.enter_context(_listening(handler))


@pytest.fixture
def answer(serve: Callable[[Handler], int]) -> Callable[[bytes], int]:
    """Start a server that answers every request with the same bytes; returns its port."""

    def start(data: bytes) -> int:
        def handle(connection: socket.socket) -> None:
            while connection.recv(65536):
                connection.sendall(data)

        return serve(handle)

    return start
