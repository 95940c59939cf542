"""What a server tells about itself and its models, as frozen types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import TensorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A server's name, version (``2.51.0``) and protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One line of the repository index.

    ``state`` is READY, UNAVAILABLE, LOADING or UNLOADING, and empty (with an empty ``version``)
    for a folder that was never loaded.
    """

    name: str
    version: str
    state: str
    reason: str

    @property
    def ready(self) -> bool:
        """Whether this version answers requests."""
        return self.state == "READY"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """A model's tensors as the server declares them, batch dimension included.

    A dynamic dimension has a name: ``batch`` for axis 0 of a model that Triton batches, else
    ``<tensor>_<axis>``.
    """

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationStatistics:
    """How often something happened and how long it took altogether."""

    count: int = 0
    ns: int = 0

    @property
    def mean_us(self) -> float:
        """Mean duration in microseconds; 0 when it never happened."""
        return self.ns / self.count / 1e3 if self.count else 0.0

    def __sub__(self, earlier: DurationStatistics) -> DurationStatistics:
        return DurationStatistics(count=self.count - earlier.count, ns=self.ns - earlier.ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Executions of one batch size, as the batcher formed them."""

    batch_size: int
    compute_input: DurationStatistics
    compute_infer: DurationStatistics
    compute_output: DurationStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """Counters of one model version since it was loaded (a reload sets them to zero).

    ``inference_count`` counts samples (a batch of 8 counts 8), ``execution_count`` counts runs of
    the model. ``last_inference_ms`` is milliseconds since the epoch, 0 before the first. For an
    ensemble, queue and compute figures describe nothing useful.

    Source: Triton "Statistics Extension" of the inference protocol.
    """

    name: str
    version: str
    last_inference_ms: int
    inference_count: int
    execution_count: int
    success: DurationStatistics
    fail: DurationStatistics
    queue: DurationStatistics
    compute_input: DurationStatistics
    compute_infer: DurationStatistics
    compute_output: DurationStatistics
    cache_hit: DurationStatistics
    cache_miss: DurationStatistics
    batch_stats: tuple[BatchStatistics, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferResult:
    """Outputs by name (read-only arrays; BYTES as object arrays of bytes) and the version that answered."""

    model_name: str
    model_version: str
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)
