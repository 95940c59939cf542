"""Closed-loop load: so many requests in flight, each sent when the one before it is answered.

What counts: a request that was *sent* inside the measuring window counts with its whole latency,
also when its answer comes after the window closes (the run waits for it, up to its deadline), so
that slow answers are not cut off. Throughput is what was answered inside the window.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from triton_toolkit.probe.senders import Control, Flight, Record, Request, Sender
from triton_toolkit.probe.stats import Estimate, Sample, throughput
from triton_toolkit.probe.wire import TIMEOUT, Answer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Times = NDArray[Any]

T = TypeVar("T")

_TICK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long a step of the load takes.

    Attributes:
        warmup_s: Load before the window opens; it goes on until each worker had one answer.
        duration_s: Length of the window; it goes on until each worker sent two requests in it or
            ``timeout_s`` has passed, so that a slow model has a sample at all.
        timeout_s: Deadline of a request.
    """

    warmup_s: float
    duration_s: float
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Step(Generic[T]):
    """One step of the load as measured.

    Attributes:
        concurrency: Requests in flight.
        timing: What was asked for.
        open_ns: When the window opened.
        close_ns: When it closed.
        records: What the workers saw, warm-up included.
        before: The snapshot taken as the window opened.
        after: The snapshot taken when the last request was answered.
        lost: Whether the step ended early because the server could not be reached.
    """

    concurrency: int
    timing: Timing
    open_ns: int
    close_ns: int
    records: list[Record]
    before: T
    after: T
    lost: bool

    @property
    def measured_s(self) -> float:
        """The window's length in seconds."""
        return (self.close_ns - self.open_ns) / 1e9

    def sample(self) -> Sample:
        """Return the latencies in ms, in order of sending.

        A request that ran into its deadline counts with the time it waited: a percentile must not
        look better because the slowest gave up. Other failures have no latency.
        """
        import numpy as np

        starts, latencies = [], []
        for record in self.records:
            begin, end, kinds = _arrays(record)
            timed_out = record.names.index(TIMEOUT) if TIMEOUT in record.names else -1
            chosen = self._inside(begin) & ((kinds == 0) | (kinds == timed_out))
            starts.append(begin[chosen])
            latencies.append((end - begin)[chosen])
        order = np.argsort(np.concatenate(starts), kind="stable")
        return Sample(np.concatenate(latencies)[order] / 1e6, self.concurrency)

    def requests(self) -> int:
        """Return how many requests were sent inside the window, failed ones included."""
        return sum(int(self._inside(_arrays(record)[0]).sum()) for record in self.records)

    def errors(self) -> dict[str, int]:
        """Return kind -> number of failed requests sent inside the window, most frequent first."""
        counts: Counter[str] = Counter()
        for record in self.records:
            begin, _, kinds = _arrays(record)
            inside = kinds[self._inside(begin)]
            for index, name in enumerate(record.names[1:], start=1):
                counts[name] += int((inside == index).sum())
        return {name: count for name, count in counts.most_common() if count}

    def error_texts(self) -> dict[str, str]:
        """Return kind -> a message of that kind, warm-up included."""
        return {kind: text for record in reversed(self.records) for kind, text in record.texts.items()}

    def requests_per_s(self) -> Estimate:
        """Return the rate of good answers inside the window."""
        import numpy as np

        ends = [end[kinds == 0] for _, end, kinds in map(_arrays, self.records)]
        return throughput(np.concatenate(ends), self.open_ns, self.close_ns)

    def answered(self) -> int:
        """Return how many requests were answered, warm-up included."""
        return sum(int((_arrays(record)[2] == 0).sum()) for record in self.records)

    def answered_since_open(self) -> int:
        """Return how many good answers came since the window opened."""
        return sum(
            int(((end >= self.open_ns) & (kinds == 0)).sum()) for _, end, kinds in map(_arrays, self.records)
        )

    def sent(self) -> int:
        """Return how many requests were sent since shortly before the window opened."""
        return sum(int((_arrays(record)[1] >= self.open_ns).sum()) for record in self.records)

    def differing(self) -> int:
        """Return how many answers were not byte for byte what their request gave alone."""
        return sum(record.differing for record in self.records)

    def kept(self) -> list[tuple[int, Answer]]:
        """Return some of those answers, each with the index of its request."""
        return [item for record in self.records for item in record.kept]

    def _inside(self, starts: Times) -> Times:
        inside: Times = (starts >= self.open_ns) & (starts < self.close_ns)
        return inside


def run_closed_loop(
    sender: Sender,
    requests: Sequence[Request],
    concurrency: int,
    timing: Timing,
    snapshot: Callable[[], T],
) -> Step[T]:
    """Run one step: warm up, measure, wait for what is still in flight.

    The garbage collector is off while it runs. An interruption ends the requests in flight and is
    passed on.

    Args:
        sender: Sends the requests.
        requests: Prepared requests, which take turns.
        concurrency: How many are in flight at any time.
        timing: How long.
        snapshot: Called as the window opens and after the last answer (the server's counters).
    """
    control = Control()
    with _frozen_collector():
        flight = sender.start(requests, concurrency, control)
        try:
            _wait(flight, control, at_least_s=timing.warmup_s, requests=1, timing=timing)
            before = snapshot()
            open_ns = time.perf_counter_ns()
            _wait(
                flight, control, at_least_s=timing.duration_s, requests=flight.answered() + 2, timing=timing
            )
            close_ns = time.perf_counter_ns()
            control.stopped = True
            records = flight.join()
        except BaseException:
            control.stopped = True
            flight.abort()
            raise
        after = snapshot()
    return Step(concurrency, timing, open_ns, close_ns, records, before, after, control.lost)


def _wait(flight: Flight, control: Control, *, at_least_s: float, requests: int, timing: Timing) -> None:
    """Wait that long and for that many requests of each worker, at most a deadline beyond."""
    start = time.monotonic()
    while not control.lost:
        passed_s = time.monotonic() - start
        if passed_s >= at_least_s + timing.timeout_s:
            return
        if passed_s >= at_least_s and flight.answered() >= requests:
            return
        left_s = at_least_s - passed_s
        time.sleep(min(_TICK_S, left_s) if left_s > 0 else _TICK_S)


@contextlib.contextmanager
def _frozen_collector() -> Iterator[None]:
    """Keep the garbage collector from stopping all workers in the middle of a request."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _arrays(record: Record) -> tuple[Times, Times, Times]:
    import numpy as np

    # Copies, because an array that numpy looks into cannot grow.
    starts = np.array(record.starts, dtype=np.int64)
    return starts, np.array(record.ends, dtype=np.int64), np.array(record.kinds, dtype=np.int8)
