"""Which headers can be sent with a call: what gRPC and HTTP both carry, and what is not ours to send."""

from __future__ import annotations

import re
from collections.abc import Mapping

from triton_toolkit.errors import UsageError

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_VALUE = re.compile(r"[ -~]*")
_OURS = frozenset(
    (
        "connection",
        "content-length",
        "content-type",
        "inference-header-content-length",
        "te",
        "transfer-encoding",
    )
)


def check_headers(headers: Mapping[str, str]) -> None:
    """Check that these headers can be sent; values are not repeated, as they may be secrets.

    The rules are those of gRPC metadata (its "PROTOCOL-HTTP2" page), the stricter of the two: names of
    letters, digits, ``_``, ``-`` and ``.``, values of printable ASCII, ``-bin`` names for bytes alone.

    Raises:
        UsageError: A name or value that cannot be sent, or a header that the call itself needs.
    """
    for name, value in headers.items():
        lower = name.lower()
        if not _NAME.fullmatch(name):
            problem, hint = "has a name", "names are letters, digits, '_', '-' and '.'"
        elif not _VALUE.fullmatch(value):
            problem, hint = (
                "has a value",
                "values are printable ASCII on one line; encode others",
            )
        elif lower in _OURS or lower.startswith("grpc-") or lower.endswith("-bin"):
            problem, hint = "is one", "the protocol gives it a meaning of its own; leave it out"
        else:
            continue
        raise UsageError(f"header {name!r} {problem} that cannot be sent", hint=hint)
