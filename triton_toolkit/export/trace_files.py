"""Which files of the project the user's code reads: they decide when a build is stale.

Two sources: an audit hook that sees every open() of Python, and the modules that are loaded in
the end (a module read from its ``.pyc`` never opens the ``.py``). Files that native code opens
itself are not seen; the spec's ``hashed`` names those.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".svn", "__pycache__", "site-packages", "node_modules"})
_PACKAGE = Path(__file__).resolve().parents[1]

NATIVE_READERS = frozenset({"safetensors", "h5py", "tokenizers", "sentencepiece"})
"""Packages that open files in native code, where no audit hook sees it."""


class ProjectFiles:
    """Decides which paths are the project's own: below its root, and not made by tools.

    Version control, caches, virtual environments, the folders in ``ignored`` and this package
    itself (its version is part of every cache key) are not.
    """

    def __init__(self, root: Path, ignored: Sequence[str] = ()) -> None:
        self.root = root.resolve()
        self.ignored = tuple(ignored)
        self._ignored = [self.root / name for name in ignored]
        self._environments: dict[Path, bool] = {}

    def relative(self, path: str | os.PathLike[str]) -> str | None:
        """Return the path relative to the root with ``/``, None where it is not the project's."""
        absolute = Path(os.path.abspath(path))
        if not absolute.is_relative_to(self.root):
            absolute = Path(os.path.realpath(path))
        if not absolute.is_relative_to(self.root) or absolute.is_relative_to(_PACKAGE):
            return None
        if any(absolute.is_relative_to(folder) for folder in self._ignored):
            return None
        inner = absolute.relative_to(self.root)
        if _SKIPPED_FOLDERS.intersection(inner.parts) or self._in_environment(absolute):
            return None
        return inner.as_posix()

    def _in_environment(self, path: Path) -> bool:
        """Say whether a folder between the root and ``path`` is a virtual environment."""
        for folder in path.parents:
            if folder == self.root:
                return False
            if folder not in self._environments:
                self._environments[folder] = (folder / "pyvenv.cfg").is_file()
            if self._environments[folder]:
                return True
        return False


class FileTrace:
    """Records the project files that are opened for reading while it is active."""

    def __init__(self, files: ProjectFiles) -> None:
        self._files = files
        self._opened: set[str] = set()
        self._active = False
        self._hooked = False

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record while the block runs. Audit hooks cannot be removed, so it only falls silent."""
        if not self._hooked:
            sys.addaudithook(self._hook)
            self._hooked = True
        before, self._active = self._active, True
        try:
            yield
        finally:
            self._active = before

    def dependencies(self) -> list[str]:
        """Return the files read so far and the loaded modules of the project, sorted."""
        paths = set(self._opened)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                paths.add(file)
        found = {self._files.relative(path) for path in paths if os.path.isfile(path)}
        return sorted(name for name in found if name is not None)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if event != "open" or not self._active:
            return
        path, mode, flags = args
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if isinstance(path, str) and _reads(mode, flags):
            self._opened.add(os.path.abspath(path))


def _reads(mode: object, flags: object) -> bool:
    """Say whether an audit event's mode (of open) or flags (of os.open) read an existing file."""
    if isinstance(mode, str):
        return not set(mode) & set("wax")
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_CREAT)


def native_readers() -> frozenset[str]:
    """Return the loaded packages that may read files unseen."""
    return NATIVE_READERS.intersection(sys.modules)
