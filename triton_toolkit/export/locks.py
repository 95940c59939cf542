"""What a pip requirements file stands for: its text, the files that it includes, and local packages.

Files that it includes start at its own folder; paths of packages start at the folder that pip runs in,
which is the project's root.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file
from triton_toolkit.errors import EnvironmentProblem

_INCLUDED = re.compile(r"^\s*(?:-[rc][\s=]*|--(?:requirement|constraint)[\s=]+)(\S+)", re.MULTILINE)
_EDITABLE = re.compile(r"(?:-e[\s=]*|--editable[\s=]+)")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*(?=file:)")
_EXTRAS = re.compile(r"\[[^\[\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_SETUP = ("pyproject.toml", "setup.py", "setup.cfg", "MANIFEST.in")
"""What the installation of an editable package depends on; its sources are read where they lie."""

_MADE_FOLDERS = frozenset({"__pycache__", "node_modules"})
_MADE_AT_TOP = frozenset({"build", "dist"})


class LocalPackage(NamedTuple):
    """A package that a lock names by its path."""

    path: Path
    editable: bool
    line: str


def lock_hash(root: Path, lock: str, python: tuple[int, ...]) -> str:
    """Return the hash of a lock, of the files and local packages that it names, and of Python's version.

    Args:
        root: The project's folder.
        lock: The file, relative to it.
        python: The version of the interpreter that the environment is made with.

    Raises:
        EnvironmentProblem: The lock is not there, or it installs a copy of the project itself.
    """
    texts: dict[str, str] = {}
    todo = [root / lock]
    while todo:
        path = todo.pop()
        if str(path) in texts:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as exc:
            raise EnvironmentProblem(
                f"env: the lock {lock} cannot be read: {exc.strerror} ({path})",
                hint="it is a pip requirements file, such as pip freeze writes; its path starts at the "
                "folder of tt.yaml",
            ) from exc
        texts[str(path)] = text
        todo += [path.parent / included for included in _INCLUDED.findall(text) if "://" not in included]
    parts: list[object] = [sorted(texts.values()), list(python)]
    local = {
        item.line: _state(root, lock, item) for text in texts.values() for item in local_packages(root, text)
    }
    return sha256_bytes(canonical_json([*parts, local] if local else parts).encode())


def local_packages(root: Path, text: str) -> Iterator[LocalPackage]:
    """Yield the packages that are named by path, as pip tells them from names."""
    for whole in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", whole).strip()
        bare, editable = _EDITABLE.subn("", line, count=1) if _EDITABLE.match(line) else (line, 0)
        path = _path_of(bare)
        if path is not None:
            yield LocalPackage(root / path, bool(editable), line)


def _path_of(requirement: str) -> str | None:
    """Return the path that a requirement names its package by; None where it does not."""
    if requirement.startswith("-"):
        return None
    name = re.split(r"\s*;|\s+--", _NAMED.sub("", requirement), maxsplit=1)[0].strip()
    if name.startswith("file:"):
        return unquote(name.removeprefix("file:").removeprefix("//").partition("#")[0])
    name = _EXTRAS.sub("", name)
    if "://" in name or "@" in name:
        return None
    return name if name.startswith(".") or "/" in name or name.endswith(_ARCHIVES) else None


def _state(root: Path, lock: str, local: LocalPackage) -> object:
    """Return what stands for a local package: an archive's SHA-256, or those of its files."""
    if local.path.is_file():
        return _sha256(local.path)
    folder = local.path.resolve()
    if not root.resolve().is_relative_to(folder):
        return {path.relative_to(folder).as_posix(): _sha256(path) for path in _files_of(folder)}
    if local.editable:
        found = (folder / name for name in _SETUP)
        return {path.name: _sha256(path) for path in found if path.is_file()}
    raise EnvironmentProblem(
        f"env: {lock}: {local.line!r} installs a copy of the project's own folder, which every build changes",
        hint="write -e before it, so that its sources are read where they lie; or move the package into a "
        "folder of its own",
    )


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield a package's files, sorted, without what an installation leaves there and without environments."""
    for top, folders, names in os.walk(folder):
        here = Path(top)
        if here != folder and "pyvenv.cfg" in names:
            folders.clear()
            continue
        made = _MADE_FOLDERS | (_MADE_AT_TOP if here == folder else set())
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not _made(name) and name not in made
        )
        files = (here / name for name in sorted(names) if not name.endswith(".pyc"))
        yield from (path for path in files if path.is_file())


def _made(folder: str) -> bool:
    return folder.endswith((".egg-info", ".dist-info"))


def _sha256(path: Path) -> str:
    found = path.stat()
    return _sha256_once(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@functools.cache
def _sha256_once(path: Path, *stamp: int) -> str:
    """Hash a file that may be large, such as a wheel of torch, once a process as long as it is the same."""
    del stamp
    return sha256_file(path)
