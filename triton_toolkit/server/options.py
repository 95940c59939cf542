"""What an embedded server serves, and how."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What to serve, and how."""

    repository: Path
    """The model repository; read only."""
    host: str = "127.0.0.1"
    """The address to listen on; ``0.0.0.0`` for all."""
    grpc_port: int | None = None
    """None takes a free port; so do the other two."""
    http_port: int | None = None
    metrics_port: int | None = None
    load: Literal["all"] | tuple[str, ...] | None = "all"
    """The models to load at the start; None for none."""
    ready_timeout_s: float = 120.0
    """For the start and all loads together."""
    exit_timeout_s: int = 10
    """How long requests in flight may take when the server is stopped."""
    extra_args: tuple[str, ...] = ()
    """More flags of ``tritonserver``."""
    log: Path | None = None
    """Where to keep the log; None for the server's temporary folder."""
    state_file: Path | None = None
    """Written by ``detach``."""
    lock_file: Path | None = None
    """Held while the server lives, so that there is one at most."""
