"""What a server's refusal means: one table from status codes to the errors of ``tt``.

gRPC status names are the common vocabulary; HTTP statuses are translated to them first. Triton's
own mapping (server/src/http_server.cc and grpc_utils.cc): INVALID_ARG 400, NOT_FOUND 404,
INTERNAL 500, UNSUPPORTED 501 (UNIMPLEMENTED), UNAVAILABLE 503.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from triton_toolkit.errors import RefusedError, ServerError, ServerTimeoutError, TritonToolkitError

ErrorClass = type[ServerError] | type[RefusedError]

STATUS_ERRORS: dict[str, ErrorClass] = {
    "CANCELLED": ServerError,
    "UNKNOWN": ServerError,
    "INVALID_ARGUMENT": RefusedError,
    "DEADLINE_EXCEEDED": ServerTimeoutError,
    "NOT_FOUND": RefusedError,
    "ALREADY_EXISTS": RefusedError,
    "PERMISSION_DENIED": ServerError,
    "RESOURCE_EXHAUSTED": RefusedError,
    "FAILED_PRECONDITION": RefusedError,
    "ABORTED": ServerError,
    "OUT_OF_RANGE": RefusedError,
    "UNIMPLEMENTED": ServerError,
    # Triton answers INTERNAL for a model that does not load and for a failed execution.
    "INTERNAL": RefusedError,
    # A live server's UNAVAILABLE is an answer (queue full, model not ready); see ``Failure.answered``.
    "UNAVAILABLE": RefusedError,
    "DATA_LOSS": ServerError,
    "UNAUTHENTICATED": ServerError,
}
"""Every ``grpc.StatusCode`` except OK; a test holds it complete."""

HTTP_STATUS: dict[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ALREADY_EXISTS",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


class _TextRule(NamedTuple):
    needle: str
    error: ErrorClass
    hint: str
    message: str = ""


_TEXT_RULES = (
    _TextRule(
        "explicit model load / unload is not allowed",
        ServerError,
        "start the server with --model-control-mode=explicit",
        "the server is not in explicit model control mode, so models cannot be loaded or unloaded",
    ),
    _TextRule("is restricted, expecting header", ServerError, "give that header in the target's `auth`"),
    _TextRule(
        "failed to poll from model repository",
        RefusedError,
        "the reason is in the server's log: mostly a config.pbtxt that does not parse, or no such folder in "
        "the repository that the server reads",
    ),
    _TextRule(
        "decoupled", RefusedError, "a decoupled model answers only on a stream, which tt does not open"
    ),
)

_STATUS_HINTS = {
    "UNAUTHENTICATED": "give the credentials in the target's `auth`",
    "PERMISSION_DENIED": "give the credentials in the target's `auth`",
    "UNIMPLEMENTED": "is this a Triton server, and the right one of its ports?",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as an error message names it."""

    url: str
    doing: str
    timeout_s: float


class TransportFailure(Exception):  # noqa: N818 - carried from a transport to ``to_error``, never seen by users
    """A failed call, before it becomes one of our errors.

    Attributes:
        status: Name of a ``grpc.StatusCode``.
        text: The server's words, or the transport's.
        answered: Whether a Triton server said this; False for refused connections and broken ones,
            None where the transport cannot tell.
    """

    def __init__(self, status: str, text: str, *, answered: bool | None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.answered = answered


def http_status(code: int) -> str:
    """Return the gRPC status name for an HTTP status that is not 200."""
    if code in HTTP_STATUS:
        return HTTP_STATUS[code]
    return "FAILED_PRECONDITION" if 400 <= code < 500 else "UNKNOWN"


def to_error(failure: TransportFailure, call: Call) -> TritonToolkitError:
    """Return (not raise) the error for a failed call, with the URL and the server's own words.

    Where those have several lines (a traceback), the message has the first and ``detail`` all.
    """
    if failure.status == "DEADLINE_EXCEEDED":
        return ServerTimeoutError(
            f"{call.url}: no answer within {call.timeout_s:g} s to: {call.doing}",
            hint="the server is overloaded or hangs; look at it, or give it longer",
        )
    text = failure.text.strip().rstrip(";").strip()
    first = text.partition("\n")[0].strip()
    if failure.answered is False:
        return ServerError(
            f"{call.url}: cannot be reached to {call.doing}: {first}",
            hint="is the server running, and on this port, for this scheme? `tt serve` starts one here",
        )
    rule = next((rule for rule in _TEXT_RULES if rule.needle in text), None)
    kind, hint = STATUS_ERRORS[failure.status], _STATUS_HINTS.get(failure.status, "")
    message = f"refused to {call.doing}: {first}"
    if rule is not None:
        kind, hint, message = rule.error, rule.hint, rule.message or message
    return kind(f"{call.url}: {message}", hint=hint, detail=text if text != first else "")
