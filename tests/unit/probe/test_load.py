"""What counts in a step of the load, from records made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from triton_toolkit.probe.load import Step, Timing, run_closed_loop
from triton_toolkit.probe.senders import Record, Request, ThreadSender
from triton_toolkit.probe.wire import TIMEOUT, Answer, RequestFailed

MS = 1_000_000


def record(*requests: tuple[float, float, str]) -> Record:
    """Make a record from (start ms, end ms, kind)."""
    made = Record()
    for start, end, kind in requests:
        if kind:
            made.fail(int(start * MS), int(end * MS), RequestFailed(kind, f"text of {kind}"))
        else:
            made.add(int(start * MS), int(end * MS), 0)
    return made


def step(*records: Record, open_ms: int = 100, close_ms: int = 200) -> Step[None]:
    timing = Timing(warmup_s=0, duration_s=0.1, timeout_s=1)
    return Step(len(records), timing, open_ms * MS, close_ms * MS, list(records), None, None, False)


def latencies(made: Step[None]) -> Sequence[float]:
    return made.sample()._ordered.tolist()


def test_requests_sent_inside_the_window_count_whole() -> None:
    made = step(record((90, 110, ""), (110, 120, ""), (190, 290, ""), (200, 210, "")))
    assert latencies(made) == [10, 100]
    assert made.requests() == 2


def test_latencies_of_all_workers_are_in_order_of_sending() -> None:
    made = step(record((110, 113, ""), (130, 131, "")), record((120, 122, "")))
    assert latencies(made) == [3, 2, 1]


def test_timeouts_count_with_the_time_they_waited_and_other_failures_do_not() -> None:
    made = step(record((110, 111, ""), (120, 170, TIMEOUT), (170, 171, "internal")))
    assert latencies(made) == [1, 50]
    assert made.errors() == {TIMEOUT: 1, "internal": 1}
    assert made.error_texts()["internal"] == "text of internal"


def test_failures_outside_the_window_do_not_count() -> None:
    assert step(record((10, 11, "internal"), (110, 111, ""))).errors() == {}


def test_throughput_is_what_was_answered_inside() -> None:
    made = step(record((90, 110, ""), (110, 199, ""), (199, 250, ""), (150, 160, "internal")))
    assert made.requests_per_s().value == pytest.approx(2 / 0.1)


def test_kept_answers_are_bounded() -> None:
    made = Record()
    for _ in range(1000):
        made.differ(0, Answer(b"x" * 100))
    assert made.differing == 1000
    assert len(made.kept) == 16


class _Broken:
    """A wire whose connections have a bug."""

    def connect(self) -> _Broken:
        return self

    def ready(self) -> None:
        raise ZeroDivisionError

    def exchange(self, request: bytes) -> Answer:
        return Answer(b"")

    def encode(self, inputs: object) -> bytes:
        return b""

    def decode(self, answer: Answer) -> None:
        return None

    def close(self) -> None:
        return None


def test_bug_in_a_worker_is_raised_and_the_collector_is_restored() -> None:
    import gc

    timing = Timing(warmup_s=0, duration_s=0.05, timeout_s=0.1)
    with pytest.raises(ZeroDivisionError):
        run_closed_loop(ThreadSender(_Broken()), [Request(b"")], 2, timing, lambda: None)  # type: ignore[arg-type]
    assert gc.isenabled()


def test_answers_that_differ_late_are_kept_as_well_as_early_ones() -> None:
    record = Record()
    for index in range(1000):
        record.differ(index, Answer(b"x"))
    assert len(record.kept) == 16
    late = [index for index, _ in record.kept if index >= 500]
    assert 4 <= len(late) <= 12
