"""What Triton refuses when it loads a model, checked on the ModelConfig before any server sees it.

One function a rule, grouped by the part of the config that it looks at; each names its source. Rules
see the config as written: what depends on the model's files, on the host's GPUs or on other models is
not theirs. The tests send one config a rule to the real server and compare the verdicts.
"""

from __future__ import annotations

from triton_toolkit.config.rules.registry import RULES, Finding, Rule, Severity, check_config

__all__ = ["RULES", "Finding", "Rule", "Severity", "check_config"]
