import json

import pytest

from triton_toolkit.optimise.search import Judgement
from triton_toolkit.optimise.trials import Trials


class Work:
    """Makes files whose text is what they keep, and judges them by it."""

    def __init__(self, fails_at=None):
        self.made = []
        self.fails_at = fails_at

    def make(self, kept, out):
        assert list(out.parent.iterdir()) == []
        if len(self.made) == self.fails_at:
            raise KeyboardInterrupt
        self.made.append(sorted(kept))
        out.write_text(" ".join(sorted(kept)))
        out.with_name("model.onnx.data").write_text("weights")

    def judge(self, path):
        kept = path.read_text().split()
        return Judgement(ok=len(kept) > 1, score=float("nan") if not kept else float(len(kept)), text="t")


@pytest.fixture
def trials(tmp_path):
    exported = tmp_path / "exported"
    exported.mkdir()
    (exported / "model.onnx").write_text("the model")

    def begin(work, key="k"):
        return Trials(
            reference=exported / "model.onnx",
            make=work.make,
            judge=work.judge,
            folder=tmp_path / "scratch",
            state=tmp_path / "state.json",
            key=key,
        )

    return begin


def test_a_trial_is_made_once(trials):
    work = Work()
    ask = trials(work)
    assert ask(frozenset("ab")) == ask(frozenset("ba")) == Judgement(ok=True, score=2.0, text="t")
    assert work.made == [["a", "b"]]


def test_a_later_search_knows_what_was_judged(trials):
    trials(Work())(frozenset("ab"))
    work = Work()
    ask = trials(work)
    assert ask(frozenset("ab")) == Judgement(ok=True, score=2.0, text="t")
    assert work.made == []


def test_a_score_that_is_no_number_is_remembered_too(trials, tmp_path):
    trials(Work())(frozenset())
    json.loads((tmp_path / "state.json").read_text(), parse_constant=pytest.fail)
    work = Work()
    assert str(trials(work)(frozenset()).score) == "nan"
    assert work.made == []


def test_a_search_that_was_stopped_goes_on_where_it_was(trials):
    first = Work(fails_at=1)
    ask = trials(first)
    ask(frozenset("a"))
    with pytest.raises(KeyboardInterrupt):
        ask(frozenset("b"))
    second = Work()
    ask = trials(second)
    ask(frozenset("a"))
    ask(frozenset("b"))
    assert second.made == [["b"]]


def test_nothing_is_left_in_the_scratch_folder(trials, tmp_path):
    ask = trials(Work(fails_at=1))
    ask(frozenset("a"))
    with pytest.raises(KeyboardInterrupt):
        ask(frozenset("b"))
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("change", ["key", "model", "weights"])
def test_judgements_of_something_else_are_not_used(trials, tmp_path, change):
    trials(Work())(frozenset("ab"))
    if change == "model":
        (tmp_path / "exported" / "model.onnx").write_text("another model")
    if change == "weights":
        (tmp_path / "exported" / "model.onnx.data").write_text("other weights")
    work = Work()
    trials(work, key="other" if change == "key" else "k")(frozenset("ab"))
    assert work.made == [["a", "b"]]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"key": 1, "trials": []}'])
def test_a_damaged_memory_is_as_none(trials, tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    work = Work()
    trials(work)(frozenset("ab"))
    assert work.made == [["a", "b"]]
