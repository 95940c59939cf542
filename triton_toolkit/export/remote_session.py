"""ONNX Runtime in another process: sessions over pipes, with the interface of ``session.Session``.

The export of a model with an interpreter of its own runs there; ONNX Runtime stays in that of tt, in a
server that this module starts and is: ``python bootstrap.py triton_toolkit.export.remote_session``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._optional import require
from triton_toolkit.errors import TritonToolkitError
from triton_toolkit.export.channel import Arrays, ChannelClosed
from triton_toolkit.export.partner import Partner, answering
from triton_toolkit.export.session import Here, RunFailed, Settings, running_in

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
        self._freed: list[int] = []
        self._partner = Partner(python, __name__, "the process of ONNX Runtime")
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
            "provider": settings.provider,
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

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._partner.pid

    def close(self) -> None:
        """End the process."""
        self._partner.close()

    def _ask(
        self, question: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        freed, self._freed = self._freed, []
        self._partner.send({**question, "free": freed}, arrays)
        answer, found = self._partner.receive()
        if failed := answer.get("failed"):
            raise RunFailed(**failed)
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


@contextlib.contextmanager
def sessions_of(python: str | None) -> Iterator[dict[str, str]]:
    """Run the block's sessions in another interpreter, and give the version of what runs them there.

    Args:
        python: An interpreter with ONNX Runtime; None for this one.
    """
    if python is None:
        yield {}
        return
    with runtime_server(python) as server, running_in(server.open):
        yield {"onnxruntime": server.version}


def _answer(
    question: Mapping[str, Any], arrays: Arrays, sessions: dict[int, Here]
) -> tuple[dict[str, Any], Arrays]:
    match question["ask"]:
        case "version":
            runtime = require("onnxruntime", extra="cpu", purpose="prove an exported model")
            return {"version": runtime.__version__}, {}
        case "open":
            settings = Settings(
                **{name: question[name] for name in ("optimized", "entries", "threads", "provider")}
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
    """Answer questions until the other side ends."""
    channel = answering()
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


if __name__ == "__main__":
    main()
