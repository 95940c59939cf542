"""All rules, and the one function that runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_toolkit.config.rules import batching, ensemble, instances, model, sequence, tensors, warmup
from triton_toolkit.config.rules.rule import Finding, Rule, Severity

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

__all__ = ["RULES", "Finding", "Rule", "Severity", "check_config"]

RULES: tuple[Rule, ...] = tuple(
    item
    for module in (model, tensors, batching, sequence, ensemble, instances, warmup)
    for item in vars(module).values()
    if isinstance(item, Rule)
)


def check_config(message: ModelConfig) -> list[Finding]:
    """Return what breaks a rule, in the order of the rules; [] for a config without fault.

    Args:
        message: The config as written, before the server or a backend completes it.
    """
    return [
        Finding(
            rule=rule.id,
            path=problem.path,
            message=problem.message,
            hint=problem.hint,
            severity=rule.severity,
            consequence=rule.consequence,
        )
        for rule in RULES
        for problem in rule.check(message)
    ]
