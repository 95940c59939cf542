"""The process between a program and its embedded server: it ends the server, whatever happens.

Run as ``python -I -S supervisor.py FOLDER`` by ``process.py``; it imports the standard library alone
and nothing of this package, so it starts in milliseconds. It lives in a session of its own, so that
ctrl-C in a terminal does not reach it or the server.

How each end is seen:

- the program stops the server, exits, crashes, or is killed: standard input reaches its end (or, should
  a forked child of the program still hold the pipe, the parent process changes);
- somebody ends the supervisor: SIGTERM and SIGINT stop the server too; on SIGKILL the kernel kills the
  server (its parent-death signal is set here, by a process with one thread, because the signal goes
  with the *thread* that started the child), and the stubs of Python models end by themselves;
- the server ends by itself: its stubs are killed, the rest is cleaned up.

Whatever the end, the server gets SIGTERM and a bounded time, then its process group gets SIGKILL; what
is left of its descendants (as a subreaper, the supervisor inherits them) is killed; shared memory and
the folder are removed.

Protocol: the first line of standard output is a JSON object, ``{"pid": N}`` or ``{"error": TEXT}``. A line
on standard input, ``{"state": {...}}``, detaches: the state is written to the state file and the server no
longer depends on the program; a line of output answers. ``{"ended": STATUS}`` tells how a server ended that
ended by itself.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_GRACE_S = 3.0  # beyond the time that the server itself is given
_CLEAN_UP_S = 5.0
_LOCK_S = 1.0  # a look at the lock holds it for an instant


class Supervisor:
    """Starts one server, waits for a reason to end it, ends it and cleans up."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
            self.launch: dict[str, Any] = json.load(file)
        self.folder = folder
        self.parent = os.getppid()
        self.detached = False
        self.stopping = False
        self.pending = b""
        self.lock: int | None = None
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.wake, wake_end = os.pipe()
        for end in (self.wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake up

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def run(self) -> int:
        """Do it all; return the exit status for the supervisor itself."""
        try:
            if not self._take_lock():
                say({"error": "locked"})
                return 1
            self.libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                server = self._start()
            except OSError as exc:
                say({"error": f"{exc.strerror}: {exc.filename}"})
                return 1
            say({"pid": server.pid})
            self._wait_for_an_end(server.pid)
            ended = exited(server.pid)
            if ended is not None:
                say({"ended": ended})
            self._end(server)
        finally:
            self._clean_up()
        return 0

    def _take_lock(self) -> bool:
        """Hold the lock file of a detached server for as long as this process lives."""
        path = self.launch.get("lock_file")
        if path is None:
            return True
        self.lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.launch["state_file"] = None  # it is the other one's
                    return False
                time.sleep(0.05)
            else:
                return True

    def _start(self) -> subprocess.Popen[bytes]:
        me = os.getpid()

        def die_with_me() -> None:
            self.libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != me:
                os._exit(1)

        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        with open(os.open(self.launch["log"], flags, 0o600), "ab") as log:
            return subprocess.Popen(
                self.launch["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_me,  # noqa: PLW1509 - this process has one thread
            )

    def _wait_for_an_end(self, pid: int) -> None:
        while not self.stopping and exited(pid) is None:
            watched = [self.wake] if self.detached else [self.wake, sys.stdin.fileno()]
            ready, _, _ = select.select(watched, [], [], None if self.detached else 1.0)
            if self.wake in ready:
                os.read(self.wake, 4096)
            if sys.stdin.fileno() in ready:
                self._listen()
            if not self.detached and os.getppid() != self.parent:
                self.stopping = True

    def _listen(self) -> None:
        data = os.read(sys.stdin.fileno(), 65536)
        if not data:
            self.stopping = True
            return
        self.pending += data
        line, newline, rest = self.pending.partition(b"\n")
        if newline:
            self.pending = rest
            write_state(self.launch["state_file"], json.loads(line)["state"])
            self.detached = True
            say({"detached": True})

    def _end(self, server: subprocess.Popen[bytes]) -> None:
        if exited(server.pid) is None:
            os.kill(server.pid, signal.SIGTERM)
        deadline = time.monotonic() + float(self.launch["exit_timeout_s"]) + _KILL_GRACE_S
        while exited(server.pid) is None and time.monotonic() < deadline:
            select.select([self.wake], [], [], 0.1)
            drain(self.wake)
        # The server is not reaped before its group is killed, so its number cannot be another's.
        kill_group(server.pid)
        kill_descendants(time.monotonic() + _CLEAN_UP_S)

    def _clean_up(self) -> None:
        prefix = glob.escape(self.launch["shm_prefix"])
        for path in glob.glob(f"/dev/shm/{prefix}*"):  # noqa: S108 - where Triton puts its regions
            remove(path)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.launch.get("state_file"):
            remove(self.launch["state_file"])
        if self.lock is not None:
            os.close(self.lock)


def say(message: dict[str, object]) -> None:
    """Write one line to the program; it may be gone."""
    try:
        os.write(sys.stdout.fileno(), json.dumps(message).encode() + b"\n")
    except OSError:
        return


def exited(pid: int) -> int | None:
    """Return a child's exit status, a signal as a negative number, without reaping it; None while it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def kill_group(pgid: int) -> None:
    """Send SIGKILL to a process group; an empty one is fine."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def kill_descendants(deadline: float) -> None:
    """Kill and reap until no child is left: orphans of killed children become ours."""
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in children():
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)


def children() -> list[int]:
    """Return the process ids whose parent is this process."""
    found = []
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if parent == me:
                found.append(int(name))
    return found


def write_state(path: str, state: dict[str, object]) -> None:
    """Write the state file whole."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(state, file, indent=2)
        file.write("\n")
    os.replace(temporary, path)


def drain(fd: int) -> None:
    """Empty the wake-up pipe."""
    try:
        while os.read(fd, 4096):
            continue
    except BlockingIOError:
        return


def remove(path: str) -> None:
    """Remove a file that may be gone."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


if __name__ == "__main__":
    sys.exit(Supervisor(sys.argv[1]).run())
