"""Rules on the model as a whole: backend, platform, versions, response cache, metrics.

Source, where a rule names a function: triton-inference-server/core, src/model_config_utils.cc; read at
commit 73aad7c and compared with Triton 2.51 as far as it can run here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.rule import Problem, rule

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_PLATFORMS = {
    "tensorrt": ("tensorrt_plan",),
    "onnxruntime": ("onnxruntime_onnx",),
    "pytorch": ("pytorch_libtorch", "torch_aoti"),
    "tensorflow": ("tensorflow_graphdef", "tensorflow_savedmodel"),
}
_FILES = {
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.pt2": "pytorch",
    "model.py": "python",
    "model.graphdef": "tensorflow",
    "model.savedmodel": "tensorflow",
}
_LABEL = re.compile(r"(?:[a-zA-Z0-9][a-zA-Z0-9_]*)?")


def backend_of(config: ModelConfig) -> str:
    """Return the backend that Triton takes for a config; "" where only the model's files can tell."""
    if config.backend:
        return str(config.backend)
    by_platform = {platform: backend for backend, names in _PLATFORMS.items() for platform in names}
    return by_platform.get(config.platform) or _FILES.get(config.default_model_filename, "")


def may_be_tensorrt(config: ModelConfig) -> bool:
    """Say whether the platform is ``tensorrt_plan``, or can still become it.

    Without platform and backend, a file ``model.plan`` in the version folder makes it that.
    """
    if config.platform:
        return bool(config.platform == "tensorrt_plan")
    return backend_of(config) in ("tensorrt", "")


@rule("model/max-batch-size", source="ValidateModelConfig")
def max_batch_size(config: ModelConfig) -> Iterator[Problem]:
    """Batch sizes count from 0, which means: no batch dimension."""
    if config.max_batch_size < 0:
        yield Problem(("max_batch_size",), f"{config.max_batch_size} is negative", "0 means no batching")


@rule("model/platform", source="AutoCompleteBackendFields, ValidateModelConfig")
def platform(config: ModelConfig) -> Iterator[Problem]:
    """Without a backend, the platform (or the file's name) must tell which backend to take."""
    if config.platform and config.platform != "ensemble" and not backend_of(config):
        known = ", ".join(name for names in _PLATFORMS.values() for name in names)
        yield Problem(
            ("platform",),
            f"{config.platform!r} names no backend that Triton knows",
            f"set backend instead; platforms: {known}, ensemble",
        )


@rule("model/backend-and-platform", source="ValidateModelConfig")
def backend_and_platform(config: ModelConfig) -> Iterator[Problem]:
    """A known backend goes with its own platforms, an ensemble with no backend at all."""
    backend = backend_of(config)
    allowed = _PLATFORMS.get(backend)
    if config.platform == "ensemble" and backend:
        yield Problem(("platform",), f"an ensemble has no backend, got {backend!r}", "leave backend out")
    elif allowed and config.platform and config.platform not in allowed:
        yield Problem(
            ("platform",),
            f"{config.platform!r} does not go with backend {backend!r}",
            f"leave platform out, or write {' or '.join(allowed)}",
        )


@rule("model/ensemble-without-steps", source="ValidateModelConfig")
def ensemble_without_steps(config: ModelConfig) -> Iterator[Problem]:
    """The platform ensemble needs its scheduler."""
    if config.platform == "ensemble" and not config.HasField("ensemble_scheduling"):
        yield Problem(("platform",), "an ensemble needs ensemble_scheduling with its steps")


@rule("model/version-policy", source="model_lifecycle.cc, VersionsToLoad")
def version_policy(config: ModelConfig) -> Iterator[Problem]:
    """A policy that selects no version leaves nothing to load."""
    policy = config.version_policy
    if policy.HasField("latest") and not policy.latest.num_versions:
        yield Problem(
            ("version_policy", "latest"), "serves the latest 0 versions, none at all", "set num_versions: 1"
        )
    if policy.HasField("specific") and not policy.specific.versions:
        yield Problem(("version_policy", "specific"), "names no version", "list them in versions")


@rule("model/response-cache", source="ValidateModelConfig")
def response_cache(config: ModelConfig) -> Iterator[Problem]:
    """The response cache works for stateless models with one response a request."""
    if not config.response_cache.enable:
        return
    if config.HasField("sequence_batching"):
        yield Problem(("response_cache", "enable"), "cannot be used with sequence_batching")
    if config.model_transaction_policy.decoupled:
        yield Problem(("response_cache", "enable"), "cannot be used with a decoupled model")


@rule(
    "model/metric-tags",
    source="Prometheus's rules for label names; seen on Triton 2.51, which ends with an uncaught exception",
    consequence="the whole server process ends, with all its models",
)
def metric_tags(config: ModelConfig) -> Iterator[Problem]:
    """A tag becomes the Prometheus label ``_<key>``, and a name with ``__`` in front is reserved."""
    for key in sorted(config.metric_tags):
        if not _LABEL.fullmatch(key):
            yield Problem(
                ("metric_tags", key),
                f"{key!r} cannot be a Prometheus label",
                "use ASCII letters, digits and underscores, not beginning with an underscore",
            )


@rule("model/metrics", source="ValidateModelMetrics; not in Triton 2.51, so not compared")
def model_metrics(config: ModelConfig) -> Iterator[Problem]:
    """A metric control says which family of metrics it changes, and how."""
    for index, control in enumerate(config.model_metrics.metric_control):
        path = ("model_metrics", "metric_control", index)
        if not control.metric_identifier.family:
            yield Problem((*path, "metric_identifier"), "names no metric family", "set family")
        if not control.HasField("histogram_options"):
            yield Problem(path, "changes nothing", "set histogram_options")
        elif not control.histogram_options.buckets:
            yield Problem((*path, "histogram_options"), "has no bucket", "list upper bounds in buckets")
