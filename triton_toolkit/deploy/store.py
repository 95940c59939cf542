"""Where a server's model repository is: what the steps of a deployment need of it.

All of it is small: a step either happened or it did not, and has a counterpart that takes it back.
``local_store`` does it in a folder of this host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from triton_toolkit.deploy.lock import LockOwner
from triton_toolkit.deploy.source import BuiltModel
from triton_toolkit.repository.passport import Passport, Samples

CANDIDATE_PREFIX = "tt-candidate-"
"""Begins the name under which a new version is tried before anyone can ask for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a candidate becomes: kept with it, so that another process can take it back."""

    model: str
    version: int
    beside: tuple[str, ...]


class Store(Protocol):
    """A server's model repository.

    A *candidate* is a model folder under a name that no client knows: it is staged out of the
    server's sight, exposed to it, hidden again, and its version folder becomes the model's.
    """

    @property
    def location(self) -> str:
        """How messages name it."""

    def check_present(self) -> None:
        """Raise ``EnvironmentProblem`` unless there is something to read."""

    def check_usable(self) -> None:
        """Raise ``EnvironmentProblem`` unless it is there and can be written."""

    def check_replaceable(self, model: str, names: Sequence[str]) -> None:
        """Raise ``EnvironmentProblem`` unless these files of a model can be replaced, and put back."""

    def free_bytes(self) -> int:
        """Return how much more it can hold."""

    def lock(self, *, wait_s: float) -> contextlib.AbstractContextManager[LockOwner | None]:
        """Hold the store's lock; gives the dead owner whose lock was taken over, or None."""

    def lock_owner(self) -> LockOwner | None:
        """Return who holds the lock now."""

    def models(self) -> list[str]:
        """Return the names of the models, candidates left out."""

    def folders(self) -> list[str]:
        """Return the names of all folders that a server takes for models."""

    def probe(self) -> contextlib.AbstractContextManager[str]:
        """Put an empty folder where the server looks, for a moment; gives its name."""

    def versions(self, model: str) -> list[int]:
        """Return a model's version numbers, ascending."""

    def config_text(self, model: str) -> str | None:
        """Return a model's ``config.pbtxt``; None without."""

    def passport(self, model: str, version: int) -> Passport | None:
        """Return a version's passport; None without."""

    def samples(self, model: str, version: int) -> Samples | None:
        """Return a version's golden samples; None without."""

    def damage(self, model: str, version: int, passport: Passport) -> list[str]:
        """Return what differs between a version and its passport, in words."""

    def beside(self, model: str) -> dict[str, str]:
        """Return the files that are neither config nor version: relative path -> SHA-256."""

    def folder(self, model: str) -> Path:
        """Return a local folder with what lies there of a model."""

    def staged(self, candidate: str) -> Path:
        """Return the local folder of a staged candidate."""

    def stage(self, candidate: str, model: BuiltModel, version: int, config_text: str) -> None:
        """Copy a model as a candidate, where the server does not look."""

    def expose(self, candidate: str) -> None:
        """Put a staged candidate where the server looks."""

    def hide(self, candidate: str) -> None:
        """Take it back to where it was staged."""

    def discard(self, candidate: str) -> None:
        """Remove a candidate wherever it is; one that is not there is fine."""

    def candidates(self) -> list[str]:
        """Return the candidates that lie about; under the lock, those of dead deployments."""

    def publication(self, candidate: str) -> Publication | None:
        """Return what a candidate was staged for; None when its staging never ended."""

    def publish_version(self, candidate: str, model: str, version: int) -> None:
        """Make a candidate's version folder the model's, by one rename."""

    def publish_beside(self, candidate: str, model: str, names: Sequence[str]) -> None:
        """Make a candidate's label files, warm-up data and the like the model's, each by a rename."""

    def publish_config(self, candidate: str, model: str) -> None:
        """Make the staged ``config.pbtxt`` the model's, newer than all that the server may have seen."""

    def retract_version(self, candidate: str, model: str, version: int) -> None:
        """Take back ``publish_version``, done or not."""

    def retract_beside(self, candidate: str, model: str, names: Sequence[str]) -> None:
        """Take back ``publish_beside``, done wholly, in part or not at all."""

    def retract_config(self, candidate: str, model: str) -> None:
        """Take back ``publish_config``, done or not; the former config is newer than all again."""

    def touch(self, model: str) -> None:
        """Make the config newer than every file that the server may have seen."""

    def remove_version(self, model: str, version: int) -> None:
        """Remove a version folder."""

    def append_log(self, entry: Mapping[str, Any]) -> None:
        """Add one line to the deployment log."""

    def read_log(self) -> list[dict[str, Any]]:
        """Return the deployment log, oldest first."""
