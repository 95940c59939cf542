"""Where the time went inside the server: differences of its own counters over a run.

Triton counts for each model how long requests queued and computed, and how often each batch size
was executed. The counters only grow, so the difference of two readings describes what happened in
between - whoever sent it.

Source: Triton "Statistics Extension" of the inference protocol; durations are summed over requests,
so a mean a request is the sum over its own count (a count of executions would be off by the batch
size). An ensemble's own queue and compute counters describe nothing: its steps' are read instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit.client.types import BatchStatistics, DurationStatistics, ModelStatistics
from triton_toolkit.errors import RefusedError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from triton_toolkit.client.triton import TritonClient
    from triton_toolkit.probe.model import LiveModel

PARTS = ("queue", "compute_input", "compute_infer", "compute_output")

_NEARLY = 0.9

Statistics = dict[str, ModelStatistics]
"""The probed model's counters under its own name, an ensemble's steps under theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What the server's counters say about a span.

    Attributes:
        requests: Requests that the server answered well, from any client.
        failed: Requests that it refused or that failed.
        request_us: Mean time in the server, in microseconds; None without a request.
        us: Mean of queue, compute_input, compute_infer and compute_output a request, likewise.
        batch_sizes: Rows of an execution -> how many executions had that many.
        cache_hits: Requests answered from the response cache.
        steps: For an ensemble, the same of each step's model; ``us`` is then their sum.
    """

    requests: int
    failed: int
    request_us: float | None
    us: dict[str, float | None]
    batch_sizes: dict[int, int]
    cache_hits: int
    steps: dict[str, Split] = field(default_factory=dict)

    def mean_batch(self) -> float | None:
        """Return the mean rows an execution, None without one."""
        executions = sum(self.batch_sizes.values())
        return sum(size * n for size, n in self.batch_sizes.items()) / executions if executions else None

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report."""
        value: dict[str, Any] = {
            "requests": self.requests,
            "failed": self.failed,
            "request_us": _short(self.request_us),
            "server_us": {part: _short(mean) for part, mean in self.us.items()},
            "batch_sizes": {str(size): count for size, count in self.batch_sizes.items()},
            "cache_hits": self.cache_hits,
        }
        if self.steps:
            value["steps"] = {name: step.as_dict() for name, step in self.steps.items()}
        return value


class Counters:
    """Reads the counters of a model, and of the steps of an ensemble (of ensembles too).

    Args:
        client: The server.
        model: The model. Where it names no version, the highest that is loaded is read.
    """

    def __init__(self, client: TritonClient, model: LiveModel) -> None:
        self._client = client
        self._name = model.name
        self._version = model.version
        self._steps = step_models(client, model.config)

    def read(self) -> Statistics:
        """Return the counters now; a step whose counters the server does not give is left out.

        Raises:
            ServerError: The server cannot be reached, or its statistics are restricted.
            RefusedError: It has no such model any more.
        """
        found = {self._name: self._client.statistics(self._name, self._version)}
        for name in self._steps:
            with contextlib.suppress(RefusedError):
                found[name] = self._client.statistics(name)
        return found


def step_models(client: TritonClient, config: ModelConfig) -> list[str]:
    """Return the models that an ensemble runs, in order, each once; ensembles inside are resolved."""
    names: dict[str, None] = {}
    for step in config.ensemble_scheduling.step:
        try:
            inner = step_models(client, client.model_config(step.model_name))
        except RefusedError:
            inner = []
        names.update(dict.fromkeys(inner or [step.model_name]))
    return list(names)


def split(name: str, before: Statistics, after: Statistics) -> Split:
    """Return what happened to model ``name`` between two readings, neither of which is after a reload."""
    steps = {
        step: _difference(before[step], after[step]) for step in after if step != name and step in before
    }
    own = _difference(before[name], after[name])
    if not steps:
        return own
    return Split(
        requests=own.requests,
        failed=own.failed,
        request_us=own.request_us,
        us=_sum_of_steps(own, list(steps.values())),
        batch_sizes=own.batch_sizes,
        cache_hits=own.cache_hits,
        steps=steps,
    )


