"""Service-level objectives as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit.core.slo import Unit, parse_slo
from triton_toolkit.errors import UsageError


def one(text: str):
    (objective,) = parse_slo(text)
    return objective


@pytest.mark.parametrize(
    ("text", "metric", "operator", "limit", "unit"),
    [
        ("p99<20ms", "p99", "<", 20.0, Unit.MILLISECONDS),
        ("p99.9 <= 1s", "p99.9", "<=", 1000.0, Unit.MILLISECONDS),
        ("mean<500us", "mean", "<", 0.5, Unit.MILLISECONDS),
        ("queue_mean<5ms", "queue_mean", "<", 5.0, Unit.MILLISECONDS),
        ("throughput>500/s", "throughput", ">", 500.0, Unit.PER_SECOND),
        ("throughput>=500", "throughput", ">=", 500.0, Unit.PER_SECOND),
        ("error_rate=0", "error_rate", "=", 0.0, Unit.RATIO),
        ("error_rate==1%", "error_rate", "=", 0.01, Unit.RATIO),
    ],
)
def test_conditions(text, metric, operator, limit, unit):
    found = one(text)
    assert (found.metric, found.operator, found.unit) == (metric, operator, unit)
    assert found.limit == pytest.approx(limit)


def test_an_error_rate_may_be_exactly_zero():
    assert [one("error_rate=0").holds(value) for value in (0.0, 1e-9)] == [True, False]


def test_several_conditions_keep_their_order_and_text():
    assert [o.text for o in parse_slo(" p99<20ms, error_rate=0 ,")] == ["p99<20ms", "error_rate=0"]


@pytest.mark.parametrize(
    ("operator", "below", "at", "above"),
    [("<", True, False, False), ("<=", True, True, False), (">", False, False, True),
     (">=", False, True, True)],
)  # fmt: skip
def test_holds(operator, below, at, above):
    objective = one(f"p50{operator}10ms")
    assert [objective.holds(value) for value in (9.9, 10.0, 10.1)] == [below, at, above]


@given(st.sampled_from(["p50", "p99", "max"]), st.floats(1e-3, 1e6), st.sampled_from(["<", "<=", ">", ">="]))
def test_a_limit_survives_its_text(metric, limit, operator):
    found = one(f"{metric}{operator}{limit}ms")
    assert found.limit == pytest.approx(limit, rel=1e-12)
    assert found.holds(found.limit) == (operator in ("<=", ">="))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no condition"),
        (" , ", "has no condition"),
        ("p99", "is not METRIC OPERATOR LIMIT"),
        ("P99<3ms", "is not METRIC OPERATOR LIMIT"),
        ("p99<5", "'5' needs a unit of time"),
        ("p99<abc", "'abc' is not a duration"),
        ("p99<1e999ms", "'1e999ms' is not a duration"),
        ("p99=>5ms", "'>5ms' is not a duration"),
        ("mean<-1ms", "a limit cannot be negative"),
        ("throughput>fast", "'fast' is not a rate; write it like 500/s"),
        ("throughput>nan", "'nan' is not a rate"),
        ("error_rate<2", "'2' is not a share from 0 to 1"),
        ("error_rate<200%", "'200%' is not a share from 0 to 1"),
        ("p0<1ms", "unknown metric 'p0'"),
        ("p100<1ms", "unknown metric 'p100'"),
        ("thoughput>3/s", "unknown metric 'thoughput'; did you mean 'throughput'?"),
        ("p99<20ms, p95<x", "SLO 'p95<x'"),
    ],
)
def test_what_cannot_be_meant_says_so(text, problem):
    with pytest.raises(UsageError) as caught:
        parse_slo(text)
    assert problem in caught.value.message


@pytest.mark.parametrize("metric", ["queue_p99", "compute_infer_p50", "queue_max"])
def test_percentiles_of_the_servers_times_do_not_exist(metric):
    with pytest.raises(UsageError, match="only its mean") as caught:
        parse_slo(f"{metric}<5ms")
    assert caught.value.hint.startswith(f"use {metric.rpartition('_')[0]}_mean")


@given(st.text(max_size=30))
def test_any_text_is_parsed_or_refused_as_wrong_usage(text):
    try:
        objectives = parse_slo(text)
    except UsageError:
        return
    assert objectives


@pytest.mark.parametrize("text", ["p99=20ms", "throughput=5", "mean==1ms"])
def test_equality_with_a_measured_figure_is_refused(text):
    with pytest.raises(UsageError, match="never exactly equal"):
        parse_slo(text)
