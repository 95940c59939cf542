"""A child process of ours that answers messages, in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit import errors
from triton_toolkit._process import ChildResult, die_with_parent
from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export import bootstrap
from triton_toolkit.export.channel import Arrays, Channel, ChannelClosed

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Partner:
    """The parent's side.

    Args:
        python: The interpreter.
        module: The module of this package that answers, by ``answering``.
        what: What the process is, for messages.
        cwd: Its working directory; ours where left out.
        env: Its whole environment; ours where left out.
    """

    def __init__(
        self,
        python: str,
        module: str,
        what: str,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._argv = (python, str(bootstrap.__file__), module)
        self._what = what
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env=None if env is None else dict(env),
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - the function only calls prctl and getppid
        )
        if self._process.stdout is None or self._process.stdin is None:
            raise RuntimeError("a process was started without pipes")
        self._channel = Channel(self._process.stdout, self._process.stdin)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def send(self, message: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Send a message.

        Raises:
            ExportError: The process has ended.
        """
        try:
            self._channel.send(message, arrays)
        except ChannelClosed:
            raise self._ended() from None

    def receive(self) -> tuple[dict[str, Any], Arrays]:
        """Wait for a message.

        Raises:
            TritonToolkitError: The error that is the answer.
            ExportError: The process has ended.
        """
        try:
            answer, arrays = self._channel.receive()
        except ChannelClosed:
            raise self._ended() from None
        if error := answer.get("error"):
            kind: type[TritonToolkitError] = getattr(errors, error["error"])
            raise kind(error["message"], hint=error["hint"], detail=error["detail"])
        return answer, arrays

    def close(self) -> None:
        """Let the process end, and wait for it."""
        self._channel.close()
        self._process.wait()

    def _ended(self) -> ExportError:
        ended = ChildResult(argv=self._argv, returncode=self._process.wait(), output="")
        return ExportError(f"{self._what} ended with {ended.how_it_ended}", hint="see what it printed")


def answering() -> Channel:
    """Return the child's side, on stdin and stdout; what is printed goes to stderr instead."""
    writer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return Channel(sys.stdin.buffer, writer)
