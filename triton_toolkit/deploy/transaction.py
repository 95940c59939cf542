"""A row of small steps that all happen, or are all taken back."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from triton_toolkit._progress import Progress
from triton_toolkit.deploy.report import StepRecord
from triton_toolkit.errors import TritonToolkitError


class Step(Protocol):
    """Something that is done and can be taken back.

    ``undo`` is called also when ``do`` failed or was interrupted half-way, and must then take back
    whatever was done. Where it cannot, it raises, and the undoing of the others goes on.
    """

    @property
    def name(self) -> str:
        """What it does, such as ``publish version``."""

    @property
    def subject(self) -> str:
        """The model it does it to."""

    def do(self) -> None:
        """Do it."""

    def undo(self) -> None:
        """Take it back."""


@dataclass(slots=True)
class _Begun:
    step: Step
    outcome: str = "failed"
    seconds: float = 0.0

    def record(self) -> StepRecord:
        return StepRecord(
            step=self.step.name, subject=self.step.subject, outcome=self.outcome, seconds=self.seconds
        )


class Transaction:
    """Runs steps in order and keeps a record of each.

    Attributes:
        undo_problems: What could not be taken back, in words.
        undo_errors: The errors behind them.
    """

    def __init__(self, progress: Progress) -> None:
        self.undo_problems: list[str] = []
        self.undo_errors: list[Exception] = []
        self._progress = progress
        self._begun: list[_Begun] = []

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """What happened, in order."""
        return tuple(begun.record() for begun in self._begun)

    def run(self, steps: Sequence[Step]) -> None:
        """Do all steps; on any exception, ctrl-C included, undo those begun, last first, and re-raise."""
        try:
            for step in steps:
                self._do(step)
        except BaseException:
            with uninterrupted():
                self._progress.note("stopped", "taking back what was done; ctrl-C waits for it")
                self._undo()
            raise

    def _do(self, step: Step) -> None:
        self._progress.step(step.subject, step.name)
        begun = _Begun(step)
        self._begun.append(begun)
        started = time.monotonic()
        try:
            step.do()
            begun.outcome = "done"
        finally:
            begun.seconds = time.monotonic() - started

    def _undo(self) -> None:
        bugs: list[Exception] = []
        for begun in reversed(self._begun):
            step, before = begun.step, "" if begun.outcome == "done" else "failed, "
            self._progress.step(step.subject, f"undo: {step.name}")
            try:
                step.undo()
            except Exception as exc:  # noqa: BLE001 - a bug is raised below, once all else is undone
                begun.outcome = f"{before}not undone: {exc}"
                self.undo_errors.append(exc)
                self.undo_problems.append(f"{step.subject}: {step.name} could not be undone: {exc}")
                if not isinstance(exc, TritonToolkitError | OSError):
                    bugs.append(exc)
            else:
                begun.outcome = f"{before}undone"
        if bugs:
            raise bugs[0]


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore ctrl-C, SIGTERM and SIGHUP meanwhile: half a rollback is worse than a late exit."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone
        return
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former = [(name, signal.signal(name, signal.SIG_IGN)) for name in names]
    try:
        yield
    finally:
        for name, handler in former:
            signal.signal(name, handler)
