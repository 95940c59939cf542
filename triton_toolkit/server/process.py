"""Start a server under its guardian, wait until it listens, and end it.

The guardian (``supervisor.py``) does what must happen even when this process is killed. Here is the
other side: its protocol, and the wait until the server itself, and not some other process, listens on
the ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit._files import host_errors
from triton_toolkit._process import ChildResult, kill_group
from triton_toolkit.errors import EnvironmentProblem, ServerError, ServerTimeoutError
from triton_toolkit.server.folder import LAUNCH_NAME, ServerFolder, remove_leftovers
from triton_toolkit.server.locate import EmbeddedInfo
from triton_toolkit.server.ports import listening_ports

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_POLL_S = 0.02
_HANDSHAKE_S = 30.0
_END_SLACK_S = 15.0
PARALLEL_LOADS = 8
"""A Python-backend model waits more than a second for its stubs while it loads; the waits overlap."""


class AlreadyLockedError(Exception):
    """Another server's guardian holds the lock file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is to be run."""

    argv: tuple[str, ...]
    exit_timeout_s: int
    log: Path
    state_file: Path | None = None
    lock_file: Path | None = None


class ServerProcess:
    """A running server and its guardian.

    Args:
        folder: Belongs to the guardian from here on.
        launch: What to run.
        variables: The server's environment variables.

    Raises:
        AlreadyLockedError: The lock file is held by another server's guardian.
        EnvironmentProblem: The binary cannot be run.
    """

    def __init__(self, folder: ServerFolder, launch: Launch, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.pid = 0
        self._supervisor = 0
        self._launch = launch
        self._ended = False
        self._status: int | None = None
        self._log = ""  # what the server had written when it ended
        self._log_fd = -1
        try:
            self._log_fd = _open_log(launch.log)
            _write_launch(folder, launch)
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_SUPERVISOR), str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log_fd,
                env=dict(variables),
                start_new_session=True,
            )
        except BaseException:
            folder.discard()
            if self._log_fd >= 0:
                os.close(self._log_fd)
            raise
        try:
            self.pid = self._handshake()
        except BaseException:
            self.end()
            raise

    def _handshake(self) -> int:
        answer = self._answer()
        if "pid" in answer:
            self._supervisor = int(answer["supervisor"])
            return int(answer["pid"])
        if answer.get("error") == "locked":
            raise AlreadyLockedError
        raise EnvironmentProblem(
            f"the embedded server cannot be started: {answer.get('error', 'its guardian ended')}",
            detail=self.log_text(),
        )

    def _answer(self) -> dict[str, Any]:
        """Read one line of the supervisor; {} when all have ended without one."""
        pipe = self._pipe("stdout")
        if pipe.closed:
            return {}
        ready, _, _ = select.select([pipe], [], [], _HANDSHAKE_S)
        line = pipe.readline() if ready else b""
        value = json.loads(line) if line else {}
        return value if isinstance(value, dict) else {}

    def _pipe(self, name: str) -> Any:
        return getattr(self._guardian, name)

    @property
    def supervisor_pid(self) -> int:
        """The outermost process, the guardian: SIGTERM to it ends the server cleanly."""
        return self._guardian.pid

    @property
    def alive(self) -> bool:
        """Whether the guardian, and with it the server, still runs."""
        return not self._ended and self._guardian.poll() is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block for as long as it runs, or ``timeout_s``; return whether it has ended."""
        try:
            self._guardian.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def log_text(self) -> str:
        """Return all that the server has written; works after its end as well."""
        if self._log_fd < 0:
            return self._log
        size = os.fstat(self._log_fd).st_size
        return os.pread(self._log_fd, size, 0).decode("utf-8", errors="replace")

    def wait_until_listening(self, ports: frozenset[int], deadline: float) -> None:
        """Return when the server itself listens on all of ``ports``.

        Args:
            ports: TCP ports.
            deadline: A time of ``time.monotonic()``.

        Raises:
            ServerError: The server ended.
            ServerTimeoutError: It did not listen in time.
        """
        while listening_ports(self.pid, ports) != ports:
            if not self.alive:
                raise self.ended_error("while it started")
            if time.monotonic() > deadline:
                raise ServerTimeoutError(
                    "the embedded server did not listen in time", detail=tail(self.log_text())
                )
            time.sleep(_POLL_S)

    def ended_error(self, when: str) -> ServerError:
        """Return (not raise) the error about a server that ended by itself."""
        self._status = self._answer().get("ended", self._status)
        how = ""
        if self._status is not None:
            how = f" ({ChildResult(argv=(), returncode=self._status, output='').how_it_ended})"
        kept = self._launch.log != self.folder.log
        return ServerError(
            f"the embedded server ended by itself{how} {when}",
            hint=f"its whole log: {self._launch.log}" if kept else "",
            detail=tail(self.log_text()),
        )

    def detach(self, state: Mapping[str, object]) -> None:
        """Let the server live on without this process; the supervisor writes the state file.

        Raises:
            ServerError: It has ended.
        """
        try:
            self._pipe("stdin").write(json.dumps({"state": dict(state)}).encode() + b"\n")
            self._pipe("stdin").flush()
        except BrokenPipeError:
            raise self.ended_error("before it could be detached") from None
        if not self._answer().get("detached"):
            raise self.ended_error("before it could be detached")
        self._ended = True
        self._guardian.returncode = 0  # it goes on: no zombie to reap, and no warning about it
        self._close()

    def end(self) -> None:
        """End the server: SIGTERM, the exit timeout, then SIGKILL. Idempotent."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(BrokenPipeError):
            self._pipe("stdin").close()
        self._guardian.terminate()  # a forked child of this process may hold the pipe open
        try:
            self._guardian.wait(self._launch.exit_timeout_s + _END_SLACK_S)
            if self._guardian.returncode < 0:
                self._wait_for_the_supervisor()
        except subprocess.TimeoutExpired:
            self._kill()
        finally:
            self._close()
        remove_leftovers(self.folder.path)  # of a guardian that was killed

    def _wait_for_the_supervisor(self) -> None:
        """Wait until it is gone too: it outlives a guardian that was killed, ends the server, and clears up.

        Standard output is at its end when nobody is left who could write to it.
        """
        timeout_s = self._launch.exit_timeout_s + _END_SLACK_S
        deadline = time.monotonic() + timeout_s
        output = self._pipe("stdout")
        while time.monotonic() < deadline:
            ready, _, _ = select.select([output], [], [], max(deadline - time.monotonic(), 0))
            if ready and not os.read(output.fileno(), 4096):
                return
        raise subprocess.TimeoutExpired(self._launch.argv[0], timeout_s)

    def _kill(self) -> None:
        """End processes that hang: the server, then its supervisor, so that the guardian clears up."""
        for group in filter(None, (self.pid, self._supervisor)):
            kill_group(group)
        try:
            self._guardian.wait(_END_SLACK_S)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()

    def _close(self) -> None:
        for name in ("stdin", "stdout"):
            with contextlib.suppress(BrokenPipeError):
                self._pipe(name).close()
        self._log = self.log_text()
        os.close(self._log_fd)
        self._log_fd = -1


