"""From source to FP16 and INT8: a few architectures always, all of them and MiniLM among the slow tests."""

from __future__ import annotations

import re

import pytest

from tests.zoo.catalogue import ARCHITECTURES, MINILM, Architecture
from tests.zoo.run import Outcome, run
from tests.zoo.table import PAGE, tolerance_used

pytestmark = pytest.mark.torch

QUICK = [architecture for architecture in ARCHITECTURES if architecture.quick]


def named(architecture: Architecture) -> str:
    return architecture.name


@pytest.mark.parametrize("architecture", QUICK, ids=named)
def test_quick(architecture: Architecture) -> None:
    check(run(architecture))


@pytest.mark.slow
def test_all() -> None:
    """In one test, so that the numbers are those of one run."""
    outcomes = [run(architecture) for architecture in ARCHITECTURES]
    for outcome in outcomes:
        check(outcome)
    assert sum(outcome.exported is not None for outcome in outcomes) >= 20
    assert sum("fp16" in outcome.variants for outcome in outcomes) >= 17
    assert sum("int8" in outcome.variants for outcome in outcomes) >= 14


def check(outcome: Outcome) -> None:
    """Check that all is inside its tolerances, and that the rest is refused for the reason given."""
    wanted = outcome.architecture.refused
    assert outcome.refused.keys() == wanted.keys(), outcome.refused
    for step, reason in wanted.items():
        assert re.search(reason, outcome.refused[step])
    for precision, report in outcome.variants.items():
        assert 0 < tolerance_used(report) <= 1, precision
        assert report.precision["lowered"] > 0, precision
        for entry in report.parity:
            assert [output["problem"] for output in entry["outputs"] if output["problem"]] == []


@pytest.mark.slow
def test_sentences_stay_as_alike_as_they_were() -> None:
    outcome = run(MINILM)
    check(outcome)
    assert outcome.exported is not None
    assert outcome.exported.accuracy["exported"] > 0.9999
    assert outcome.exported.accuracy["original"] == pytest.approx(1, abs=1e-6)
    assert outcome.variants["fp16"].accuracy["drop"] <= 0.01
    assert outcome.variants["int8"].accuracy["drop"] <= 0.03


def test_the_page_has_a_row_for_each() -> None:
    """The table is written by ``./scripts/zoo --write``."""
    rows = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    for architecture in (*ARCHITECTURES, MINILM):
        assert architecture.title in rows
