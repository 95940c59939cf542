"""What ctrl-C and SIGTERM do to ``tt``: leave at once while it starts or ends, raise while a command runs.

``__main__`` calls this first of all, so it imports next to nothing, not even ``typing``.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import NoReturn

_EXIT_INTERRUPTED = 130  # errors.EXIT_INTERRUPTED; importing it would leave a gap before the handlers
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, what a cancelled CI job gets, and a closed terminal: each must roll back."""


def leave_on_interrupt() -> None:
    """From now on, end the process at once and quietly: there is nothing to undo yet.

    A signal that is ignored, as in the background of a shell script, stays so.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _leave)
    sys.excepthook = _print_unless_interrupt


class RaiseOnInterrupt:
    """While entered, an interrupt raises KeyboardInterrupt, so that what was begun is undone.

    Without ``leave_on_interrupt`` before, handlers belong to somebody else (a test, a notebook) and stay.
    """

    def __enter__(self) -> None:
        self._ours = [number for number in _SIGNALS if signal.getsignal(number) is _leave]
        for number in self._ours:
            signal.signal(number, _raise)

    def __exit__(self, *_: object) -> None:
        for number in self._ours:
            signal.signal(number, _leave)


def came_from_interrupt(error: BaseException) -> bool:
    """Say whether an error is, was caused by, or came up while handling a KeyboardInterrupt.

    An extension module (numpy, ml_dtypes, pydantic_core) whose import is interrupted raises ImportError
    or SystemError in its place; some, as numpy's ``import_array``, without a link to it.
    """
    if _raised and isinstance(error, ImportError | SystemError):
        return True
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


def _print_unless_interrupt(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Replace ``sys.excepthook``: ``import_array`` calls it for the error that it takes the place of."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


_raised: list[int] = []
"""The signals that raised KeyboardInterrupt."""


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    os._exit(_EXIT_INTERRUPTED)


def _raise(signum: int, frame: FrameType | None) -> NoReturn:
    _raised.append(signum)
    raise KeyboardInterrupt
