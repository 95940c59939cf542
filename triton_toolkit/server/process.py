"""Start a server under a supervisor, wait until it listens, and end it.

The supervisor (``supervisor.py``) does what must happen even when this process is killed. Here is the
other side: the folder it is given, its protocol, and the wait until the server itself, and not some
other process, listens on the ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit._files import host_errors
from triton_toolkit._process import ChildResult, kill_group
from triton_toolkit.errors import EnvironmentProblem, ServerError, ServerTimeoutError
from triton_toolkit.server.environment import write_environment
from triton_toolkit.server.locate import EmbeddedInfo
from triton_toolkit.server.ports import listening_ports

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_BACKENDS = Path(__file__).with_name("backends")
_POLL_S = 0.02
_HANDSHAKE_S = 30.0
_END_SLACK_S = 15.0
_SAFE_IN_A_SHELL = re.compile(r"[A-Za-z0-9._/+@%:,=-]+")
_FOLDER_PREFIX = "tt-serve-"
SHM_PREFIX = "tt_"
PARALLEL_LOADS = 8
"""A Python-backend model waits more than a second for its stubs while it loads; the waits overlap."""


class AlreadyLockedError(Exception):
    """Another supervisor holds the lock file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a supervisor is to run its server."""

    argv: tuple[str, ...]
    exit_timeout_s: int
    log: Path
    state_file: Path | None = None
    lock_file: Path | None = None


class ServerFolder:
    """A private temporary folder: the backends as the server wants them, and the log.

    The supervisor removes it at the end; ``discard`` does so when there never was a supervisor.
    """

    def __init__(self, info: EmbeddedInfo) -> None:
        with host_errors("prepare the embedded server's temporary folder"):
            self.path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
            if not _SAFE_IN_A_SHELL.fullmatch(str(self.path)):
                self.discard()
                raise EnvironmentProblem(
                    f"the temporary folder {str(self.path.parent)!r} has a character that is not safe in a "
                    "shell, through which Triton starts its Python backend",
                    hint="set TMPDIR to a folder named with letters, digits and ._-",
                )
            try:
                self._fill(info)
            except BaseException:
                self.discard()
                raise
        self.shm_prefix = f"{SHM_PREFIX}{self.path.name.removeprefix(_FOLDER_PREFIX)}_"

    @property
    def backends(self) -> Path:
        """What ``--backend-directory`` gets."""
        return self.path / "backends"

    @property
    def environment(self) -> Path:
        """The virtual environment of Python models."""
        return self.path / "env"

    def reach(self, repository: Path) -> Path:
        """Return a path of the repository that is safe in a shell.

        Triton's Python backend starts each stub through ``bash -c`` with the model's path unquoted: a space
        breaks the command, and ``$(…)`` would be run. Such a repository is served through a link in here.
        """
        if _SAFE_IN_A_SHELL.fullmatch(str(repository)):
            return repository
        link = self.path / "repository"
        link.symlink_to(repository, target_is_directory=True)
        return link

    @property
    def log(self) -> Path:
        """Where the server's output goes, unless it is to outlive the folder."""
        return self.path / "server.log"

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _fill(self, info: EmbeddedInfo) -> None:
        """Copy the Python backend with this interpreter's stub, and our own backends beside it.

        Copies, because the server refuses a library that a link leads out of the backend's folder.
        """
        if os.statvfs(self.path).f_flag & os.ST_NOEXEC:
            raise EnvironmentProblem(
                f"{self.path.parent} is mounted noexec, and the server's Python backend is run from there",
                hint="set TMPDIR to a folder where programs may be run",
            )
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(info.python_backend, self.backends / "python", ignore=ignore)
        stub = self.backends / "python" / info.stub.name
        shutil.copyfile(info.stub, stub)
        stub.chmod(0o755)
        for backend in sorted(path for path in _BACKENDS.iterdir() if (path / "model.py").is_file()):
            shutil.copytree(backend, self.backends / backend.name, ignore=ignore)
        write_environment(self.environment, info.libpython)


