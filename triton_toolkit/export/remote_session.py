"""ONNX Runtime in another process: sessions over pipes, with the interface of ``session.Session``.

The export of a model with an interpreter of its own runs there; ONNX Runtime stays in that of tt, in a
server that this module starts and is: ``python bootstrap.py triton_toolkit.export.remote_session``.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from triton_toolkit import errors
from triton_toolkit._optional import require
from triton_toolkit._process import ChildResult, die_with_parent
from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export import bootstrap
from triton_toolkit.export.channel import Arrays, Channel, ChannelClosed
from triton_toolkit.export.session import Here, RunFailed, Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONTENT = "content"


class RuntimeServer:
    """Client of a process that runs ONNX Runtime.

    Attributes:
        version: The version of ONNX Runtime there.
    """

    def __init__(self, python: str) -> None:
        """Start it.

        Args:
            python: An interpreter with ONNX Runtime.

        Raises:
            MissingDependencyError: onnxruntime is not installed there.
            ExportError: The process ended.
        """
        self._argv = (python, str(bootstrap.__file__), __name__)
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - the function only calls prctl and getppid
        )
        if self._process.stdout is None or self._process.stdin is None:
            raise RuntimeError("a process was started without pipes")
        self._freed: list[int] = []
        self._channel = Channel(self._process.stdout, self._process.stdin)
        try:
            self.version = str(self._ask({"ask": "version"})[0]["version"])
        except BaseException:
            self.close()
            raise

    def open(self, path: Path, settings: Settings, content: bytes | None) -> RemoteRunner:
        """Load a file; an ``Opener``.

        Raises:
            ExportError: ONNX Runtime refuses it, or its process ended.
        """
        import numpy as np

        question = {
            "ask": "open",
            "path": str(path.absolute()),
            "optimized": settings.optimized,
            "entries": dict(settings.entries),
            "threads": settings.threads,
        }
        arrays = {} if content is None else {_CONTENT: np.frombuffer(content, np.uint8)}
        answer, _ = self._ask(question, arrays)
        return RemoteRunner(self, int(answer["session"]))

    def run(self, session: int, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None) -> Arrays:
        """Run a session; see ``Session.predict``."""
        wanted = None if outputs is None else list(outputs)
        return self._ask({"ask": "run", "session": session, "outputs": wanted}, arrays)[1]

    def forget(self, session: int) -> None:
        """Free a session, with the next question: this is called at any moment, even amid a message."""
        self._freed.append(session)

    def close(self) -> None:
        """End the process."""
        self._channel.close()
        self._process.wait()

    def _ask(
        self, question: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        freed, self._freed = self._freed, []
        try:
            self._channel.send({**question, "free": freed}, arrays)
            answer, found = self._channel.receive()
        except ChannelClosed:
            ended = ChildResult(argv=self._argv, returncode=self._process.wait(), output="")
            raise ExportError(f"the process of ONNX Runtime ended with {ended.how_it_ended}") from None
        if failed := answer.get("failed"):
            raise RunFailed(**failed)
        if error := answer.get("error"):
            kind: type[TritonToolkitError] = getattr(errors, error["error"])
            raise kind(error["message"], hint=error["hint"], detail=error["detail"])
        return answer, found


class RemoteRunner:
    """A file loaded by a ``RuntimeServer``; freed with this object."""

    def __init__(self, server: RuntimeServer, session: int) -> None:
        self._server = server
        self._session = session
        weakref.finalize(self, server.forget, session).atexit = False

    def predict(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None) -> Arrays:
        """Run it once."""
        return self._server.run(self._session, arrays, outputs)


@contextlib.contextmanager
def runtime_server(python: str) -> Iterator[RuntimeServer]:
    """Run a server as long as the block."""
    server = RuntimeServer(python)
    try:
        yield server
    finally:
        server.close()


def serve(reader: IO[bytes], writer: IO[bytes]) -> None:
    """Answer questions until the other side ends."""
    channel = Channel(reader, writer)
    sessions: dict[int, Here] = {}
    with contextlib.suppress(ChannelClosed):
        while True:
            question, arrays = channel.receive()
            for number in question["free"]:
                del sessions[number]
            try:
                answer, found = _answer(question, arrays, sessions)
            except RunFailed as exc:
                failed = {"node": exc.node, "operator": exc.operator, "reason": exc.reason}
                answer, found = {"failed": failed}, {}
            except TritonToolkitError as exc:
                answer, found = {"error": exc.as_dict()}, {}
            channel.send(answer, found)


def _answer(
    question: Mapping[str, Any], arrays: Arrays, sessions: dict[int, Here]
) -> tuple[dict[str, Any], Arrays]:
    match question["ask"]:
        case "version":
            runtime = require("onnxruntime", extra="cpu", purpose="prove an exported model")
            return {"version": runtime.__version__}, {}
        case "open":
            settings = Settings(
                optimized=question["optimized"], entries=question["entries"], threads=question["threads"]
            )
            content = arrays[_CONTENT].tobytes() if _CONTENT in arrays else None
            loaded = Here(Path(question["path"]), settings, content)
            number = max(sessions, default=0) + 1
            sessions[number] = loaded
            return {"session": number}, {}
        case "run":
            return {}, sessions[question["session"]].predict(arrays, question["outputs"])
    raise ValueError(f"no such question: {question['ask']}")


def main() -> None:
    """Serve on stdin and stdout; whatever native code prints goes to stderr instead."""
    writer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, writer)


if __name__ == "__main__":
    main()
