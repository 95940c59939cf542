"""Differences of the server's counters, and why its batches are no larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.client.types import DurationStatistics
from triton_toolkit.probe.server_split import split, started_anew, why_not_larger

Make = Callable[..., Any]


class TestSplit:
    def test_is_the_difference_a_request(self, statistics: Make) -> None:
        before = {"bert": statistics(100, us=1000.0)}
        after = {"bert": statistics(300, us=500.0)}
        found = split("bert", before, after)
        assert found.requests == 200
        assert found.us == dict.fromkeys(("queue", "compute_input", "compute_infer", "compute_output"), 250.0)
        assert found.request_us == 1000.0

    def test_counts_executions_of_each_size(self, statistics: Make) -> None:
        before = {"bert": statistics(10, batches={1: 10})}
        after = {"bert": statistics(50, batches={1: 12, 8: 4, 2: 3})}
        found = split("bert", before, after)
        assert found.batch_sizes == {1: 2, 2: 3, 8: 4}
        assert found.mean_batch() == pytest.approx((2 + 6 + 32) / 9)

    def test_without_requests_has_no_means(self, statistics: Make) -> None:
        same = {"bert": statistics(10)}
        found = split("bert", same, same)
        assert (found.requests, found.request_us, found.mean_batch()) == (0, None, None)
        assert set(found.us.values()) == {None}

    def test_cache_hits_are_counted(self, statistics: Make) -> None:
        after = {"bert": statistics(10, cache_hit=DurationStatistics(count=4, ns=40))}
        assert split("bert", {"bert": statistics(5)}, after).cache_hits == 4

    def test_ensemble_has_its_steps_and_their_sum(self, statistics: Make) -> None:
        zero = statistics(0)
        before = {"pipeline": zero, "tokens": zero, "bert": zero}
        after = {
            "pipeline": statistics(10, us=0.0),
            "tokens": statistics(10, us=30.0),
            "bert": statistics(20, us=100.0),
        }
        found = split("pipeline", before, after)
        assert list(found.steps) == ["tokens", "bert"]
        assert found.us["queue"] == pytest.approx(30 + 2 * 100)  # bert ran twice a request


class TestStartedAnew:
    def test_counters_that_only_grew_did_not(self, statistics: Make) -> None:
        assert started_anew({"bert": statistics(100)}, {"bert": statistics(150)}, 50) == ""

    @pytest.mark.parametrize(
        "later",
        [
            {"requests": 7},  # below the earlier count
            {"requests": 140},  # has passed it, but this client alone had 50 answers
            {"requests": 900, "version": "2"},
        ],
    )
    def test_of_a_reloaded_model_did(self, statistics: Make, later: dict[str, Any]) -> None:
        assert started_anew({"bert": statistics(100)}, {"bert": statistics(**later)}, 50) == "bert"

    def test_step_of_an_ensemble_is_named(self, statistics: Make) -> None:
        before = {"pipeline": statistics(100), "tokens": statistics(100)}
        assert started_anew(before, {"pipeline": statistics(150)}, 50) == "tokens"
        assert started_anew(before, {**before, "tokens": statistics(5)}, 0) == "tokens"


class TestWhyNotLarger:
    @pytest.mark.parametrize(
        ("text", "concurrency", "formed", "words"),
        [
            ("max_batch_size: 0", 8, {1: 9}, "does not batch this model"),
            ("max_batch_size: 8", 8, {1: 9}, "dynamic batching is off"),
            ("max_batch_size: 8 dynamic_batching {}", 1, {1: 9}, "one request in flight"),
            ("max_batch_size: 4 dynamic_batching {}", 8, {4: 9}, "as large as max_batch_size 4 allows"),
            ("max_batch_size: 32 dynamic_batching {}", 8, {8: 9}, "nearly all 8 rows in flight"),
            (
                "max_batch_size: 32 dynamic_batching {preferred_batch_size: [4, 16]}",
                8,
                {4: 9},
                "preferred size 4",
            ),
            (
                "max_batch_size: 32 dynamic_batching {} instance_group {count: 2}",
                8,
                {3: 9},
                "2 instances share",
            ),
            ("max_batch_size: 32 dynamic_batching {}", 8, {3: 9}, "max_queue_delay is 0"),
            (
                "max_batch_size: 32 dynamic_batching {max_queue_delay_microseconds: 500}",
                8,
                {3: 9},
                "max_queue_delay 500 us was over",
            ),
        ],
    )
    def test_names_the_limit(
        self, config: Make, text: str, concurrency: int, formed: dict[int, int], words: str
    ) -> None:
        assert words in why_not_larger(config(text), concurrency, 1, formed)

    def test_rows_of_a_request_count(self, config: Make) -> None:
        text = why_not_larger(config("max_batch_size: 32 dynamic_batching {}"), 2, 8, {16: 5})
        assert "nearly all 16 rows" in text

    def test_nothing_executed_says_nothing(self, config: Make) -> None:
        assert why_not_larger(config("max_batch_size: 8"), 1, 1, {}) == ""
