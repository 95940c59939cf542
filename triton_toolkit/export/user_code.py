"""The functions of a project, called from a process that need not be able to import them.

Where a model has no interpreter of its own they are imported here. Otherwise a child process of that
interpreter imports and calls them: numbers and named arrays come back over pipes, and a ``predict`` that a
metric is given runs on this side.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export.channel import Arrays, Channel, ChannelClosed
from triton_toolkit.export.interpreters import clean_environment
from triton_toolkit.export.partner import Partner, answering
from triton_toolkit.export.samples import named_arrays
from triton_toolkit.export.source import load_callable, reason, user_code
from triton_toolkit.export.trace_files import FileTrace, ProjectFiles
from triton_toolkit.export.trust import loading

Predict = Callable[[Arrays], Arrays]

_KINDS = [
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
]


class UserCode(Protocol):
    """Calls functions of a project, wherever they run."""

    def load(self, target: str, names: Collection[str] = ()) -> Callable[..., Any]:
        """Import ``module:callable``.

        What is returned takes sizes by name (as a sample does), or one function from named arrays to
        named arrays (as a metric does). It gives a number, named arrays, or an iterator of named arrays.

        Args:
            target: The function.
            names: The names of the model's inputs, by which nested arrays are told from lists.

        Raises:
            ExportError: It does not import; likewise when it is called and raises.
        """

    def dependencies(self) -> list[str]:
        """Return the files of the project that were read so far."""

    def missing(self) -> list[str]:
        """Return those that were asked for and are not there, as ``trace_files.missing_name`` gives them."""


@contextlib.contextmanager
def functions_of(files: ProjectFiles, *, python: str | None, trust: bool) -> Iterator[UserCode]:
    """Give the project's functions as long as the block runs.

    Args:
        files: The project's files.
        python: The model's own interpreter; None for this one.
        trust: Whether files that the functions load may run code of their own.

    Raises:
        ExportError: The child process ended.
    """
    if python is None:
        trace = FileTrace(files)
        with trace.active(), loading(trust=trust):
            yield _Here(files, trace)
        return
    child = _Elsewhere(python, files, trust=trust)
    try:
        child.start()
        yield child
    finally:
        child.close()


class _Here:
    def __init__(self, files: ProjectFiles, trace: FileTrace) -> None:
        self._files = files
        self._trace = trace

    def load(self, target: str, names: Collection[str] = ()) -> Callable[..., Any]:
        del names  # whoever gets the arrays knows them
        return load_callable(self._files, target)

    def dependencies(self) -> list[str]:
        return self._trace.dependencies()

    def missing(self) -> list[str]:
        return self._trace.missing()


class _Elsewhere:
    """The parent's side: asks, and answers what ``predict`` is asked meanwhile."""

    def __init__(self, python: str, files: ProjectFiles, *, trust: bool) -> None:
        what = "the process of the model's own code"
        self._partner = Partner(python, __name__, what, cwd=files.root, env=clean_environment())
        self._start = {"root": str(files.root), "ignored": files.ignored, "trust": trust}

    def start(self) -> None:
        self._partner.send(self._start)

    def load(self, target: str, names: Collection[str] = ()) -> Callable[..., Any]:
        answer, _ = self._ask({"ask": "load", "target": target, "names": list(names)})

        def call(predict: Predict | None = None, **sizes: int) -> Any:
            question = {"ask": "call", "target": target, "sizes": sizes, "metric": predict is not None}
            given, arrays = self._ask(question, predict)
            match given["kind"]:
                case "number":
                    return given["number"]
                case "arrays":
                    return arrays
            return self._batches(given["iterator"])

        parameters = [
            inspect.Parameter(
                name, inspect._ParameterKind(kind), default=None if has_default else inspect.Parameter.empty
            )
            for name, kind, has_default in answer["parameters"]
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    def dependencies(self) -> list[str]:
        return list(self._ask({"ask": "dependencies"})[0]["files"])

    def missing(self) -> list[str]:
        return list(self._ask({"ask": "missing"})[0]["files"])

    def close(self) -> None:
        self._partner.close()

    def _batches(self, iterator: int) -> Iterator[Arrays]:
        while True:
            answer, arrays = self._ask({"ask": "next", "iterator": iterator})
            if answer["end"]:
                return
            yield arrays

    def _ask(
        self, question: Mapping[str, Any], predict: Predict | None = None
    ) -> tuple[dict[str, Any], Arrays]:
        failed: Exception | None = None
        self._partner.send(question)
        while True:
            try:
                answer, arrays = self._partner.receive()
            except ExportError:
                if failed is not None:
                    raise failed from None
                raise
            if predict is None or "predict" not in answer:
                return answer, arrays
            try:
                outputs = predict(arrays)
            except Exception as exc:  # noqa: BLE001 - raised again, when the user's function has ended
                failed = exc
                self._partner.send({"failed": reason(exc)})
            else:
                self._partner.send({}, outputs)


class _PredictFailed(Exception):  # noqa: N818 - internal: the parent raises what it stands for
    """``predict`` failed on the other side."""


class _Server:
    """The child's side: imports and calls."""

    def __init__(self, channel: Channel, files: ProjectFiles, trace: FileTrace) -> None:
        self._channel = channel
        self._files = files
        self._trace = trace
        self._functions: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        self._iterators: list[tuple[str, Iterator[Any]]] = []

    def answer(self, question: Mapping[str, Any]) -> tuple[dict[str, Any], Arrays]:
        """Answer one question."""
        match question["ask"]:
            case "load":
                return self._load(question["target"], question["names"]), {}
            case "call":
                return self._call(question["target"], question["sizes"], metric=question["metric"])
            case "next":
                return self._next(question["iterator"])
            case "dependencies":
                return {"files": self._trace.dependencies()}, {}
            case "missing":
                return {"files": self._trace.missing()}, {}
        raise ValueError(f"no such question: {question['ask']}")

    def _load(self, target: str, names: list[str]) -> dict[str, Any]:
        function = load_callable(self._files, target)
        self._functions[target] = function, names
        parameters = inspect.signature(function).parameters.values()
        return {"parameters": [[p.name, _KINDS.index(p.kind), p.default is not p.empty] for p in parameters]}

    def _call(self, target: str, sizes: dict[str, int], *, metric: bool) -> tuple[dict[str, Any], Arrays]:
        function, names = self._functions[target]
        with user_code(f"{target} raised", self._files):
            given = function(self._predict(names)) if metric else function(**sizes)
        if isinstance(given, Mapping):
            return {"kind": "arrays"}, named_arrays(target, given, names)
        try:
            return {"kind": "number", "number": float(given)}, {}
        except (TypeError, ValueError):
            if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
                message = (
                    f"{target} gives an object of type {type(given).__name__}, neither a number nor arrays"
                )
                raise ExportError(message) from None
        self._iterators.append((target, iter(given)))
        return {"kind": "iterator", "iterator": len(self._iterators) - 1}, {}

    def _next(self, iterator: int) -> tuple[dict[str, Any], Arrays]:
        target, batches = self._iterators[iterator]
        with user_code(f"{target} raised", self._files):
            batch = next(batches, None)
        if batch is None:
            return {"end": True}, {}
        return {"end": False}, named_arrays(target, batch, self._functions[target][1])

    def _predict(self, names: list[str]) -> Predict:
        def predict(arrays: Arrays) -> Arrays:
            self._channel.send(
                {"predict": True}, named_arrays("what the metric gives to predict", arrays, names)
            )
            answer, outputs = self._channel.receive()
            if "failed" in answer:
                raise _PredictFailed(answer["failed"])
            return outputs

        return predict


def main() -> None:
    """Answer questions until the other side ends."""
    channel = answering()
    with contextlib.suppress(ChannelClosed):
        start, _ = channel.receive()
        files = ProjectFiles(Path(start["root"]), start["ignored"])
        trace = FileTrace(files)
        with trace.active(), loading(trust=start["trust"]):
            server = _Server(channel, files, trace)
            while True:
                question, _ = channel.receive()
                try:
                    answer, arrays = server.answer(question)
                except TritonToolkitError as exc:
                    answer, arrays = {"error": exc.as_dict()}, {}
                channel.send(answer, arrays)


if __name__ == "__main__":
    main()
