"""Differences of the server's counters, and why its batches are no larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from triton_toolkit.client.types import DurationStatistics
from triton_toolkit.probe.server_split import split, was_reloaded, why_not_larger

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

    def test_counters_that_started_anew_count_alone(self, statistics: Make) -> None:
        before, after = {"bert": statistics(900)}, {"bert": statistics(7, us=50.0)}
        assert was_reloaded("bert", before, after)
        assert split("bert", before, after).requests == 7
        assert split("bert", before, after).us["queue"] == 50.0

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
