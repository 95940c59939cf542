"""What stays of the child process of a step: its log, and after a crash a folder that runs it again.

Both lie below ``.tt`` in the project. Neither may fail the step: where they cannot be written (a full disk,
a project that is read-only) there are none.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from triton_toolkit import __version__
from triton_toolkit._workspace import CRASHES_NAME, LOGS_NAME, make_workspace

KEPT_CRASHES = 5
"""Folders of crashes that are kept, the latest ones: they may hold models."""

_SCRIPT = """\
#!/bin/sh
# Runs again what crashed: {what}.
# It ended with {how}; log.txt is what it printed. Made by tt {version}.
# Variables that your own code reads from the environment are not in here.
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
out=$(mktemp -d)
echo "the step writes into $out" >&2
cd -- {root} || exit
exec env {variables} {command}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a child process is run.

    Attributes:
        argv: Its words; ``job`` and ``out`` are among them.
        job: The file that tells it what to do.
        out: The folder that it fills.
        variables: What was set in its environment on top of ours.
        inputs: Folders that the job names and that are gone after the step.
    """

    argv: Sequence[str]
    job: Path
    out: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Sequence[Path] = ()


class StepRecord:
    """The log of one step; the one of the last run is kept.

    Args:
        root: The project's folder.
        model: Name of the model; a step without one has no log.
        stage: Name of the stage, such as export.
    """

    def __init__(self, root: Path, model: str, stage: str) -> None:
        self._root = root
        self._model = model
        self._stage = stage
        self._started = time.monotonic()
        self._file: TextIO | None = None
        self.path = root / LOGS_NAME / model / f"{stage}.log" if model else None

    def __enter__(self) -> Self:
        if self.path is not None:
            try:
                make_workspace(self._root)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="replace")
            except OSError:
                self.path = None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.write(f"# {self._stage} of {self._model}, {now}, tt {__version__}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        how = "interrupted" if kind is not None and not issubclass(kind, Exception) else "ended"
        self.write(f"# {how} after {time.monotonic() - self._started:.1f} s\n")
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()

    def write(self, text: str) -> None:
        """Add to the log, at once: a step may be killed."""
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def keep_crash(self, command: Command, how: str) -> str:
        """Put what runs the step again into a folder of its own; return a sentence on it, for a hint."""
        model = f"{self._model}-" if self._model else ""
        name = f"{model}{self._stage}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')}"
        try:
            crashes = make_workspace(self._root) / Path(CRASHES_NAME).name
            script = self._fill(crashes / name, command, how)
            for older in sorted(crashes.iterdir(), key=_written)[:-KEPT_CRASHES]:
                shutil.rmtree(older, ignore_errors=True)
        except OSError as exc:
            return f"nothing could be kept to run it again: {exc.strerror}"
        return f"run it again with: {shown_path(script)}"

    def _fill(self, folder: Path, command: Command, how: str) -> Path:
        folder.mkdir(parents=True)
        job = command.job.read_text(encoding="utf-8")
        for source in command.inputs:
            shutil.copytree(source, folder / source.name)
            job = job.replace(str(source), str(folder / source.name))
        (folder / "job.json").write_text(job, encoding="utf-8")
        if self.path is not None:
            shutil.copyfile(self.path, folder / "log.txt")
        script = folder / "reproduce.sh"
        script.write_text(self._script(command, how), encoding="utf-8")
        script.chmod(0o755)
        return script

    def _script(self, command: Command, how: str) -> str:
        special = {str(command.job): '"$here"/job.json', str(command.out): '"$out"'}
        words = [special.get(word) or shlex.quote(word) for word in command.argv]
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(command.variables.items())]
        return _SCRIPT.format(
            what=f"{self._stage} of {self._model}" if self._model else self._stage,
            how=how,
            version=__version__,
            root=shlex.quote(str(self._root)),
            variables=" ".join(variables),
            command=" ".join(words),
        )


def shown_path(path: Path) -> str:
    """Return a path as a user can type it: relative where it is below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def _written(folder: Path) -> float:
    return folder.stat().st_mtime