def tail(log: str, lines: int = 15) -> str:
    """Return the last lines of a log, without tables, the usage text, and the lines about missing GPUs."""
    noise = ("+-", "| ", "Error: Failed to initialize NVML")
    said = log.partition("\nUsage: ")[0]
    kept = [line for line in said.splitlines() if line.strip() and not line.startswith(noise)]
    return "\n".join(kept[-lines:])


def _open_log(path: Path) -> int:
    with host_errors(f"write {path}"):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _write_launch(folder: ServerFolder, launch: Launch) -> None:
    value: dict[str, object] = {
        "argv": list(launch.argv),
        "exit_timeout_s": launch.exit_timeout_s,
        "log": str(launch.log),
        "shm_prefix": folder.shm_prefix,
        "env_prefix": folder.env_prefix,
        "state_file": None if launch.state_file is None else str(launch.state_file),
        "lock_file": None if launch.lock_file is None else str(launch.lock_file),
    }
    with host_errors("prepare the embedded server's temporary folder"):
        (folder.path / LAUNCH_NAME).write_text(json.dumps(value), encoding="utf-8")


def command_line(folder: ServerFolder, info: EmbeddedInfo, flags: Sequence[str]) -> tuple[str, ...]:
    """Return the server's command line: what every embedded server needs, then ``flags``."""
    return (
        str(info.server),
        f"--backend-directory={folder.backends}",
        f"--cache-directory={info.caches}",
        f"--backend-config=python,shm-region-prefix-name={folder.shm_prefix}",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        f"--model-load-thread-count={PARALLEL_LOADS}",
        *flags,
    )
