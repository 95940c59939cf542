"""Verdicts from figures: what passes, what fails, what stays open, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.core.slo import parse_slo
from triton_toolkit.probe.report import Verdict
from triton_toolkit.probe.stats import Estimate
from triton_toolkit.probe.verdict import Evidence, judge

Make = Callable[..., Any]


@pytest.fixture
def verdict(run: Make, correctness: Make) -> Make:
    """Return a function that judges one step, or the given ones, by an SLO text."""

    def make(slo: str = "", *runs: Any, answers: dict[str, Any] | None = None, **changes: Any) -> Verdict:
        evidence = Evidence(
            correctness=correctness(**(answers or {})), runs=runs or (run(**changes),), first_request_ms=50.0
        )
        return judge(evidence, parse_slo(slo) if slo else ())

    return make


class TestInterval:
    @pytest.mark.parametrize(
        ("slo", "outcome"),
        [
            ("p99<11ms", "pass"),
            ("p99<7ms", "fail"),
            ("p99<9.5ms", "inconclusive"),
            ("p99<8.5ms", "inconclusive"),
            ("p99<=10ms", "pass"),
            ("p99<10ms", "inconclusive"),
            ("p99<8ms", "fail"),
            ("p99>7ms", "pass"),
            ("p99>11ms", "fail"),
            ("throughput>180/s", "pass"),
            ("throughput>200/s", "inconclusive"),
            ("throughput>220/s", "fail"),
            ("mean<5ms", "pass"),
            ("max<20ms", "fail"),
            ("first_request<60ms", "pass"),
            ("queue_mean<1ms", "pass"),
            ("queue_mean<100us", "fail"),
            ("p50<5ms,p99<9.5ms", "inconclusive"),
            ("p50<1ms,p99<9.5ms", "fail"),
        ],
    )
    def test_side_of_the_limit_decides(self, verdict: Make, slo: str, outcome: str) -> None:
        assert verdict(slo).word == outcome

    def test_no_upper_bound_cannot_pass(self, verdict: Make) -> None:
        latency = {"p99": Estimate(value=5, low=4, high=None)}
        found = verdict("p99<20ms", latency_ms=latency, samples=100)
        assert found.word == "inconclusive"
        assert "no upper bound" in found.reasons[0]

    def test_no_upper_bound_can_fail(self, verdict: Make) -> None:
        assert verdict("p99<3ms", latency_ms={"p99": Estimate(value=5, low=4, high=None)}).word == "fail"

    def test_all_steps_must_hold(self, verdict: Make, run: Make) -> None:
        slow = run(concurrency=8, latency_ms={"p99": Estimate(value=40, low=35, high=45)})
        found = verdict("p99<20ms", run(), slow)
        assert found.word == "fail"
        assert [(item.concurrency, item.outcome) for item in found.judgements] == [(1, "pass"), (8, "fail")]
        assert len(found.reasons) == 1
        assert "concurrency 8" in found.reasons[0]


class TestWhatWouldDecide:
    def test_says_how_long_a_run_would(self, verdict: Make) -> None:
        # 1 ms of interval against 0.5 ms of gap: 4 times as long, a third more for luck: 26 s, so 30.
        assert "--duration 30s" in verdict("p99<9.5ms").reasons[0]

    def test_counts_the_requests_that_a_percentile_needs(self, verdict: Make) -> None:
        latency = {"p99": Estimate(value=5, low=None, high=None)}
        # 368 requests at 10 a second, a third more: 48 s, so 50.
        found = verdict("p99<20ms", latency_ms=latency, samples=50)
        assert "--duration 50s" in found.reasons[0]

    def test_says_why_fast_requests_alone_do_not_decide(self, verdict: Make) -> None:
        latency = {"p99": Estimate(value=12, low=9, high=None)}
        found = verdict("p99<200ms", latency_ms=latency, samples=1569, dependence=6.0, max_ms=30.0)
        assert (
            "the largest latency was 30 ms in 1569 requests, which hang together and count like 262 "
            "independent ones; an upper bound of p99 takes 368 independent ones"
        ) in found.reasons[0]

    def test_a_figure_at_the_limit_is_hopeless(self, verdict: Make) -> None:
        assert "too close to the limit" in verdict("p99<9ms").reasons[0]


class TestErrors:
    def test_without_an_objective_any_failure_fails(self, verdict: Make) -> None:
        found = verdict("p99<20ms", errors={"timeout": 2, "internal": 1}, error_texts={"timeout": "late"})
        assert found.word == "fail"
        assert "3 of 1000 requests failed at concurrency 1," in found.reasons[0]
        assert "timeout 2, internal 1: late" in found.reasons[0]

    def test_rate_zero_passes_without_failures(self, verdict: Make) -> None:
        assert verdict("error_rate=0").word == "pass"

    def test_rate_zero_fails_with_one(self, verdict: Make) -> None:
        assert verdict("error_rate=0", errors={"internal": 1}).word == "fail"

    @pytest.mark.parametrize(("failed", "outcome"), [(2, "pass"), (9, "inconclusive"), (40, "fail")])
    def test_rate_below_a_limit_is_judged_by_its_interval(
        self, verdict: Make, failed: int, outcome: str
    ) -> None:
        assert verdict("error_rate<1%", errors={"internal": failed}).word == outcome

    def test_latency_without_any_answer_is_missed(self, verdict: Make) -> None:
        found = verdict("p99<1s,error_rate<=100%", latency_ms={}, errors={"internal": 1000})
        assert found.word == "fail"
        assert "no request was answered" in found.reasons[0]

    def test_failures_before_the_load_count_too(self, verdict: Make) -> None:
        found = verdict(answers={"failures": {"internal": 1}})
        assert found.word == "fail"
        assert "before the load (internal 1)" in found.reasons[0]


class TestAnswers:
    def test_wrong_answer_fails_whatever_the_latency(self, verdict: Make) -> None:
        found = verdict("p99<1h", answers={"problems": ("output 'y' has NaN",)})
        assert (found.word, found.reasons[0]) == ("fail", "wrong answer: output 'y' has NaN")

    def test_wrong_answer_under_load_fails(self, verdict: Make, run: Make) -> None:
        step = run(concurrency=8, wrong=("output 'y' differs",), answers={"wrong": 3, "checked": 16})
        found = verdict("", step)
        assert found.word == "fail"
        assert "wrong answers at concurrency 8: 3 of 16 that were checked" in found.reasons[0]

    def test_nothing_asked_and_nothing_wrong_passes(self, verdict: Make) -> None:
        assert verdict().reasons == ("answers are as declared, no request failed; no objective was given",)

    def test_a_sample_of_the_differing_answers_is_called_one(self, verdict: Make, run: Make) -> None:
        answers = {"differing": 900, "wrong": 3, "checked": 16}
        found = verdict("p99<11ms", run(concurrency=8, wrong=("output 'y' differs",), answers=answers))
        assert "3 of 16 that were checked (16 of 900 differing answers were compared)" in found.reasons[0]

    def test_a_pass_from_a_sample_of_the_differing_answers_says_so(self, verdict: Make, run: Make) -> None:
        some = run(concurrency=8, answers={"differing": 900, "wrong": 0, "checked": 16})
        every = run(answers={"differing": 16, "wrong": 0, "checked": 16})
        assert (
            "; 16 of 900 differing answers were compared at concurrency 8; " in verdict("", some).reasons[0]
        )
        assert "compared" not in verdict("", every).reasons[0]


def test_server_mean_without_statistics_is_open(verdict: Make) -> None:
    assert verdict("queue_mean<1ms", split=None).word == "inconclusive"
