"""Folders that are copied whole into a model: nothing in them may be without an end, or written by tt."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

TreeError = Callable[[str, str], Exception]
"""Makes the error for a message and a hint."""

ignored_names = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
"""What is not taken along, as ``shutil.copytree`` wants it."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_tree(folder: Path, written: Iterable[Path], error: TreeError) -> None:
    """Check that a folder can be copied, following its links.

    Args:
        folder: An existing folder.
        written: Folders that a build or a deployment writes; they need not exist.
        error: Makes the error that is raised.

    Raises:
        Exception: ``error`` of a message that begins with what is wrong in the folder: it holds one of
            ``written`` or lies in it, or holds a link to nothing, a link that leads back to itself, or what
            is neither a file nor a folder.
    """
    real = Path(os.path.realpath(folder))
    outputs = {Path(os.path.realpath(path)) for path in written}
    for output in sorted(outputs):
        if real.is_relative_to(output):
            raise _written(f"the folder lies in {output}", error)
        if output.is_relative_to(real) and not _is_ignored(output.relative_to(real)):
            raise _written(f"the folder holds {output}", error)
    _Walk(outputs, error).check(folder, "", frozenset({real}))


def _is_ignored(path: Path) -> bool:
    return bool(ignored_names("", list(path.parts)))


def _written(message: str, error: TreeError) -> Exception:
    return error(
        f"{message}, which tt itself writes", "put the model's files into a folder of their own, beside it"
    )


class _Walk:
    def __init__(self, outputs: set[Path], error: TreeError) -> None:
        self._outputs = outputs
        self._error = error

    def check(self, folder: Path, prefix: str, above: frozenset[Path]) -> None:
        names = sorted(os.listdir(folder))
        ignored = ignored_names(str(folder), names)
        for name in (name for name in names if name not in ignored):
            path, shown = folder / name, f"{prefix}{name}"
            mode = self._mode(path, shown)
            if stat.S_ISDIR(mode):
                real = Path(os.path.realpath(path))
                if real in self._outputs:
                    raise _written(f"{shown} is a link to {real}", self._error)
                if real in above:
                    raise self._looped(shown)
                self.check(path, f"{shown}/", above | {real})
            elif not stat.S_ISREG(mode):
                kind = _KINDS.get(stat.S_IFMT(mode), "no file")
                raise self._error(f"{shown} is {kind}, which cannot be part of a model", "take it out")

    def _mode(self, path: Path, shown: str) -> int:
        try:
            return path.stat().st_mode
        except FileNotFoundError:
            target = os.readlink(path) if path.is_symlink() else "it has just gone"
            raise self._error(f"{shown} is a link to nothing ({target})", "mend or remove it") from None
        except OSError as exc:
            if path.is_symlink():
                raise self._looped(shown) from None
            raise self._error(f"{shown} cannot be read: {exc.strerror}", "look at its permissions") from None

    def _looped(self, shown: str) -> Exception:
        return self._error(f"{shown} is a link that leads back to itself", "remove it")
