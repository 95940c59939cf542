"""One request at a time: the first of all, and those whose answers the load's are held against."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from triton_toolkit.probe.wire import TIMEOUT, UNREACHABLE, Answer, Destination, RequestFailed, Wire, refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from triton_toolkit.client.types import InferResult

_ATTEMPTS = 5
_FINAL = (TIMEOUT, UNREACHABLE, "invalid_argument", "not_found", "unimplemented", "unauthenticated")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came, what it says, and how long it took."""

    answer: Answer
    result: InferResult
    latency_ms: float


class Single:
    """A connection that carries one request at a time, outside any load.

    A model that fails now and then is asked again (up to five times), and each failure is counted:
    whether so many are acceptable is the verdict's business.
    """

    def __init__(self, wire: Wire, destination: Destination) -> None:
        self._wire = wire
        self._destination = destination
        self._connection = wire.connect()
        self.failures: Counter[str] = Counter()
        self.texts: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Connect; no request is timed together with its connection."""
        self._connection.ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Drop the connection."""
        self._connection.close()

    def ask(self, inputs: Mapping[str, NDArray[Any]]) -> Reply:
        """Send one request and read its answer.

        Raises:
            ServerError: The server cannot be reached, or did not answer in time.
            RefusedError: It refuses the request, or the model failed five times running.
        """
        request = self._wire.encode(inputs)
        for _ in range(_ATTEMPTS):
            try:
                return self._exchange(request)
            except RequestFailed as failure:
                if failure.kind in _FINAL:
                    raise refused(failure, self._destination) from failure
                self.failures[failure.kind] += 1
                self.texts.setdefault(failure.kind, failure.text)
                last = failure
        raise refused(last, self._destination) from last

    def _exchange(self, request: bytes) -> Reply:
        self._connection.ready()
        start_ns = time.perf_counter_ns()
        answer = self._connection.exchange(request)
        latency_ms = (time.perf_counter_ns() - start_ns) / 1e6
        return Reply(answer, self._wire.decode(answer), latency_ms)
