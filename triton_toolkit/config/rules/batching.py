"""Rules on the dynamic batcher.

Source: triton-inference-server/core, src/model_config_utils.cc, ValidateModelConfig; read at commit
73aad7c and compared with Triton 2.51.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from triton_toolkit.config.rules.rule import Problem, Severity, rule
from triton_toolkit.spec.source import KeyPath

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy


def preferred_size_problems(path: KeyPath, sizes: Sequence[int], largest: int) -> Iterator[Problem]:
    """Yield what is wrong with preferred batch sizes: each is 1 to ``largest`` (max_batch_size)."""
    for index, size in enumerate(sizes):
        at = (*path, "preferred_batch_size", index)
        if size < 1:
            yield Problem(at, f"{size} is not a batch size", "at least 1")
        elif size > largest:
            yield Problem(
                at, f"{size} is above max_batch_size {largest}", "lower it, or raise max_batch_size"
            )


@rule("batching/preferred-size", source="ValidateModelConfig")
def preferred_sizes(config: ModelConfig) -> Iterator[Problem]:
    """Checked before a backend completes max_batch_size, so leaving that out does not help."""
    batching = config.dynamic_batching
    yield from preferred_size_problems(
        ("dynamic_batching",), batching.preferred_batch_size, config.max_batch_size
    )


@rule("batching/priority-level", source="ValidateModelConfig")
def priority_levels(config: ModelConfig) -> Iterator[Problem]:
    """Where there are levels, a request without one needs a default, and policies need a level."""
    batching = config.dynamic_batching
    levels = batching.priority_levels
    if not levels:
        return
    path = ("dynamic_batching",)
    default = batching.default_priority_level
    if not 1 <= default <= levels:
        yield Problem(
            (*path, "default_priority_level"), f"{default} is not one of the levels 1 to {levels}", "set it"
        )
    for level in sorted(batching.priority_queue_policy):
        if not 1 <= level <= levels:
            yield Problem(
                (*path, "priority_queue_policy", str(level)),
                f"{level} is not one of the levels 1 to {levels}",
            )


@rule("batching/ordering", source="ValidateModelConfig")
def ordering(config: ModelConfig) -> Iterator[Problem]:
    """Responses in request order leave no room for overtaking or postponing."""
    batching = config.dynamic_batching
    if not batching.preserve_ordering:
        return
    path = ("dynamic_batching",)
    if batching.priority_levels > 1:
        yield Problem(
            (*path, "priority_levels"),
            f"{batching.priority_levels} levels cannot be served with preserve_ordering",
            "leave one of the two out",
        )
    policies: list[tuple[KeyPath, ModelQueuePolicy]] = [
        ((*path, "default_queue_policy"), batching.default_queue_policy)
    ]
    policies += [
        ((*path, "priority_queue_policy", str(level)), policy)
        for level, policy in sorted(batching.priority_queue_policy.items())
    ]
    for at, policy in policies:
        if policy.timeout_action == policy.DELAY and policy.default_timeout_microseconds:
            yield Problem(
                (*at, "timeout_action"),
                "DELAY cannot be used with preserve_ordering",
                "use REJECT, or leave preserve_ordering out",
            )


@rule(
    "batching/without-batch-dimension",
    source="seen on Triton 2.51",
    severity=Severity.WARNING,
    consequence="Triton loads the model and never batches",
)
def without_batch_dimension(config: ModelConfig) -> Iterator[Problem]:
    """Dynamic batching batches over a batch dimension, which max_batch_size 0 says there is none."""
    if config.HasField("dynamic_batching") and not config.max_batch_size:
        yield Problem(("dynamic_batching",), "has nothing to batch: max_batch_size is 0", "name a batch_dim")
