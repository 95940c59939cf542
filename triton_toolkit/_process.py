"""Child processes: their output is kept whole, and they end when we end."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


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
    """Run a command to its end, stdout and stderr together, in its own process group.

    On ctrl-C or any other exception the whole group is killed before the exception goes on.

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
        env=None if env is None else dict(env),
        cwd=cwd,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 - the function only calls prctl and getppid
    )
    lines = []
    try:
        for line in process.stdout or ():
            lines.append(line)
            if on_line is not None:
                on_line(line.rstrip("\n"))
        process.wait()
    except BaseException:
        kill_group(process.pid)
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()
    return ChildResult(argv=tuple(argv), returncode=process.returncode, output="".join(lines))


def kill_group(pgid: int) -> None:
    """Send SIGKILL to a process group; one that is gone already is fine."""
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
