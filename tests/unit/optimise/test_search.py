import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_toolkit.optimise.groups import Group
from triton_toolkit.optimise.search import Judgement, find_kept

NAMES = "abcdefghijklmnop"


def groups(count):
    return tuple(Group(NAMES[i], (f"{NAMES[i]}/head", f"{NAMES[i]}/tail")) for i in range(count))


class Judge:
    """Scores 1 minus the damage of the layers that are not kept; counts and checks the trials."""

    def __init__(self, damage, allowed, score=None):
        self.damage = damage
        self.allowed = allowed
        self.score = score or (lambda kept: 1 - sum(d for name, d in damage.items() if name not in kept))
        self.asked = []

    def __call__(self, nodes):
        kept = {node.partition("/")[0] for node in nodes}
        assert nodes == {f"{name}/{part}" for name in kept for part in ("head", "tail")}
        assert nodes not in self.asked
        self.asked.append(nodes)
        score = self.score(kept)
        return Judgement(ok=score >= 1 - self.allowed - 1e-12, score=score)


def search(damage, allowed, attempts=200, score=None):
    judge = Judge(damage, allowed, score)
    return find_kept(groups(len(damage)), judge, attempts=attempts), judge


def test_a_variant_that_passes_needs_nothing_kept():
    found, judge = search({"a": 0.01, "b": 0.02}, 0.05)
    assert (found.ok, found.kept, found.attempts) == (True, frozenset(), 1)
    assert len(judge.asked) == 1


def test_the_one_layer_that_does_the_damage_is_kept():
    damage = dict.fromkeys(NAMES, 0.001) | {"k": 0.5}
    found, _ = search(damage, 0.05, attempts=24)
    assert found.ok
    assert found.kept_groups == ("k",)
    assert found.kept == {"k/head", "k/tail"}


def test_two_that_are_far_apart_are_found():
    damage = dict.fromkeys(NAMES, 0.0) | {"b": 0.3, "o": 0.4}
    found, _ = search(damage, 0.1, attempts=24)
    assert set(found.kept_groups) == {"b", "o"}


def test_one_bad_layer_is_kept_rather_than_several_that_are_a_little_bad():
    found, _ = search({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1, "e": 0.4}, 0.4)
    assert found.kept_groups == ("e",)


def test_the_ranking_tells_the_worst_layer_first():
    found, _ = search({"a": 0.1, "b": 0.3, "c": 0.0, "d": 0.2}, 0.05)
    assert [d.groups for d in found.damage] == [("b",), ("d",), ("a",)]
    assert found.damage[0].score == pytest.approx(0.3)


def test_the_curve_goes_from_nothing_to_everything_kept():
    found, _ = search({"a": 0.1, "b": 0.3, "c": 0.0, "d": 0.2}, 0.15)
    assert (found.curve[0].kept, found.curve[-1].kept) == (0, 4)
    assert found.curve[0].score == pytest.approx(0.4)
    assert found.curve[-1].score == 1
    assert [p.kept for p in found.curve] == sorted(p.kept for p in found.curve)
    assert "passes" in found.text
    assert "b alone: score falls by 0.3" in found.text


def test_where_not_even_everything_kept_passes_there_is_no_variant():
    found, judge = search({"a": 0.1, "b": 0.1}, 0.05, score=lambda kept: 0.5)
    assert not found.ok
    assert len(judge.asked) == 2


def test_everything_kept_is_no_variant():
    found, _ = search({"a": 0.5, "b": 0.5, "c": 0.5}, 0.1)
    assert not found.ok
    assert len(found.kept_groups) == 2  # the nearest that was tried
    assert found.judgement.score == pytest.approx(0.5)


def test_without_layers_there_is_nothing_to_search():
    found, _ = search({}, 0.1, score=lambda kept: 0.0)
    assert not found.ok
    assert found.attempts == 1


def test_nan_counts_as_worst():
    def score(kept):
        return 1.0 if "b" in kept else math.nan

    found, _ = search(dict.fromkeys("abcd", 0), 0.1, score=score)
    assert found.kept_groups == ("b",)
    assert found.as_dict()["curve"][0] == {"kept": 0, "score": None, "ok": False}


def test_nan_is_not_taken_for_the_best_of_what_missed():
    def score(kept):
        return {0: math.nan, 4: 1.0}.get(len(kept), 0.1 * len(kept))

    found, _ = search(dict.fromkeys("abcd", 0), 0.1, score=score)
    assert not found.ok
    assert found.judgement.score == pytest.approx(0.3)


def test_it_is_json():
    import json

    found, _ = search({"a": 0.1, "b": 0.3}, 0.15)
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["kept_layers"] == ["b"]


@given(
    st.lists(st.floats(0, 1, allow_nan=False), min_size=2, max_size=16),
    st.floats(0.001, 0.9),
    st.integers(2, 60),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_with_damage_that_adds_up_the_result_passes_and_trials_are_bounded(damages, share, attempts):
    damage = dict(zip(NAMES, damages, strict=False))
    allowed = share * sum(damages)
    found, judge = search(damage, allowed, attempts)
    assert len(judge.asked) == found.attempts <= attempts
    if found.ok:
        rest = sum(d for name, d in damage.items() if name not in found.kept_groups)
        assert rest <= allowed + 1e-9
        assert len(found.kept_groups) < len(damage)


@given(st.lists(st.floats(0, 1, allow_nan=False), min_size=2, max_size=8), st.floats(0.001, 0.9))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_with_enough_trials_no_layer_of_the_result_can_be_left_out(damages, share):
    damage = dict(zip(NAMES, damages, strict=False))
    allowed = share * sum(damages)
    found, judge = search(damage, allowed)
    for name in found.kept_groups if found.ok else ():
        fewer = {n for n in found.kept_groups if n != name}
        assert judge.score(fewer) < 1 - allowed - 1e-12
    if not found.ok:
        smaller = itertools.combinations(damage, len(damage) - 1)
        assert not any(judge.score(set(kept)) >= 1 - allowed - 1e-12 for kept in smaller)


@given(st.randoms(use_true_random=False), st.integers(2, 10), st.integers(2, 40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_with_any_judge_at_all_a_result_that_is_ok_was_judged_so(random, count, attempts):
    scores = {}

    def score(kept):
        return scores.setdefault(frozenset(kept), random.choice([0.0, 0.5, 1.0, math.nan]))

    found, judge = search(dict.fromkeys(NAMES[:count], 0.0), 0.1, attempts, score)
    assert len(judge.asked) == found.attempts <= attempts
    assert found.kept in judge.asked
    if found.ok:
        assert scores[frozenset(found.kept_groups)] == 1.0


def test_few_trials_still_find_a_variant():
    damage = dict.fromkeys(NAMES, 0.001) | {"k": 0.5}
    found, _ = search(damage, 0.05, attempts=10)
    assert found.ok
    assert "k" in found.kept_groups
    assert found.attempts <= 10
