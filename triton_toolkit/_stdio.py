"""Standard output and error that may be closed, full, or a pipe whose reader has gone.

``__main__`` calls this as soon as the signal handlers are set, so it imports next to nothing.
"""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


class OutputError(Exception):
    """The result cannot be printed: the reader of the pipe has gone, or the disk is full.

    No OSError, which click would take for its own and end with 1, "the answer is no".
    """

    def __init__(self, cause: OSError) -> None:
        super().__init__(os.strerror(cause.errno or errno.EIO))
        self.reader_has_gone = cause.errno == errno.EPIPE


def guard_streams() -> None:
    """From now on, what cannot be printed raises OutputError; on stderr, where nobody would see it, nothing.

    Streams that are closed (``>&-``) become ``/dev/null``: else the next file that is opened would get
    their number, and with it whatever is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
    sys.stdout = _Guarded(sys.stdout or _open(1))
    sys.stderr = _Guarded(sys.stderr or _open(2), quiet=True)


def discard_stdout() -> None:
    """Send what is still to be printed nowhere, so that the end of the process is a quiet one."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _open(number: int) -> TextIO:
    return open(number, "w", encoding="utf-8", closefd=False)


class _Guarded:
    """A text stream whose failures to write are told apart from all others."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as exc:
            self._failed(exc)
            return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as exc:
            self._failed(exc)

    def _failed(self, exc: OSError) -> None:
        if not self._quiet:
            raise OutputError(exc) from exc

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
