"""Messages between two of our processes: JSON with named arrays, without pickles.

A message is the length of its head (8 bytes, big-endian), the head as JSON, and the bytes of the arrays
one after the other. BYTES arrays travel as their elements' lengths and their joined bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
_LENGTH_BYTES = 8


class ChannelClosed(Exception):  # noqa: N818 - internal: the callers say which process has ended
    """The other side has ended."""


class Channel:
    """One end of a pair of pipes.

    Args:
        reader: Where the other side's messages come from.
        writer: Where ours go.
    """

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Send a message.

        Raises:
            ChannelClosed: The other side has ended.
        """
        import numpy as np

        heads: list[list[Any]] = []
        bodies: list[bytes] = []
        for name, array in (arrays or {}).items():
            if array.dtype == object:
                lengths = [len(item) for item in array.ravel()]
                heads.append([name, "bytes", array.shape, lengths])
                bodies.append(b"".join(array.ravel()))
            else:
                heads.append([name, array.dtype.str, array.shape, array.nbytes])
                bodies.append(np.ascontiguousarray(array).tobytes())
        head = json.dumps([message, heads]).encode()
        try:
            self._writer.write(len(head).to_bytes(_LENGTH_BYTES, "big") + head)
            for body in bodies:
                self._writer.write(body)
            self._writer.flush()
        except (BrokenPipeError, ValueError) as exc:  # ValueError: closed here
            raise ChannelClosed from exc

    def receive(self) -> tuple[dict[str, Any], Arrays]:
        """Wait for a message.

        Raises:
            ChannelClosed: The other side has ended.
        """
        import numpy as np

        size = int.from_bytes(self._read(_LENGTH_BYTES), "big")
        message, heads = json.loads(self._read(size))
        arrays: Arrays = {}
        for name, kind, shape, length in heads:
            if kind == "bytes":
                items = np.empty(len(length), dtype=object)
                items[:] = [self._read(one) for one in length]
                arrays[name] = items.reshape(shape)
            else:
                # A copy, since an array over the message's own bytes could not be written to.
                arrays[name] = np.frombuffer(self._read(length), dtype=kind).reshape(shape).copy()
        return message, arrays

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) != size:
            raise ChannelClosed
        return data

    def close(self) -> None:
        """Close both pipes; the other side sees an end."""
        for pipe in (self._writer, self._reader):
            try:
                pipe.close()
            except BrokenPipeError:  # what was buffered cannot be written any more
                continue