class ServerProcess:
    """A running server and its supervisor.

    Args:
        folder: Belongs to the supervisor from here on.
        launch: What to run.
        variables: The server's environment variables.

    Raises:
        AlreadyLockedError: The lock file is held by another supervisor.
        EnvironmentProblem: The binary cannot be run.
    """

    def __init__(self, folder: ServerFolder, launch: Launch, variables: Mapping[str, str]) -> None:
        self.folder = folder
        self.pid = 0
        self._launch = launch
        self._ended = False
        self._status: int | None = None
        self._log = ""  # what the server had written when it ended
        self._log_fd = -1
        try:
            self._log_fd = _open_log(launch.log)
            _write_launch(folder, launch)
            self._supervisor = subprocess.Popen(
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
            return int(answer["pid"])
        if answer.get("error") == "locked":
            raise AlreadyLockedError
        raise EnvironmentProblem(
            f"the embedded server cannot be started: {answer.get('error', 'its supervisor ended')}",
            detail=self.log_text(),
        )

    def _answer(self) -> dict[str, Any]:
        """Read one line of the supervisor; {} when it has ended without one."""
        pipe = self._pipe("stdout")
        if pipe.closed:
            return {}
        ready, _, _ = select.select([pipe], [], [], _HANDSHAKE_S)
        line = pipe.readline() if ready else b""
        value = json.loads(line) if line else {}
        return value if isinstance(value, dict) else {}

    def _pipe(self, name: str) -> Any:
        return getattr(self._supervisor, name)

    @property
    def supervisor_pid(self) -> int:
        """The supervisor: SIGTERM to it ends the server cleanly."""
        return self._supervisor.pid

    @property
    def alive(self) -> bool:
        """Whether the supervisor, and with it the server, still runs."""
        return not self._ended and self._supervisor.poll() is None

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block for as long as it runs, or ``timeout_s``; return whether it has ended."""
        try:
            self._supervisor.wait(timeout_s)
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
            ServerError: The supervisor has ended.
        """
        try:
            self._pipe("stdin").write(json.dumps({"state": dict(state)}).encode() + b"\n")
            self._pipe("stdin").flush()
        except BrokenPipeError:
            raise self.ended_error("before it could be detached") from None
        if not self._answer().get("detached"):
            raise self.ended_error("before it could be detached")
        self._ended = True
        self._supervisor.returncode = 0  # it goes on: no zombie to reap, and no warning about it
        self._close()

    def end(self) -> None:
        """End the server: SIGTERM, the exit timeout, then SIGKILL. Idempotent."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(BrokenPipeError):
            self._pipe("stdin").close()
        self._supervisor.terminate()  # a forked child of this process may hold the pipe open
        try:
            self._supervisor.wait(self._launch.exit_timeout_s + _END_SLACK_S)
        except subprocess.TimeoutExpired:  # a supervisor that hangs: end its server and itself
            if self.pid:
                kill_group(self.pid)
            self._supervisor.kill()
            self._supervisor.wait()
        finally:
            self._close()
        remove_leftovers(self.folder.path, self.folder.shm_prefix)  # of a supervisor that was killed

    def _close(self) -> None:
        for name in ("stdin", "stdout"):
            with contextlib.suppress(BrokenPipeError):
                self._pipe(name).close()
        self._log = self.log_text()
        os.close(self._log_fd)
        self._log_fd = -1


def remove_leftovers(folder: Path, shm_prefix: str) -> None:
    """Remove what a supervisor removes at its end; for when it was killed."""
    if not (folder.name.startswith(_FOLDER_PREFIX) and shm_prefix.startswith(SHM_PREFIX)):
        return  # not ours, whatever a state file says
    shutil.rmtree(folder, ignore_errors=True)
    for path in Path("/dev/shm").glob(f"{shm_prefix}*"):  # noqa: S108 - where Triton puts its regions
        path.unlink(missing_ok=True)


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
        "state_file": None if launch.state_file is None else str(launch.state_file),
        "lock_file": None if launch.lock_file is None else str(launch.lock_file),
    }
    with host_errors("prepare the embedded server's temporary folder"):
        (folder.path / "launch.json").write_text(json.dumps(value), encoding="utf-8")


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
