"""The load of one probe: requests prepared once, steps measured, figures made from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from triton_toolkit._progress import Progress
from triton_toolkit.core.slo import Objective
from triton_toolkit.errors import RefusedError, ServerError
from triton_toolkit.probe.correctness import Checker, Reference
from triton_toolkit.probe.load import Step, Timing, run_closed_loop
from triton_toolkit.probe.model import LiveModel
from triton_toolkit.probe.payload import Payload
from triton_toolkit.probe.report import Run
from triton_toolkit.probe.senders import Request, ThreadSender
from triton_toolkit.probe.server_split import Counters, Statistics
from triton_toolkit.probe.summary import Context, histograms, summarise
from triton_toolkit.probe.verdict import percentile_share
from triton_toolkit.probe.wire import Wire


@dataclasses.dataclass(slots=True, kw_only=True)
class Session:
    """Measures steps of a load; a step that is measured again replaces the one before.

    Attributes:
        model: The model.
        checker: Judges the answers given under load.
        reference: What each payload gave alone.
        wire: The protocol.
        counters: The server's own figures; None where it gives none.
        batch_size: Rows a request.
        objectives: Whose percentiles are reported besides the usual ones.
        progress: Told about each step.
    """

    model: LiveModel
    checker: Checker
    reference: Reference
    wire: Wire
    counters: Counters | None
    batch_size: int
    objectives: Sequence[Objective]
    progress: Progress
    _requests: list[Request] = dataclasses.field(default_factory=list)
    _steps: dict[int, Step[Statistics | None]] = dataclasses.field(default_factory=dict)

    def prepare(self, payloads: Sequence[Payload]) -> None:
        """Make the bytes of those payloads whose answers alone are known."""
        known = zip(payloads, self.reference.alone, self.reference.expected, strict=False)
        self._requests = [
            # No answer equals b"": a model without repeatable answers gets all of them looked at.
            Request(self.wire.encode(payload.inputs), answer.body if expected is not None else b"")
            for payload, answer, expected in known
        ]

    def measure(self, concurrency: int, timing: Timing) -> None:
        """Run one step.

        Raises:
            ServerError: The server was lost in the middle.
        """
        again = "again, " if concurrency in self._steps else ""
        self.progress.step(
            self.model.name,
            f"concurrency {concurrency}: {again}{timing.warmup_s:g} s warm-up, then {timing.duration_s:g} s",
        )
        sender = ThreadSender(self.wire)
        try:
            step = run_closed_loop(sender, self._requests, concurrency, timing, self._snapshot)
        except ServerError as exc:
            raise type(exc)(
                f"the server was lost during the load at concurrency {concurrency}: {exc.message}",
                hint="look at the server's log; figures of a broken run are not shown",
            ) from exc
        self._steps[concurrency] = step

    def runs(self) -> list[Run]:
        """Return the figures of all steps."""
        shares = {item.metric: percentile_share(item.metric) for item in self.objectives}
        context = Context(
            model=self.model,
            batch_size=self.batch_size,
            percentiles={name: q for name, q in shares.items() if q is not None},
        )
        steps = list(self._steps.values())
        runs = [summarise(step, context, self.checker, self.reference, self.wire) for step in steps]
        shapes = histograms([step.sample() for step in steps])
        return [dataclasses.replace(run, histogram=shape) for run, shape in zip(runs, shapes, strict=True)]

    def _snapshot(self) -> Statistics | None:
        """Read the counters: None where the server gives none, {} while it has no such model."""
        if self.counters is None:
            return None
        try:
            return self.counters.read()
        except RefusedError:
            # Requests fail now too, and are counted; what was measured stays.
            return {}
