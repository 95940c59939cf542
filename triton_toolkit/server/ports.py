"""TCP ports: free ones, and proof that a port is listened on by a certain process.

A port that answers may belong to somebody else's Triton, so an answer alone proves nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from triton_toolkit.errors import EnvironmentProblem

_LISTEN = "0A"  # the state's number in /proc/net/tcp


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The three ports of a server."""

    grpc: int
    http: int
    metrics: int

    def as_set(self) -> frozenset[int]:
        """Return the three numbers."""
        return frozenset((self.grpc, self.http, self.metrics))


def address_of(host: str) -> str:
    """Return the numeric address of a host, IPv4 where it has both: the server takes names for gRPC alone.

    Raises:
        EnvironmentProblem: There is no such host, or its address holds on one interface only.
    """
    hint = "--host must be an address of this host, such as 127.0.0.1"
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        reason = getattr(exc, "strerror", None) or "not a host's name"
        raise EnvironmentProblem(f"cannot listen on {host!r} (--host): {reason}", hint=hint) from None
    address = str(min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
    if "%" in address:
        raise EnvironmentProblem(
            f"cannot listen on {host!r} (--host): Triton takes no link-local address", hint=hint
        )
    return address


def choose_ports(host: str, *, grpc: int | None, http: int | None, metrics: int | None) -> Ports:
    """Return the wanted ports, and free ones for those that are None.

    A free port can be taken by somebody else before the server binds it; the caller starts again.

    Raises:
        EnvironmentProblem: A wanted port is taken, or may not be used; the message names it.
    """
    wanted = {"grpc": grpc, "http": http, "metrics": metrics}
    chosen: dict[str, int] = {}
    with contextlib.ExitStack() as held:  # all held until all are chosen, so that they differ
        for name, port in wanted.items():
            try:
                holder = held.enter_context(_socket_for(host))
                holder.bind((host, port or 0))
            except OSError as exc:
                raise port_error(host, port or 0, f"--{name}-port", exc) from exc
            chosen[name] = holder.getsockname()[1]
    return Ports(**chosen)


def port_error(host: str, port: int, option: str, exc: OSError) -> EnvironmentProblem:
    """Return (not raise) the error about a port, 0 for a free one, that cannot be listened on."""
    hints = {
        errno.EADDRINUSE: f"leave {option} out to get a free port, or end the process that uses it "
        f"(`ss -ltnp 'sport = :{port}'` shows it)",
        errno.EACCES: "ports below 1024 are for privileged users; choose a higher one",
    }
    return EnvironmentProblem(
        f"cannot listen on {f'port {port}' if port else 'a free port'} of {host} ({option}): {exc.strerror}",
        hint=hints.get(exc.errno or 0, "--host must be an address of this host, such as 127.0.0.1"),
    )


def listening_ports(pid: int, among: Iterable[int]) -> frozenset[int]:
    """Return those of ``among`` that the process ``pid`` itself listens on. Linux; own processes."""
    inodes = _own_sockets(pid)
    wanted = set(among)
    found: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == _LISTEN and port in wanted and fields[9] in inodes:
                found.add(port)
    return frozenset(found)


def _own_sockets(pid: int) -> set[str]:
    inodes = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{name}")
                if target.startswith("socket:["):
                    inodes.add(target[len("socket:[") : -1])
    return inodes


def _socket_for(host: str) -> socket.socket:
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    # As the server does: connections that have ended keep a port for a minute, and nothing listens on it.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return holder
