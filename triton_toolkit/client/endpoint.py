"""Addresses: of a server (``grpc://HOST:PORT``, ``grpcs://``, ``http://``, ``https://``)."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from triton_toolkit.errors import UsageError

_EXAMPLE = "write grpc://HOST:8001 or http://HOST:8000 (grpcs:// and https:// with TLS)"
_SCHEMES = {"grpc": False, "grpcs": True, "http": False, "https": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A parsed server URL. ``base_path`` (HTTP only) is empty or begins with ``/``."""

    url: str
    scheme: str
    host: str
    port: int
    base_path: str = ""

    @property
    def is_grpc(self) -> bool:
        """Whether it speaks gRPC rather than HTTP."""
        return self.scheme.startswith("grpc")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted and the server's certificate checked."""
        return _SCHEMES[self.scheme]

    @property
    def address(self) -> str:
        """``HOST:PORT``, an IPv6 host in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(url: str) -> Endpoint:
    """Parse a server URL.

    Raises:
        UsageError: Unknown scheme, no host or port, a path after a gRPC address, or credentials in
            the URL (they would end up in logs).
    """
    problem = ""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise UsageError(f"server URL {url!r}: {exc}", hint=_EXAMPLE) from exc
    path = parts.path.rstrip("/")
    if parts.scheme not in _SCHEMES:
        problem = f"has no scheme of {', '.join(_SCHEMES)}"
    elif parts.username is not None or parts.password is not None:
        raise UsageError(
            f"server URL for {host!r} holds credentials",
            hint="leave them out and give headers through the target's `auth`",
        )
    elif not host:
        problem = "has no host"
    elif not port:
        problem = "has no port"
    elif parts.query or parts.fragment or (path and parts.scheme.startswith("grpc")):
        problem = "has something after the port"
    if problem or not host or not port:
        raise UsageError(f"server URL {url!r} {problem}", hint=_EXAMPLE)
    return Endpoint(url=url, scheme=parts.scheme, host=host, port=port, base_path=path)
