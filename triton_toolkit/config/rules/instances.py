"""Rules on instance groups, as far as they need no host.

Source: triton-inference-server/core, src/model_config_utils.cc, ValidateInstanceGroup; read at commit
73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.model import may_be_tensorrt
from triton_toolkit.config.rules.rule import Problem, Severity, rule

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@rule("instances/gpus", source="ValidateInstanceGroup")
def gpus(config: ModelConfig) -> Iterator[Problem]:
    """GPUs are for instances on GPUs."""
    for index, group in enumerate(config.instance_group):
        if group.gpus and group.kind in (group.KIND_CPU, group.KIND_MODEL):
            kind = group.Kind.Name(group.kind)
            path = ("instance_group", index, "gpus")
            yield Problem(path, f"cannot be given with {kind}", "leave gpus out, or use KIND_GPU")


@rule("instances/profile", source="ValidateInstanceGroup; the TensorRT side read, not run")
def profiles(config: ModelConfig) -> Iterator[Problem]:
    """Optimization profiles are TensorRT's, by number."""
    for index, group in enumerate(config.instance_group):
        path = ("instance_group", index, "profile")
        if group.profile and not may_be_tensorrt(config):
            yield Problem(path, "is for the TensorRT backend only")
        for position, profile in enumerate(group.profile):
            if not profile.isdecimal():
                yield Problem((*path, position), f"{profile!r} is not the number of a profile")


@rule(
    "instances/count",
    source="NormalizeInstanceGroup; seen on Triton 2.51",
    severity=Severity.WARNING,
    consequence="Triton takes its own default instead",
)
def counts(config: ModelConfig) -> Iterator[Problem]:
    """A negative count is no count."""
    for index, group in enumerate(config.instance_group):
        if group.count < 0:
            yield Problem(("instance_group", index, "count"), f"{group.count} is negative")
