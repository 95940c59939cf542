"""Builders of the types that the probe's pure parts work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_toolkit.client.types import BatchStatistics, DurationStatistics, ModelStatistics
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.probe.correctness import Correctness
from triton_toolkit.probe.model import LiveModel
from triton_toolkit.probe.report import Run
from triton_toolkit.probe.server_split import PARTS, Split
from triton_toolkit.probe.stats import Estimate

Make = Callable[..., Any]


def _tensor(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype=DataType.parse(dtype), shape=shape)


@pytest.fixture
def tensor() -> Make:
    return _tensor


@pytest.fixture
def live_model() -> Make:
    """Return a function that makes a model; batched with two inputs unless told otherwise."""

    def make(**changes: Any) -> LiveModel:
        values: dict[str, Any] = {
            "name": "bert",
            "version": "",
            "versions": ("1",),
            "inputs": (_tensor("ids", "int64", "batch", "ids_1"), _tensor("mask", "fp32", "batch", "mask_1")),
            "outputs": (_tensor("logits", "fp32", "batch", 2),),
            "max_batch_size": 8,
            "optional": frozenset(),
            "config": ModelConfig(name="bert", max_batch_size=8),
        }
        return LiveModel(**{**values, **changes})

    return make


@pytest.fixture
def config() -> Callable[[str], ModelConfig]:
    """Return a function that parses the text of a config."""
    return lambda text: text_format.Parse(text, ModelConfig())


@pytest.fixture
def statistics() -> Make:
    """Return a function that makes counters: ``requests`` each of these mean times in us."""

    def make(requests: int, *, us: float = 100.0, batches: dict[int, int] | None = None, **more: Any) -> Any:
        def duration(mean_us: float) -> DurationStatistics:
            return DurationStatistics(count=requests, ns=int(requests * mean_us * 1000))

        def executions(size: int, count: int) -> BatchStatistics:
            each = DurationStatistics(count=count, ns=count)
            return BatchStatistics(
                batch_size=size, compute_input=each, compute_infer=each, compute_output=each
            )

        sizes = {1: requests} if batches is None else batches
        values: dict[str, Any] = {
            "name": "bert",
            "version": "1",
            "last_inference_ms": 0,
            "inference_count": requests,
            "execution_count": requests,
            "success": duration(4 * us),
            "fail": DurationStatistics(),
            **{part: duration(us) for part in PARTS},
            "cache_hit": DurationStatistics(),
            "cache_miss": DurationStatistics(),
            "batch_stats": tuple(executions(size, count) for size, count in sizes.items()),
        }
        return ModelStatistics(**{**values, **more})

    return make


@pytest.fixture
def correctness() -> Make:
    def make(**changes: Any) -> Correctness:
        values: dict[str, Any] = {
            "golden": "",
            "missing": "none was given",
            "tolerance": {},
            "checks": (),
            "problems": (),
            "differences": (),
            "deterministic": True,
            "requests": 10,
            "failures": {},
        }
        return Correctness(**{**values, **changes})

    return make


@pytest.fixture
def run() -> Make:
    """Return a function that makes a step: 1,000 requests in 5 s, p99 9 ms (8 to 10)."""

    def make(**changes: Any) -> Run:
        split = Split(
            requests=1000, failed=0, request_us=900.0, us=dict.fromkeys(PARTS, 200.0),
            batch_sizes={1: 1000}, cache_hits=0,
        )  # fmt: skip
        values: dict[str, Any] = {
            "concurrency": 1,
            "batch_size": 1,
            "duration_s": 5.0,
            "measured_s": 5.0,
            "warmup_s": 1.0,
            "requests": 1000,
            "samples": 1000,
            "latency_ms": {
                "p50": Estimate(value=4, low=3.9, high=4.1),
                "p99": Estimate(value=9, low=8, high=10),
            },
            "mean_ms": Estimate(value=4.5, low=4.4, high=4.6),
            "max_ms": 30.0,
            "dependence": 1.0,
            "throughput": Estimate(value=200, low=190, high=210),
            "errors": {},
            "error_texts": {},
            "split": split,
        }
        return Run(**{**values, **changes})

    return make
