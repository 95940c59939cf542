"""What is wrong with an answer, told without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from triton_toolkit.client.types import InferResult
from triton_toolkit.probe.answers import answer_problems, loose_differences

Make = Callable[..., Any]
ROW = np.array([[1.0, -1.0]], np.float32)


def result(version: str = "1", model: str = "bert", **outputs: Any) -> InferResult:
    return InferResult(model_name=model, model_version=version, outputs=outputs)


def test_answer_as_declared_has_no_problem(live_model: Make) -> None:
    assert answer_problems(live_model(), result(logits=ROW), 1, exempt={}) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (result(), "output 'logits' is missing"),
        (result(logits=ROW, more=ROW), "output 'more' is not declared"),
        (result(logits=ROW.astype(np.float64)), "is declared as fp32, the model answered float64"),
        (result(logits=ROW[0]), "is declared as [1, 2], the model answered [2]"),
        (result(logits=np.ones((1, 3), np.float32)), "is declared as [1, 2], the model answered [1, 3]"),
        (result(logits=np.ones((2, 2), np.float32)), "is declared as [1, 2], the model answered [2, 2]"),
        (result(logits=np.zeros((0, 2), np.float32)), "is declared as [1, 2], the model answered [0, 2]"),
        (result(logits=ROW * np.float32(np.nan)), "has NaN in 2 of 2 elements"),
        (result(logits=np.full((1, 2), np.inf, np.float32)), "is infinite in 2 of 2"),
        (result(logits=ROW, model="other"), "model 'other' answered for 'bert'"),
    ],
)
def test_each_fault_is_named(live_model: Make, answer: InferResult, words: str) -> None:
    problems = answer_problems(live_model(), answer, 1, exempt={})
    assert any(words in problem for problem in problems), problems


def test_another_version_than_asked_is_a_problem(live_model: Make) -> None:
    model = live_model(version="2")
    assert answer_problems(model, result(version="1", logits=ROW), 1, exempt={}) == [
        "version 1 answered, version 2 was asked"
    ]


def test_nan_is_the_comparison_s_business_where_there_is_one(live_model: Make) -> None:
    nan = ROW * np.float32(np.nan)
    assert answer_problems(live_model(), result(logits=nan), 1, exempt={"logits": nan}) == []


def test_dynamic_dimension_of_an_output_may_have_any_size(live_model: Make, tensor: Make) -> None:
    model = live_model(outputs=(tensor("boxes", "fp32", "batch", "boxes_1", 4),))
    assert answer_problems(model, result(boxes=np.zeros((1, 0, 4), np.float32)), 1, exempt={}) == []


class TestLoose:
    def test_allows_1_percent_of_the_largest_magnitude(self) -> None:
        expected = {"y": np.array([100.0, 0.0])}
        assert loose_differences({"y": np.array([100.5, 0.9])}, expected)[0].ok
        assert not loose_differences({"y": np.array([100.0, 1.1])}, expected)[0].ok

    def test_integers_and_strings_must_be_equal(self) -> None:
        assert not loose_differences({"y": np.array([1, 2])}, {"y": np.array([1, 3])})[0].ok
        text = np.array([b"a"], object)
        assert loose_differences({"y": text}, {"y": text.copy()})[0].ok
