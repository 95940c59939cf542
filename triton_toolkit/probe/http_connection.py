"""One persistent HTTP/1.1 connection that sends prepared bytes: a socket and little else.

The standard library's client builds a request and parses headers for each exchange, which costs
more than many a model. This one writes bytes, reads the status and the three headers that say
where the answer ends, and gives the body back as it came.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time

from triton_toolkit.client.endpoint import Endpoint

_RECEIVE_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 16


class HttpRefusal(Exception):  # noqa: N818 - an answer, not a fault of the transport
    """The server answered with a status other than 200, in its own words."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class HttpConnection:
    """A connection for one thread; ``close`` may be called from another.

    Args:
        endpoint: Where to connect.
        tls: Context for https, None for http.
        timeout_s: Deadline of connecting, and of each exchange as a whole.
    """

    def __init__(self, endpoint: Endpoint, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._tls = tls
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._buffer = bytearray()

    def connect(self) -> None:
        """Connect unless connected.

        Raises:
            OSError: Refused, unknown host, TLS; ``TimeoutError`` past the deadline.
        """
        if self._socket is not None:
            return
        sock = socket.create_connection((self._endpoint.host, self._endpoint.port), self._timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._endpoint.host)
        except BaseException:
            sock.close()
            raise
        self._buffer.clear()
        self._socket = sock

    def exchange(self, request: bytes) -> tuple[bytes, int | None]:
        """Send a request; return the body of a 200 and the length of its JSON part (None: all of it).

        Raises:
            HttpRefusal: Another status.
            OSError: The connection broke, or what came is not HTTP; it is closed then.
            TimeoutError: Not whole before the deadline; the connection is closed then.
        """
        deadline = time.monotonic() + self._timeout_s
        self.connect()
        whole = False
        try:
            self._send(request, deadline)
            status, headers = self._read_head(deadline)
            body, reusable = self._read_body(headers, deadline)
            whole = reusable and headers.get(b"connection", b"").lower() != b"close"
        finally:
            if not whole:  # what is left on it would be taken for the next answer
                self.close()
        if status != 200:
            raise HttpRefusal(status, _words(status, body))
        length = headers.get(b"inference-header-content-length")
        return body, None if length is None else int(length)

    def close(self) -> None:
        """Drop the connection; a thread that waits on it gets an ``OSError``."""
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _send(self, request: bytes, deadline: float) -> None:
        sock = self._open()
        sock.settimeout(max(deadline - time.monotonic(), 1e-3))
        sock.sendall(request)

    def _read_head(self, deadline: float) -> tuple[int, dict[bytes, bytes]]:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            while end < 0:
                if len(self._buffer) > _MAX_HEAD_BYTES:
                    raise ConnectionError("the answer's head does not end: is this an HTTP server?")
                self._receive(deadline)
                end = self._buffer.find(b"\r\n\r\n")
            lines = bytes(self._buffer[:end]).split(b"\r\n")
            del self._buffer[: end + 4]
            words = lines[0].split(b" ", 2)
            if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
                raise ConnectionError("the answer is not HTTP/1: is this the server's HTTP port?")
            status = int(words[1])
            if status >= 200:  # 1xx answers come before the one that counts
                pairs = (line.partition(b":") for line in lines[1:])
                return status, {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _read_body(self, headers: dict[bytes, bytes], deadline: float) -> tuple[bytes, bool]:
        """Return the body, and whether the connection can carry another exchange."""
        length = headers.get(b"content-length")
        if length is not None and length.isdigit():
            return self._take(int(length), deadline), True
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return self._read_chunks(deadline), True
        with contextlib.suppress(ConnectionError):  # without a length the body ends with the connection
            while True:
                self._receive(deadline)
        return self._take(len(self._buffer), deadline), False

    def _read_chunks(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while True:
            line = self._take_line(deadline)
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise ConnectionError("the answer's chunks are malformed") from None
            if size == 0:
                while self._take_line(deadline):  # trailers
                    pass
                return b"".join(parts)
            parts.append(self._take(size, deadline))
            self._take_line(deadline)

    def _take_line(self, deadline: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            self._receive(deadline)
        return self._take(end + 2, deadline)[:-2]

    def _take(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._receive(deadline)
        if len(self._buffer) == size:
            taken = bytes(self._buffer)
            self._buffer.clear()
            return taken
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _receive(self, deadline: float) -> None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        sock = self._open()
        sock.settimeout(remaining)
        data = sock.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection without a whole answer")
        self._buffer += data

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("the connection was closed")
        return self._socket


def _words(status: int, body: bytes) -> str:
    """Return the server's own words: Triton's errors are JSON, a proxy's are not."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body[:200].decode("utf-8", "replace").strip()
        return f"HTTP status {status}" + (f": {text}" if text else "")
