"""What ctrl-C and SIGTERM do to ``tt``: leave at once while it starts or ends, raise while a command runs.

``__main__`` calls this before anything else is imported, so it imports next to nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from triton_toolkit.errors import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # a cancelled CI job sends SIGTERM, and must roll back too


def leave_on_interrupt() -> None:
    """From now on, end the process at once and quietly: there is nothing to undo yet.

    A signal that is ignored, as in the background of a shell script, stays so.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)


@contextmanager
def raise_on_interrupt() -> Iterator[None]:
    """Meanwhile, raise KeyboardInterrupt, so that what was begun is undone.

    Without ``leave_on_interrupt`` before, handlers belong to somebody else (a test, a notebook) and stay.
    """
    ours = [number for number in _SIGNALS if signal.getsignal(number) is _leave]
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _leave)


def came_from_interrupt(error: BaseException) -> bool:
    """Say whether an error is, was caused by, or came up while handling a KeyboardInterrupt.

    An extension module (numpy, ml_dtypes, pydantic_core) whose import is interrupted raises ImportError
    or SystemError in its place.
    """
    todo, seen = [error], {id(error)}
    while todo:
        error = todo.pop()
        if isinstance(error, KeyboardInterrupt):
            return True
        for behind in (error.__cause__, error.__context__):
            if behind is not None and id(behind) not in seen:
                seen.add(id(behind))
                todo.append(behind)
    return False


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    os._exit(EXIT_INTERRUPTED)


def _raise(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
