"""What a deployment did, as frozen types that become JSON."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from triton_toolkit.core.compare import Difference


class Action(enum.Enum):
    """What a deployment has to do to a model."""

    PUBLISH = "publish"
    """Put a new version on the target."""
    LOAD = "load"
    """The same content lies on the target already, but is not served."""
    VERIFY = "verify"
    """The same content is served already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of a deployment: ``outcome`` is done, failed, undone, or "not undone: why"."""

    step: str
    subject: str
    outcome: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "step": self.step,
            "subject": self.subject,
            "outcome": self.outcome,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """What was (or would be) done to one model.

    ``files`` and ``bytes`` count what is copied; ``golden`` holds one comparison an output of the
    served answer with the passport's sample, and is empty where the sample has no outputs or there
    is none: then ``checked`` is False.
    """

    name: str
    action: Action
    version: int
    previous: tuple[int, ...]
    built_version: int
    files: int
    bytes: int
    golden: tuple[Difference, ...] = ()
    pruned: tuple[int, ...] = ()

    @property
    def checked(self) -> bool:
        """Whether an output of the served answer was compared."""
        return bool(self.golden)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "action": self.action.value,
            "version": self.version,
            "previous": list(self.previous),
            "built_version": self.built_version,
            "files": self.files,
            "bytes": self.bytes,
            "checked": self.checked,
            "golden": [difference.as_dict() for difference in self.golden],
            "pruned": list(self.pruned),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployReport:
    """A deployment that ended well, or its plan.

    ``verdict`` is deployed, already deployed, or planned; ``calls`` lists the control calls in
    order; ``notes`` what somebody should know (a check that could not be made, a lock taken over).
    ``ready`` is the server's readiness after the deployment, None where nothing was deployed.
    """

    target: str
    store: str
    url: str
    server_version: str
    verdict: str
    models: tuple[ModelResult, ...]
    steps: tuple[StepRecord, ...] = ()
    calls: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ready: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "target": self.target,
            "store": self.store,
            "url": self.url,
            "server_version": self.server_version,
            "verdict": self.verdict,
            "ready": self.ready,
            "models": [model.as_dict() for model in self.models],
            "steps": [step.as_dict() for step in self.steps],
            "calls": list(self.calls),
            "notes": list(self.notes),
        }
