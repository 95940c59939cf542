"""Child processes: their output is kept whole, and they end when we end."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import fcntl
import io
import itertools
import os
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 1 << 16
_TICK_MS = 100  # how soon an end is noticed while another process holds the output open


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """What a finished child left behind. ``returncode`` is negative when a signal ended it."""

    argv: tuple[str, ...]
    returncode: int
    output: str

    @property
    def how_it_ended(self) -> str:
        """Say it in words: ``exit code 1``, or ``killed by SIGSEGV``."""
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        try:
            return f"killed by {signal.Signals(-self.returncode).name}"
        except ValueError:
            return f"killed by signal {-self.returncode}"


def die_with_parent() -> Callable[[], None]:
    """Return a ``preexec_fn`` that has the kernel kill the child when its parent dies.

    Linux only (``prctl(PR_SET_PDEATHSIG)``); the C library is looked up here, before the fork,
    because little is safe between fork and exec.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def set_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return set_death_signal


def run_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> ChildResult:
    """Run a command to its end, stdout and stderr together, in a session of its own.

    It ends when the command's own process ends: what that wrote is read, and processes that it left
    behind in its session are killed, whether or not they hold its output open. On ctrl-C or any other
    exception the whole session is killed before the exception goes on.

    Args:
        argv: The command; never a shell.
        env: Its whole environment; ours where left out.
        cwd: Its working directory; ours where left out.
        on_line: Is given each line of output, without its end, as it comes.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        env=None if env is None else dict(env),
        cwd=cwd,
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - the function only calls prctl and getppid
    )
    output = process.stdout
    if output is None:
        raise TypeError("a pipe was asked for")
    lines: list[str] = []
    try:
        with output:
            for line in _lines(_chunks(output.fileno(), process.pid)):
                lines.append(line)
                if on_line is not None:
                    on_line(line.rstrip("\n"))
    finally:
        # Before it is waited for: until then its id, and so its session's, cannot be another's.
        _kill_session(process.pid)
        process.wait()
    return ChildResult(argv=tuple(argv), returncode=process.returncode, output="".join(lines))


def _chunks(pipe: int, pid: int) -> Iterator[bytes]:
    """Yield what comes through a pipe until the process has ended; it is left for others to wait for."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not _has_ended(pid):
        if poll.poll(_TICK_MS):
            chunk = os.read(pipe, _CHUNK_BYTES)
            if not chunk:  # nobody can write to it any more, but the process may go on
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                return
            yield chunk
    _kill_session(pid)  # what goes on writing must not be waited for
    left = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
    yield os.read(pipe, int.from_bytes(left, sys.byteorder))


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield lines with their end, which is always a newline; the last may have none."""
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    rest = ""
    for chunk in itertools.chain(chunks, (None,)):
        text = decoder.decode(chunk or b"", final=chunk is None)
        *whole, rest = (rest + text).split("\n")
        yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest


def _kill_session(sid: int) -> None:
    """Kill the processes of a session: its leader's group at once, then other groups' in it."""
    kill_group(sid)
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):  # it has just ended, or is not ours
            fields = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
            if int(fields.split()[3]) == sid:
                os.kill(int(entry.name), signal.SIGKILL)


def kill_group(pgid: int) -> None:
    """Send SIGKILL to a process group; one that is gone already is fine."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
