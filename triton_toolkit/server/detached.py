"""Embedded servers that live on after the command that started them: one at most for a repository.

A server's supervisor holds a lock file and writes a state file, both in the user's state folder. The lock
goes with the process, so a state file without a held lock is a leftover, whatever its process id says.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from triton_toolkit._files import host_errors
from triton_toolkit._progress import Progress
from triton_toolkit.errors import EnvironmentProblem, ServerTimeoutError
from triton_toolkit.server.embedded import EmbeddedServer, ModelReport, ServeOptions
from triton_toolkit.server.process import AlreadyLockedError, remove_leftovers

_POLL_S = 0.05
_END_SLACK_S = 20.0  # the supervisor's own limits end well before


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedServer:
    """A detached server, as its state file tells."""

    repository: str
    grpc_url: str
    http_url: str
    metrics_url: str
    pid: int
    """``tritonserver`` itself."""
    supervisor_pid: int
    """SIGTERM to it ends the server cleanly."""
    exit_timeout_s: int
    log: str
    folder: str
    """Its temporary folder."""
    shm_prefix: str
    """How the names of its regions in ``/dev/shm`` begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    state: Path
    lock: Path
    log: Path


def start_detached(
    options: ServeOptions, *, progress: Progress | None = None
) -> tuple[DetachedServer, list[ModelReport]]:
    """Start a server that lives on; return it when all its models are READY or failed.

    Until then it ends with this process, so an interrupted start leaves nothing.

    Raises:
        EnvironmentProblem: One runs on this repository already; and all that ``EmbeddedServer`` raises.
    """
    files = _files(options.repository)
    running = find_detached(options.repository)
    if running is not None:
        raise _already(running)
    with host_errors(f"write to {files.state.parent}"):
        files.state.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    wanted = replace(options, log=files.log, state_file=files.state, lock_file=files.lock)
    try:
        with EmbeddedServer(wanted, progress=progress) as server:
            detached = DetachedServer(
                repository=str(server.options.repository),
                grpc_url=server.grpc_url,
                http_url=server.http_url,
                metrics_url=server.metrics_url,
                pid=server.pid,
                supervisor_pid=server.supervisor_pid,
                exit_timeout_s=options.exit_timeout_s,
                log=str(files.log),
                folder=str(server.folder),
                shm_prefix=server.shm_prefix,
            )
            models = server.models()
            server.detach(asdict(detached))
    except AlreadyLockedError:
        raise _already(find_detached(options.repository)) from None
    return detached, models


def find_detached(repository: Path) -> DetachedServer | None:
    """Return the server that runs detached on this repository, None without one.

    What a killed supervisor left behind is removed.
    """
    return _read(_files(repository))


def list_detached() -> list[DetachedServer]:
    """Return all detached servers of this user."""
    folder = _state_folder()
    names = sorted(path.stem for path in folder.glob("*.json")) if folder.is_dir() else []
    return [server for name in names if (server := _read(_files_named(name))) is not None]


def stop_detached(repository: Path) -> DetachedServer | None:
    """End the server that runs detached on this repository; None when there is none.

    Raises:
        ServerTimeoutError: It did not end in its exit timeout.
    """
    files = _files(repository)
    server = _read(files)
    if server is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + server.exit_timeout_s + _END_SLACK_S
    while _is_held(files.lock):
        if time.monotonic() > deadline:
            raise ServerTimeoutError(
                f"the embedded server on {server.repository} did not end in time",
                hint=f"its process ids: {server.supervisor_pid} (supervisor), {server.pid} (tritonserver)",
            )
        time.sleep(_POLL_S)
    return server


def _already(running: DetachedServer | None) -> EnvironmentProblem:
    if running is None:
        return EnvironmentProblem(
            "another embedded server is being started on this repository",
            hint="wait for it, then use it, or end it with `tt serve --stop`",
        )
    return EnvironmentProblem(
        f"an embedded server runs on {running.repository} already, at {running.grpc_url}",
        hint=f"`tt serve --stop {running.repository}` ends it",
    )


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "triton-toolkit" / "serve"


def _files(repository: Path) -> _Files:
    path = os.path.realpath(repository)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    return _files_named(f"{os.path.basename(path) or 'root'}-{digest}")


def _files_named(name: str) -> _Files:
    folder = _state_folder()
    return _Files(state=folder / f"{name}.json", lock=folder / f"{name}.lock", log=folder / f"{name}.log")


def _read(files: _Files) -> DetachedServer | None:
    try:
        server = DetachedServer(**json.loads(files.state.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):  # written by another version of tt: the lock alone tells
        if _is_held(files.lock):
            raise EnvironmentProblem(
                f"{files.state} is not readable for this version of tt, and its server still runs",
                hint="end it with the version that started it",
            ) from None
        files.state.unlink(missing_ok=True)
        return None
    if _is_held(files.lock):
        return server
    remove_leftovers(Path(server.folder), server.shm_prefix)  # its supervisor was killed
    files.state.unlink(missing_ok=True)
    return None


def _is_held(lock: Path) -> bool:
    with _opened(lock) as handle:
        if handle is None:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)
