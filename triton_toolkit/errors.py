"""The errors that users meet, and the exit code of each.

The class says who has to act. Anything that is not one of these is a bug in ``tt``: it
keeps its traceback and ends with exit code 70.

    TritonToolkitError          1   base, never raised itself
    ├── UsageError              2   an option or argument is wrong        -> change the command
    ├── SpecError               2   tt.yaml is wrong                      -> change the spec
    ├── MissingDependencyError  3   an extra is not installed             -> install it
    ├── EnvironmentProblem      3   the host lacks or forbids something   -> change the host
    ├── ServerError             3   unreachable, too late, control mode   -> look at the server
    │   └── ServerTimeoutError  3   no answer before the deadline
    ├── ExportError             1   PyTorch or the exporter refused       -> change the model
    │   └── ParityError         1   the export differs from the original
    ├── RepositoryError         1   layout, passport or config.pbtxt is invalid
    ├── RefusedError            1   the server answered, and the answer is no
    ├── DeployError             1   deployment refused or rolled back
    └── ProbeError              1   wrong outputs, or requests failed

Exit codes without a class: 0 all is well, 4 inconclusive (a verdict, not an error),
70 a bug, 130 interrupted, 141 whoever read the output has gone.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_NO = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_INCONCLUSIVE = 4
EXIT_BUG = 70
EXIT_INTERRUPTED = 130
EXIT_OUTPUT_UNREAD = 141
"""What a shell gives for a program that SIGPIPE ended: the result, whatever it was, was not read."""


class TritonToolkitError(Exception):
    """Base of all errors that are reported without a traceback.

    Args:
        message: What is wrong and where: file, line, key, value, rule. One sentence.
        hint: What to do next, or empty.
        detail: Longer evidence (a child's output, a server log), printed after the message.
    """

    exit_code: ClassVar[int] = EXIT_NO

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def as_dict(self) -> dict[str, str]:
        """Return the error for ``--json``: ``error`` (class), ``message``, ``hint``, ``detail``."""
        return {
            "error": type(self).__name__,
            "message": self.message,
            "hint": self.hint,
            "detail": self.detail,
        }


class UsageError(TritonToolkitError):
    """An option or argument has a value that cannot be used."""

    exit_code = EXIT_USAGE


class SpecError(TritonToolkitError):
    """``tt.yaml`` is malformed, or says something impossible."""

    exit_code = EXIT_USAGE


class MissingDependencyError(TritonToolkitError):
    """An optional package is not installed, or has no wheel for this platform."""

    exit_code = EXIT_ENVIRONMENT


class EnvironmentProblem(TritonToolkitError):  # noqa: N818 - EnvironmentError is a builtin alias of OSError
    """The host lacks or forbids something: disk space, write access, a port, a GPU."""

    exit_code = EXIT_ENVIRONMENT


class ServerError(TritonToolkitError):
    """The Triton server cannot be reached or controlled."""

    exit_code = EXIT_ENVIRONMENT


class ServerTimeoutError(ServerError):
    """The Triton server did not answer before the deadline."""


class ExportError(TritonToolkitError):
    """The model's source, its forward, or the exporter failed."""


class ParityError(ExportError):
    """The exported model does not compute what the original computes."""


class RepositoryError(TritonToolkitError):
    """A model repository, a passport or a ``config.pbtxt`` is invalid."""


class RefusedError(TritonToolkitError):
    """The server is up and refused: a model that does not load, a request it rejects."""


class DeployError(TritonToolkitError):
    """A deployment was refused before it touched the target, or was rolled back."""


class ProbeError(TritonToolkitError):
    """A probe found wrong outputs, or its requests failed."""