def started_anew(before: Statistics, after: Statistics, answered: int) -> str:
    """Say which model's counters cannot be subtracted, as they began at 0 between two readings; or "".

    They do when a model is reloaded or another version takes over. A new count may have passed the old
    one since, but then it shows fewer answers than this client alone had.

    Args:
        before: A reading; the probed model first.
        after: A later one.
        answered: Good answers that this client had of the probed model in between.
    """
    for name, earlier in before.items():
        later = after.get(name)
        if later is None or later.version != earlier.version or later.success.count < earlier.success.count:
            return name
    name = next(iter(before))
    return name if after[name].success.count - before[name].success.count < answered else ""


def _difference(before: ModelStatistics, after: ModelStatistics) -> Split:
    success = after.success - before.success
    return Split(
        requests=success.count,
        failed=(after.fail - before.fail).count,
        request_us=_mean(success),
        us={part: _mean(getattr(after, part) - getattr(before, part)) for part in PARTS},
        batch_sizes=_executions(before.batch_stats, after.batch_stats),
        cache_hits=(after.cache_hit - before.cache_hit).count,
    )


def _executions(before: Sequence[BatchStatistics], after: Sequence[BatchStatistics]) -> dict[int, int]:
    earlier = {item.batch_size: item.compute_infer.count for item in before}
    counts = {
        item.batch_size: item.compute_infer.count - earlier.get(item.batch_size, 0)
        for item in sorted(after, key=lambda entry: entry.batch_size)
    }
    return {size: count for size, count in counts.items() if count}


def _sum_of_steps(own: Split, steps: Sequence[Split]) -> dict[str, float | None]:
    """Return each part's mean a request of the ensemble, over all steps; a step may run more than once."""
    if not own.requests:
        return dict.fromkeys(PARTS)
    return {
        part: sum((step.us[part] or 0.0) * step.requests for step in steps) / own.requests for part in PARTS
    }


def why_not_larger(config: ModelConfig, concurrency: int, batch_size: int, formed: Mapping[int, int]) -> str:
    """Say in one sentence what kept the server's batches from being larger; empty where nothing did.

    Args:
        config: The model's config as the server runs it.
        concurrency: Requests in flight.
        batch_size: Rows a request.
        formed: Rows of an execution -> executions.
    """
    if not formed or config.HasField("ensemble_scheduling"):
        return ""
    off = _why_off(config)
    if off:
        return off
    limit, rows = config.max_batch_size, concurrency * batch_size
    mean = sum(size * count for size, count in formed.items()) / sum(formed.values())
    if mean >= _NEARLY * limit:
        return f"batches are as large as max_batch_size {limit} allows"
    if concurrency == 1:
        return "with one request in flight there is nothing to put together"
    if mean >= _NEARLY * rows:
        return f"nearly all {rows} rows in flight were together: more concurrency would fill larger batches"
    return _what_split_them(config, rows, max(formed))


def _why_off(config: ModelConfig) -> str:
    if config.max_batch_size == 0:
        return "Triton does not batch this model (max_batch_size 0)"
    if not config.HasField("dynamic_batching"):
        return "dynamic batching is off in the model's config: each request runs by itself"
    return ""


def _what_split_them(config: ModelConfig, rows: int, largest: int) -> str:
    batching = config.dynamic_batching
    preferred = sorted(size for size in batching.preferred_batch_size if size < config.max_batch_size)
    if largest in preferred and largest < rows:
        return f"the batcher stops at the preferred size {largest}"
    instances = sum(max(group.count, 1) * max(len(group.gpus), 1) for group in config.instance_group)
    if instances > 1:
        return f"{instances} instances share the {rows} rows in flight"
    delay_us = batching.max_queue_delay_microseconds
    if delay_us == 0:
        return "max_queue_delay is 0: a batch is what is waiting when the instance gets free"
    return f"max_queue_delay {delay_us} us was over before more requests came"


def _mean(duration: DurationStatistics) -> float | None:
    return duration.mean_us if duration.count else None


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
