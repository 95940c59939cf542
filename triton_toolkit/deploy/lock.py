"""One deployment at a time on a target: a lock file that names who holds it.

The exclusion is the kernel's (``flock``), so it ends with the process that holds it, however that
ends. The file's text is for people, and for the one case where ``flock`` cannot be trusted: a
store that another host mounts as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from triton_toolkit._files import host_errors
from triton_toolkit.errors import DeployError

LOCK_NAME = ".tt-lock"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOwner:
    """Who deploys: user, host, process, and since when (ISO 8601, UTC)."""

    user: str
    host: str
    pid: int
    since: str

    @classmethod
    def current(cls) -> LockOwner:
        """Return this process as an owner, from now."""
        return cls(user=user_name(), host=socket.gethostname(), pid=os.getpid(), since=utc_now())

    def __str__(self) -> str:
        return f"{self.user}@{self.host}, process {self.pid}, since {self.since}"


def user_name() -> str:
    """Return the user's login name, or the number where the host has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def hold_lock(folder: Path, *, wait_s: float) -> Iterator[LockOwner | None]:
    """Hold the lock of a store.

    Args:
        folder: The store's root; the lock is a file in it, which Triton does not look at.
        wait_s: How long to wait for another deployment to end, in seconds.

    Yields:
        The owner that was found dead and whose lock was taken over; None in the usual case.

    Raises:
        DeployError: Another deployment holds it; says whose.
        EnvironmentProblem: The store cannot be written.
    """
    path = folder / LOCK_NAME
    with host_errors(f"lock {folder}"):
        handle = _acquire(path, time.monotonic() + wait_s)
    former = _read(handle)
    try:
        if _is_elsewhere(former):
            raise _held(path, former)
        try:
            with host_errors(f"lock {folder}"):
                os.ftruncate(handle, 0)
                os.pwrite(handle, json.dumps(asdict(LockOwner.current())).encode() + b"\n", 0)
            yield former
        finally:
            with contextlib.suppress(OSError):
                path.unlink()
    finally:
        os.close(handle)


def lock_owner(folder: Path) -> LockOwner | None:
    """Return who holds a store's lock now; None when nobody does. Changes nothing."""
    try:
        handle = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        owner = _read(handle)
        if _is_elsewhere(owner) or not _try_lock(handle, fcntl.LOCK_SH):
            return owner
        return None
    finally:
        os.close(handle)


def _acquire(path: Path, deadline: float) -> int:
    """Open and lock the file; again when its former holder removed it meanwhile."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _try_lock(handle, fcntl.LOCK_EX):
                if _is_same_file(path, handle):
                    return handle
            elif time.monotonic() >= deadline:
                raise _held(path, _read(handle))
            else:
                time.sleep(_POLL_S)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_elsewhere(owner: LockOwner | None) -> bool:
    return owner is not None and owner.host != socket.gethostname()


def _is_same_file(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _read(handle: int) -> LockOwner | None:
    try:
        return LockOwner(**json.loads(os.pread(handle, 4096, 0)))
    except (ValueError, TypeError):
        return None  # empty, or cut short by a full disk


def _held(path: Path, owner: LockOwner | None) -> DeployError:
    hint = "wait for it to end"
    if owner is not None and _is_elsewhere(owner):
        hint += f"; if that process on {owner.host} is gone, remove {path}"
    who = str(owner) if owner else "another process"
    return DeployError(f"another deployment to {path.parent} is under way: {who}", hint=hint)
