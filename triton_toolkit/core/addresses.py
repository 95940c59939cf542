"""Addresses of models on a server, the same for whoever speaks HTTP to it."""

from __future__ import annotations

from triton_toolkit.errors import UsageError

_NOT_IN_A_PATH = frozenset(" ?#/")


def model_path(name: str, version: str = "") -> str:
    """Return the HTTP path of a model, below ``/v2``: its name as it is.

    Triton's HTTP server undoes no escapes: ``a%2Bb`` is the model of that name, not ``a+b`` (seen on 2.51).

    Raises:
        UsageError: The name has a character that a request line cannot hold.
    """
    if not name.isascii() or not name.isprintable() or not _NOT_IN_A_PATH.isdisjoint(name):
        raise UsageError(
            f"model {name!r} cannot be named over HTTP: Triton takes the path as it is, without escapes",
            hint="use the server's gRPC address (grpc://HOST:8001)",
        )
    return f"/models/{name}/versions/{version}" if version else f"/models/{name}"
