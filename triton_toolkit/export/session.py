"""Run an ONNX file with ONNX Runtime on the CPU, with named arrays in and out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from triton_toolkit._optional import require
from triton_toolkit.errors import ExportError
from triton_toolkit.export.source import reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_NODE = re.compile(r"running (\S+) node\. Name:'([^']*)' Status Message: (.*)", re.DOTALL)
_SPINNING = "session.intra_op.allow_spinning"
"""Off, threads sleep while they wait; on, they take processors from PyTorch, and from whatever else runs."""

_SOURCE_FILE = re.compile(r"\S*/onnxruntime/core/\S+ ")
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_LOADED = re.compile(r"Load model from .*? failed: ?", re.DOTALL)
_FUNCTION = re.compile(r"(?:\w+ )?onnxruntime::[^()]*\([^()]*\)(?: const)? ")
_CHECK = re.compile(r"^.* was false\. (?=\S)", re.DOTALL)

CPU = "CPUExecutionProvider"
"""What ONNX Runtime calls its own kernels for the processor."""


class RunFailed(Exception):  # noqa: N818 - internal: always turned into an ExportError by the caller
    """ONNX Runtime gave up on a run.

    Attributes:
        node: Name of the node that failed, empty where the runtime names none.
        operator: Its operator type.
        reason: The runtime's own words, without its source locations.
    """

    def __init__(self, node: str, operator: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.operator = operator
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a session is made; see ``Session``."""

    optimized: bool = True
    entries: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    provider: str = CPU


class Runner(Protocol):
    """A loaded file, wherever ONNX Runtime is."""

    def predict(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None) -> Arrays:
        """Run it once."""


class Session:
    """An ONNX file loaded by ONNX Runtime, on the CPU unless another provider is named.

    It runs in this process, or in another one where ``running_in`` says so: a model's own interpreter
    need not have ONNX Runtime.

    Args:
        path: The file.
        optimized: With the runtime's default graph optimizations, as it is served; or node by node.
        entries: Further entries of the session's configuration.
        threads: Threads of one operator; the runtime's own choice where left out.
        content: A changed version of the file, to load instead of it; external data is found beside
            the file all the same.
        provider: The execution provider that must run it, such as ``CUDAExecutionProvider``.
    """

    def __init__(
        self,
        path: Path,
        *,
        optimized: bool = True,
        entries: Mapping[str, str] | None = None,
        threads: int | None = None,
        content: bytes | None = None,
        provider: str = CPU,
    ) -> None:
        """Load the file.

        Raises:
            ExportError: ONNX Runtime refuses it, or would run it on another provider.
            MissingDependencyError: onnxruntime is not installed.
        """
        settings = Settings(
            optimized=optimized, entries=dict(entries or {}), threads=threads, provider=provider
        )
        self._runner = (_elsewhere.get() or Here)(path, settings, content)

    def predict(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None = None) -> Arrays:
        """Run it once; BYTES arrays hold bytes on both sides.

        Args:
            arrays: Inputs by name.
            outputs: The outputs wanted; all of them where left out.

        Raises:
            RunFailed: ONNX Runtime reports an error, as for a shape that a node cannot take.
        """
        return self._runner.predict(arrays, outputs)


Opener = Callable[[Path, Settings, bytes | None], Runner]

_elsewhere: ContextVar[Opener | None] = ContextVar("_elsewhere", default=None)


@contextlib.contextmanager
def running_in(opener: Opener) -> Iterator[None]:
    """Have sessions that are made in the block run where ``opener`` loads them."""
    token = _elsewhere.set(opener)
    try:
        yield
    finally:
        _elsewhere.reset(token)


class Here:
    """A file loaded in this process; see ``Session``."""

    def __init__(self, path: Path, settings: Settings, content: bytes | None) -> None:
        ort = require("onnxruntime", extra="cpu", purpose="prove an exported model")
        options = ort.SessionOptions()
        options.log_severity_level = 4  # what fails is raised; the rest is about graph rewrites
        if not settings.optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if settings.threads is not None:
            options.intra_op_num_threads = settings.threads
        entries = {_SPINNING: "0", **settings.entries}
        if content is not None:
            entries["session.model_external_initializers_file_folder_path"] = str(path.parent.resolve())
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        _check_provider(ort.get_available_providers(), settings.provider, path)
        try:
            self._session = ort.InferenceSession(content or str(path), options, providers=[settings.provider])
        except Exception as exc:
            raise ExportError(f"ONNX Runtime {ort.__version__} refuses {path.name}: {_words(exc)}") from exc
        _check_provider(self._session.get_providers(), settings.provider, path)
        self._strings = {i.name for i in self._session.get_inputs() if i.type == "tensor(string)"}
        self._outputs = [output.name for output in self._session.get_outputs()]

    def predict(self, arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str] | None) -> Arrays:
        """Run it once."""
        feeds = {n: _decode(array) if n in self._strings else array for n, array in arrays.items()}
        try:
            values = self._session.run(outputs, feeds)
        except Exception as exc:
            raise _failure(exc) from exc
        names = self._outputs if outputs is None else outputs
        return {name: _encode(value) for name, value in zip(names, values, strict=True)}


def _check_provider(providers: Sequence[str], wanted: str, path: Path) -> None:
    """Check that the runtime has, or a session took, what was asked for.

    ONNX Runtime itself takes the CPU instead, with no more than a warning.

    Raises:
        ExportError: It did not.
    """
    if wanted not in providers:
        raise ExportError(
            f"{path.name} was to run with {wanted}, and ONNX Runtime here offers {', '.join(providers)} only",
            hint="install the package that has it (onnxruntime-gpu for CUDA and TensorRT) and its libraries",
        )


def _failure(exc: Exception) -> RunFailed:
    if match := _NODE.search(str(exc)):
        return RunFailed(match[2], match[1], _plain(match[3]))
    return RunFailed("", "", _words(exc))


def _words(exc: Exception) -> str:
    """Return why the runtime refuses, in one line."""
    return _plain(_LOADED.sub("", _CODE.sub("", str(exc)))) or reason(exc)


def _plain(text: str) -> str:
    """Leave out what is about the runtime's own source: places, functions, and the checks that failed."""
    return _CHECK.sub("", " ".join(_FUNCTION.sub("", _SOURCE_FILE.sub("", text)).split()))


def _decode(array: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    result = np.empty(array.size, dtype=object)
    result[:] = [item.decode() if isinstance(item, bytes) else item for item in array.ravel()]
    return result.reshape(array.shape)


def _encode(value: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    if value.dtype != object:
        return value
    result = np.empty(value.size, dtype=object)
    result[:] = [item.encode() if isinstance(item, str) else item for item in value.ravel()]
    return result.reshape(value.shape)
