"""Keep requests in flight and note two clock readings for each.

``Sender`` is the seam: the load asks for so many requests in flight and gets a ``Record`` back;
how they travel (threads here) is the sender's own affair.
"""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from triton_toolkit.probe.wire import UNREACHABLE, Answer, Connection, RequestFailed, Wire

OK = ""
"""Kind of a request with an answer."""

_PAUSE_S = 0.05  # after a broken connection, lest a dead server make the client spin
_LOST_AFTER = 40  # broken connections in a row before a worker calls the server lost (about 2 s)
_KEPT = 16
_KEPT_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """A request as bytes, and the answer it had when it was sent alone (None: do not compare)."""

    data: bytes
    alone: bytes | None = None


@dataclass(slots=True)
class Record:
    """What one worker saw. Times are ``time.perf_counter_ns``.

    Attributes:
        starts: When each request was sent.
        ends: When its answer was whole, or it failed.
        kinds: Index into ``names`` for each request; 0 is an answer.
        names: Kinds of outcome, ``OK`` first.
        texts: Kind -> the first message of that kind.
        differing: How many answers were not byte for byte what the request gave alone.
        kept: Some of those answers, each with the index of its request.
    """

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    kinds: array[int] = field(default_factory=lambda: array("b"))
    names: list[str] = field(default_factory=lambda: [OK])
    texts: dict[str, str] = field(default_factory=dict)
    differing: int = 0
    kept: list[tuple[int, Answer]] = field(default_factory=list)
    _kept_bytes: int = 0
    _chance: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - no secret

    def add(self, start_ns: int, end_ns: int, kind: int) -> None:
        """Note one request."""
        self.starts.append(start_ns)
        self.ends.append(end_ns)
        self.kinds.append(kind)

    def fail(self, start_ns: int, end_ns: int, failure: RequestFailed) -> None:
        """Note one request without a good answer."""
        if failure.kind not in self.names:
            self.names.append(failure.kind)
            self.texts[failure.kind] = failure.text
        self.add(start_ns, end_ns, self.names.index(failure.kind))

    def differ(self, request: int, answer: Answer) -> None:
        """Note an answer that is not what the request gave alone, and keep a fair sample of them.

        Each has the same chance to be kept, whenever it came (reservoir sampling, Vitter's algorithm R):
        harmless rounding at the start must not hide what goes wrong later.
        """
        self.differing += 1
        if len(self.kept) < _KEPT and self._kept_bytes < _KEPT_BYTES:
            self.kept.append((request, answer))
            self._kept_bytes += len(answer.body)
            return
        place = self._chance.randrange(self.differing)
        if place < len(self.kept):
            self._kept_bytes += len(answer.body) - len(self.kept[place][1].body)
            self.kept[place] = (request, answer)


@dataclass(slots=True)
class Control:
    """Shared by the load and its sender: the load sets ``stopped``, a worker sets ``lost``."""

    stopped: bool = False
    lost: bool = False


class Flight(Protocol):
    """Requests under way."""

    def answered(self) -> int:
        """Return how many requests the slowest worker has behind it."""

    def join(self) -> list[Record]:
        """Wait for the requests in flight (after ``stopped``) and return what was seen."""

    def abort(self) -> None:
        """End the requests in flight now; for an interruption."""


class Sender(Protocol):
    """Sends prepared requests."""

    def start(self, requests: Sequence[Request], concurrency: int, control: Control) -> Flight:
        """Keep ``concurrency`` requests in flight, taking turns, until ``control.stopped``."""


class ThreadSender:
    """One thread for each request in flight.

    Args:
        wire: The protocol.
        clock: Nanoseconds, monotonic.
    """

    def __init__(self, wire: Wire, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._wire = wire
        self._clock = clock

    def start(self, requests: Sequence[Request], concurrency: int, control: Control) -> Flight:
        """Start the threads; each sends its next request when the last is answered."""
        workers = [
            _Worker(self._wire.connect(), requests, first, control, self._clock)
            for first in range(concurrency)
        ]
        return _Threads(workers, self._wire)


class _Worker:
    def __init__(
        self,
        connection: Connection,
        requests: Sequence[Request],
        first: int,
        control: Control,
        clock: Callable[[], int],
    ) -> None:
        self.connection = connection
        self.record = Record()
        self.fault: BaseException | None = None
        self._requests = requests
        self._first = first
        self._control = control
        self._clock = clock

    def run(self) -> None:
        try:
            self._loop()
        except BaseException as exc:  # noqa: BLE001 - a bug in a thread; join raises it in the caller's
            self.fault = exc
            self._control.lost = True
        finally:
            self.connection.close()

    def _loop(self) -> None:
        requests, record, control, clock = self._requests, self.record, self._control, self._clock
        ready, exchange = self.connection.ready, self.connection.exchange
        index, broken = self._first % len(requests), 0
        while not control.stopped:
            ready()
            start_ns = clock()
            try:
                answer = exchange(requests[index].data)
            except RequestFailed as failure:
                record.fail(start_ns, clock(), failure)
                broken = broken + 1 if failure.kind == UNREACHABLE else 0
                if broken:
                    time.sleep(_PAUSE_S)
                control.lost |= broken >= _LOST_AFTER
            else:
                record.add(start_ns, clock(), 0)
                broken = 0
                alone = requests[index].alone
                if alone is not None and answer.body != alone:
                    record.differ(index, answer)
            index = (index + 1) % len(requests)


class _Threads:
    def __init__(self, workers: list[_Worker], wire: Wire) -> None:
        self._workers = workers
        self._wire = wire
        self._threads = [threading.Thread(target=worker.run, daemon=True) for worker in workers]
        for thread in self._threads:
            thread.start()

    def answered(self) -> int:
        """Return the number of requests of the worker that has the fewest."""
        return min(len(worker.record.kinds) for worker in self._workers)

    def join(self) -> list[Record]:
        """Wait for the threads; a bug in one is raised here."""
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            if worker.fault is not None:
                raise worker.fault
        return [worker.record for worker in self._workers]

    def abort(self) -> None:
        """Drop the connections under the waiting requests and let the threads end."""
        for worker in self._workers:
            worker.connection.close()
        self._wire.close()
        for thread in self._threads:
            thread.join(timeout=1.0)
