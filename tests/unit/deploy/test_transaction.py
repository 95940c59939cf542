import signal
from dataclasses import dataclass, field

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.deploy.transaction import Transaction
from triton_toolkit.errors import DeployError, ServerError


@dataclass
class Fake:
    """A step that writes into a log what happens to it."""

    name: str
    log: list[str] = field(default_factory=list)
    fails: BaseException | None = None
    undo_fails: Exception | None = None
    subject: str = "model"

    def do(self) -> None:
        self.log.append(f"do {self.name}")
        if self.fails:
            raise self.fails

    def undo(self) -> None:
        self.log.append(f"undo {self.name}")
        if self.undo_fails:
            raise self.undo_fails


def _outcomes(transaction: Transaction) -> list[str]:
    return [record.outcome for record in transaction.records]


def test_steps_are_done_in_order():
    log: list[str] = []
    transaction = Transaction(Silent())
    transaction.run([Fake("a", log), Fake("b", log)])
    assert log == ["do a", "do b"]
    assert _outcomes(transaction) == ["done", "done"]


@pytest.mark.parametrize("failure", [DeployError("no"), KeyboardInterrupt(), RuntimeError("bug")])
def test_failure_undoes_what_was_begun_last_first(failure):
    log: list[str] = []
    transaction = Transaction(Silent())
    steps = [Fake("a", log), Fake("b", log, fails=failure), Fake("c", log)]
    with pytest.raises(type(failure)) as caught:
        transaction.run(steps)
    assert caught.value is failure
    assert log == ["do a", "do b", "undo b", "undo a"]
    assert _outcomes(transaction) == ["undone", "failed, undone"]


def test_undoing_goes_on_past_what_cannot_be_undone():
    log: list[str] = []
    transaction = Transaction(Silent())
    steps = [
        Fake("a", log),
        Fake("b", log, undo_fails=ServerError("gone")),
        Fake("c", log, fails=DeployError("no")),
    ]
    with pytest.raises(DeployError):
        transaction.run(steps)
    assert log[3:] == ["undo c", "undo b", "undo a"]
    assert transaction.undo_problems == ["model: b could not be undone: gone"]
    assert _outcomes(transaction) == ["undone", "not undone: gone", "failed, undone"]


def test_bug_while_undoing_is_raised_after_everything_is_undone():
    log: list[str] = []
    steps = [Fake("a", log), Fake("b", log, fails=DeployError("no"), undo_fails=TypeError("bug"))]
    with pytest.raises(TypeError, match="bug"):
        Transaction(Silent()).run(steps)
    assert log[-1] == "undo a"


def test_second_ctrl_c_does_not_stop_the_undoing():
    class Impatient(Fake):
        def undo(self) -> None:
            signal.raise_signal(signal.SIGINT)
            super().undo()

    log: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Transaction(Silent()).run([Fake("a", log), Impatient("b", log, fails=KeyboardInterrupt())])
    assert log == ["do a", "do b", "undo b", "undo a"]
    assert signal.getsignal(signal.SIGINT) is before
