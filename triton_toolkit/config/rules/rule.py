"""What a rule is, and what it finds."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from triton_toolkit.spec.source import KeyPath, format_path

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

REFUSED = "Triton refuses to load the model"


class Severity(enum.Enum):
    """How sure it is that the config fails."""

    ERROR = "error"
    """The server does not load the model, whatever its files and its backend."""
    WARNING = "warning"
    """The server loads it, and it does not do what it seems to say."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One place that breaks a rule: the key, what is wrong there, and what to do."""

    path: KeyPath
    message: str
    hint: str = ""


Check = Callable[["ModelConfig"], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A check with its name, its source, and what happens to who breaks it."""

    id: str
    source: str
    severity: Severity
    consequence: str
    check: Check


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule at a place of a config.

    Attributes:
        rule: Its id, such as ``batching/preferred-size``.
        path: Fields and list positions from the top of the config; tensors by name.
        message: What is wrong there.
        hint: What to do, or empty.
        severity: Whether the server refuses it for certain.
        consequence: What the server does.
    """

    rule: str
    path: KeyPath
    message: str
    hint: str
    severity: Severity
    consequence: str

    def __str__(self) -> str:
        """Return place, problem and consequence on one line."""
        return f"{format_path(self.path)}: {self.message} ({self.consequence})"


def rule(
    name: str, *, source: str, severity: Severity = Severity.ERROR, consequence: str = REFUSED
) -> Callable[[Check], Rule]:
    """Make a rule of a function that yields the places where a config breaks it."""

    def make(check: Check) -> Rule:
        return Rule(id=name, source=source, severity=severity, consequence=consequence, check=check)

    return make
