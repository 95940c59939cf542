"""One heavy stage of one model, asked of the cache before it is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from triton_toolkit._machine import look_at_host
from triton_toolkit._progress import Progress
from triton_toolkit.build.packages import imported_packages
from triton_toolkit.build.recipe import Context, states_read
from triton_toolkit.repository.passport import MISSING


class Report(Protocol):
    """What a stage reports; ``log``, where it has one, is not kept: it may hold anything."""

    @property
    def dependencies(self) -> Sequence[str]:
        """The files of the project that were read."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""


R = TypeVar("R", bound=Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Generic[R]):
    """A stage of one model.

    Attributes:
        name: Of the stage: export, optimise.
        model: Name of the model, for messages.
        key: Returns what the stage knows beforehand that it depends on. Asked twice: what changes while
            the stage runs is not kept.
        run: Fills the folder and returns the report.
        read: Makes a report of what ``as_dict`` gave.
        result: What it makes, in words, for messages; its name where left out.
    """

    name: str
    model: str
    key: Callable[[], Mapping[str, str]]
    run: Callable[[], R]
    read: Callable[[Mapping[str, Any]], R]
    result: str = ""


def run_stage(context: Context, stage: Stage[R], folder: Path, progress: Progress) -> R:
    """Fill an empty folder from the cache, or by running the stage and keeping what it made.

    Raises:
        TritonToolkitError: What the stage raises; a cache that fails raises nothing.
    """
    if context.cache is None:
        return stage.run()
    key, started = dict(stage.key()), time.time()
    found = context.cache.fetch(stage.name, key, folder)
    if found is not None:
        progress.note(stage.model, f"{stage.result or stage.name} taken from the cache")
        return stage.read(found)
    report = stage.run()
    root = context.project.root
    hashes = states_read(root, report.dependencies)
    if all_untouched(root, hashes, started) and stage.key() == key:
        value = {**report.as_dict(), "log": ""} if "log" in report.as_dict() else report.as_dict()
        hashes |= packages_of(context, stage.model, report.dependencies)
        context.cache.store(stage.name, key, hashes, folder, value)
    return report


def packages_of(context: Context, model: str, files: Iterable[str]) -> dict[str, str]:
    """Return the packages that a model's files import; {} where its environment is part of its key."""
    if context.project.model(model).env is not None:
        return {}
    return imported_packages(context.project.root, files)


def processor() -> str:
    """Return the name and the instruction sets of the processor, which figures of speed depend on."""
    host = look_at_host()
    return " ".join((host.cpu, *host.cpu_flags))


def all_untouched(root: Path, states: Mapping[str, str], since: float) -> bool:
    """Say whether files are as they were at a time: there and untouched, or missing and still so."""
    return all(
        not (root / name).exists() if state == MISSING else untouched(root / name, since)
        for name, state in states.items()
    )


def untouched(path: Path, since: float) -> bool:
    """Say whether a file is there and neither its content nor its name has changed since a time."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return max(found.st_mtime, found.st_ctime) <= since
