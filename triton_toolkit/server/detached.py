"""Embedded servers that live on after the command that started them: one at most for a repository.

A server's guardian holds a lock file, and a state file tells about the server, both in the user's state
folder. The lock goes with the process, so what lies beside a lock that nobody holds is a leftover. What a
state file says is not taken on trust: anybody may have changed it, and processes and folders end on its word.
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
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from triton_toolkit._files import host_errors
from triton_toolkit._progress import Progress
from triton_toolkit.errors import EnvironmentProblem, ServerTimeoutError
from triton_toolkit.server.embedded import EmbeddedServer, ModelReport, ServeOptions
from triton_toolkit.server.folder import belongs_to, remove_leftovers
from triton_toolkit.server.process import AlreadyLockedError

_POLL_S = 0.05
_END_SLACK_S = 20.0  # the supervisor's own limits end well before
_NAME_BYTES = 100  # of a repository's name in the names of its files; a file system takes 255


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
    """The process that holds the lock; SIGTERM to it ends the server cleanly."""
    exit_timeout_s: int
    log: str
    folder: str
    """Its temporary folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFiles:
    """Where the facts of a repository's detached server are."""

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
    files = state_files(options.repository)
    running = find_detached(options.repository)
    if running is not None:
        raise _already(running)
    for name in _names():
        _clear(_files_named(name), log=True)
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
            )
            models = server.models()
            server.detach(asdict(detached))
    except AlreadyLockedError:
        raise _already(find_detached(options.repository)) from None
    return detached, models


def find_detached(repository: Path) -> DetachedServer | None:
    """Return the server that runs detached on this repository, None without one.

    What a dead server left behind is removed, but for its log.

    Raises:
        EnvironmentProblem: One runs, and its state file does not say what it should.
    """
    return _read(state_files(repository))


def list_detached() -> list[DetachedServer]:
    """Return all detached servers of this user."""
    return [server for name in _names() if (server := _read(_files_named(name))) is not None]


def stop_detached(repository: Path) -> DetachedServer | None:
    """End the server that runs detached on this repository; None when there is none.

    Raises:
        ServerTimeoutError: It did not end in its exit timeout.
    """
    files = state_files(repository)
    server = _read(files)
    if server is None:
        return None
    if _has_open(server.supervisor_pid, files.lock):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.supervisor_pid, signal.SIGTERM)
    elif _is_held(files.lock):
        raise _unreadable(files, f"process {server.supervisor_pid} is not the one that runs the server")
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


def state_files(repository: Path) -> StateFiles:
    """Return the files of the detached server on a repository, whether there is one or not."""
    path = os.fsencode(os.path.realpath(repository))
    digest = hashlib.sha256(path).hexdigest()[:12]
    name = os.path.basename(path)[:_NAME_BYTES].decode("utf-8", "ignore")
    return _files_named(f"{name or 'root'}-{digest}")


def _files_named(name: str) -> StateFiles:
    folder = _state_folder()
    return StateFiles(state=folder / f"{name}.json", lock=folder / f"{name}.lock", log=folder / f"{name}.log")


def _names() -> list[str]:
    """Return the names of all servers that have, or left, a file here."""
    folder = _state_folder()
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({path.stem for path in found if path.suffix in (".json", ".lock", ".log")})


def _read(files: StateFiles) -> DetachedServer | None:
    if not _is_held(files.lock):
        _clear(files)
        return None
    try:
        value = json.loads(files.state.read_text(encoding="utf-8"))
    except FileNotFoundError:  # it is being started
        return None
    except ValueError:
        value = None
    server = _server(value)
    if server is None:
        raise _unreadable(files, "it was changed, or written by another version of tt")
    return server


def _server(value: Any) -> DetachedServer | None:
    """Return what a state file's value tells; None where it is no such value."""
    types = {"str": str, "int": int}
    wanted = {field.name: types[str(field.type)] for field in fields(DetachedServer)}
    if not isinstance(value, dict) or any(type(value.get(name)) is not kind for name, kind in wanted.items()):
        return None
    return DetachedServer(**{name: value[name] for name in wanted})


def _unreadable(files: StateFiles, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{files.state} cannot be trusted: {why}; a server still runs",
        hint=f"end the process that has {files.lock} open (`fuser {files.lock}` shows it)",
    )


def _clear(files: StateFiles, *, log: bool = False) -> None:
    """Remove what a dead server left. One that runs, or is being started, is left alone."""
    paths = (files.state, *([files.log] if log else []), files.lock)  # the lock last
    if not any(path.exists() for path in paths):
        return
    with _taken(files.lock) as taken:  # so that nobody starts one meanwhile
        if not taken:
            return
        with contextlib.suppress(OSError, ValueError):
            server = _server(json.loads(files.state.read_text(encoding="utf-8")))
            if server is not None and belongs_to(Path(server.folder), files.lock):
                remove_leftovers(Path(server.folder))
        for path in paths:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _taken(lock: Path) -> Iterator[bool]:
    """Hold a lock file; give False where a server does, or where the file was just removed by its holder."""
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    taken = False
    try:
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = os.path.samestat(lock.stat(), os.fstat(handle))
        yield taken
    finally:
        os.close(handle)


def _has_open(pid: int, lock: Path) -> bool:
    """Say whether a process of ours has the lock file open, as the server's guardian has."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), lock.stat()):
                    return True
    return False


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
