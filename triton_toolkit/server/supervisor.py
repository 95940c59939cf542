"""The two processes between a program and its embedded server: they end the server, whatever happens.

Run as ``python -I -S supervisor.py FOLDER`` by ``process.py``; it imports the standard library alone
and nothing of this package, so it starts in milliseconds. The process that is started, the *guardian*,
forks the *supervisor*, and that starts the server; each has a session of its own, so that neither ctrl-C
in a terminal nor a signal to one's group reaches the others. Two, because what a killed process leaves
behind can only be killed by an ancestor that lives: both are subreapers, which inherit orphans.

How each end is seen:

- the program stops the server, exits, crashes, or is killed: standard input reaches its end (or, should
  a forked child of the program still hold the pipe, the guardian's parent changes);
- somebody ends the guardian: it hands SIGTERM, SIGINT and SIGHUP on to the supervisor, which stops the
  server; on SIGKILL the supervisor gets SIGTERM as its parent-death signal;
- the supervisor is killed: so is the server (its parent-death signal is set here, by a process with one
  thread, because the signal goes with the *thread* that started the child), and the guardian inherits
  and kills what is left of its descendants;
- the server ends by itself: its stubs are killed, the rest is cleaned up.

Whatever the end, the server gets SIGTERM and a bounded time, then its process group gets SIGKILL; what
is left of its descendants is killed; shared memory and temporary folders are removed, by the guardian, or
by the supervisor where the guardian was killed.

Protocol: the first line of standard output is a JSON object, ``{"pid": N, "supervisor": N}`` or
``{"error": TEXT}``. A line on standard input, ``{"state": {...}}``, detaches: the state is written to the
state file and the server no longer depends on the program; a line of output answers. ``{"ended": STATUS}``
tells how a server ended that ended by itself. Standard output reaches its end when both processes are gone.
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
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Guardian:
    """Starts the supervisor, outlives it, and clears up after it."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "launch.json"), encoding="utf-8") as file:
            self.launch: dict[str, Any] = json.load(file)
        self.folder = folder
        self.program = os.getppid()

    def run(self) -> int:
        """Do it all, in both processes; return the exit status of the one that returns."""
        if not self._take_lock():
            say({"error": "locked"})
            shutil.rmtree(self.folder, ignore_errors=True)
            return 1
        adopt_orphans()
        me = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # until each process has its own handlers
        supervisor = os.fork()
        if supervisor == 0:
            die_with(me, signal.SIGTERM)
            os.setsid()
            return Supervisor(self.launch, self.folder, self.program).run()
        return self._watch(supervisor)

    def _watch(self, supervisor: int) -> int:
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # the pipe is the supervisor's alone
        for number in _ENDS:
            signal.signal(number, lambda *_: os.kill(supervisor, signal.SIGTERM))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
        # It is not reaped before the handlers are gone, so its number cannot be another's.
        found = os.waitid(os.P_PID, supervisor, os.WEXITED | os.WNOWAIT)
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        kill_descendants(time.monotonic() + _CLEAN_UP_S)
        clean_up(self.launch, self.folder)
        return 0 if found is not None and (found.si_code, found.si_status) == (os.CLD_EXITED, 0) else 1

    def _take_lock(self) -> bool:
        """Hold the lock file of a detached server for as long as one of the two processes lives."""
        path = self.launch["lock_file"]
        deadline = time.monotonic() + _LOCK_S
        while path is not None:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.05)
            else:
                if is_file(path, lock):
                    return True
            os.close(lock)  # or it was removed by the one that held it before
        return True


class Supervisor:
    """Starts one server, waits for a reason to end it, and ends it."""

    def __init__(self, launch: dict[str, Any], folder: str, program: int) -> None:
        self.launch = launch
        self.folder = folder
        self.program = program
        self.guardian = os.getppid()
        self.detached = False
        self.stopping = False
        self.pending = b""
        self.wake, wake_end = os.pipe()
        for end in (self.wake, wake_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        for number in _ENDS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only to wake up
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True

    def run(self) -> int:
        """Do it all; return the exit status."""
        adopt_orphans()
        try:
            try:
                server = self._start()
            except OSError as exc:
                say({"error": f"{exc.strerror}: {exc.filename}"})
                return 1
            say({"pid": server.pid, "supervisor": os.getpid()})
            self._wait_for_an_end(server.pid)
            ended = exited(server.pid)
            if ended is not None:
                say({"ended": ended})
            self._end(server)
            if ended is None and self.launch["lock_file"] is not None:
                remove(self.launch["log"])  # of a detached server: it tells nothing that anybody misses
        finally:
            if os.getppid() != self.guardian:
                clean_up(self.launch, self.folder)
        return 0

    def _start(self) -> subprocess.Popen[bytes]:
        me = os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        with open(os.open(self.launch["log"], flags, 0o600), "ab") as log:
            return subprocess.Popen(
                self.launch["argv"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=lambda: die_with(me, signal.SIGKILL),  # noqa: PLW1509 - this process has one thread
            )

    def _wait_for_an_end(self, pid: int) -> None:
        while not self.stopping and exited(pid) is None:
            watched = [self.wake] if self.detached else [self.wake, sys.stdin.fileno()]
            ready, _, _ = select.select(watched, [], [], None if self.detached else 1.0)
            if self.wake in ready:
                os.read(self.wake, 4096)
            if sys.stdin.fileno() in ready:
                self._listen()
            if not self.detached and parent_of(self.guardian) != self.program:
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


def clean_up(launch: dict[str, Any], folder: str) -> None:
    """Remove shared memory, temporary folders, and the files that say that a detached server runs."""
    for path in glob.glob(f"/dev/shm/{glob.escape(launch['shm_prefix'])}*"):  # noqa: S108 - where Triton puts them
        remove(path)
    for path in (*glob.glob(f"{glob.escape(launch['env_prefix'])}??????"), folder):
        shutil.rmtree(path, ignore_errors=True)
    for path in filter(None, (launch["state_file"], launch["lock_file"])):  # the lock last
        remove(path)


_LIBC = ctypes.CDLL(None, use_errno=True)  # looked up here: little is safe between fork and exec


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int, number: int) -> None:
    """Get a signal when the parent process dies; end at once where it has already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def is_file(path: str, handle: int) -> bool:
    """Return whether ``path`` is still the name of an open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


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
    me = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent_of(int(name)) == me]


def parent_of(pid: int) -> int | None:
    """Return a process's parent; None where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


def write_state(path: str, state: dict[str, object]) -> None:
    """Write the state file whole."""
    temporary = f"{path.removesuffix('.json')}.new"
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
    sys.exit(Guardian(sys.argv[1]).run())
