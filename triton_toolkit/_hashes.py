"""SHA-256 of files, remembered from run to run as long as the file system says that a file is the same.

The rule is git's for its index: device, inode, size, and the times of the last change of content and of
inode, which no program can set, must all be equal, and the file must have been at rest for a while when it
was read, since a change within one tick of the clock leaves no trace.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_CHUNK_BYTES = 1 << 20
_WORTH_BYTES = 1 << 16
"""Smaller files are read faster than they are looked up."""

_AT_REST_S = 2.0
"""The coarsest clock of a file system in use, FAT's."""

_MOST = 20_000
"""Entries kept; beyond them, only those of the last run."""


class _Memory:
    def __init__(self, known: dict[str, str]) -> None:
        self.known = known
        self.used: dict[str, str] = {}

    @property
    def grown(self) -> bool:
        return not self.used.keys() <= self.known.keys()


_memories: list[_Memory] = []
"""The innermost is used."""


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as lower-case hexadecimal, read in chunks."""
    if not _memories:
        return _read(path)
    before = path.stat()
    if before.st_size < _WORTH_BYTES:
        return _read(path)
    memory, identity = _memories[-1], _identity(before)
    found = memory.known.get(identity)
    if found is None:
        now = time.time()
        found = _read(path)
        at_rest = now - max(before.st_mtime, before.st_ctime) > _AT_REST_S
        if not at_rest or _identity(path.stat()) != identity:
            return found
    memory.used[identity] = found
    return found


@contextlib.contextmanager
def remembered_hashes(file: Path, *, save: bool = True) -> Iterator[None]:
    """Within the block, ``file_sha256`` reads no large file that an earlier block has read.

    Args:
        file: Where hashes are remembered; its folder exists, or nothing is remembered.
        save: Whether the file may be written.
    """
    memory = _Memory(_load(file))
    _memories.append(memory)
    try:
        yield
    finally:
        _memories.remove(memory)
        if save and memory.grown:
            _save(file, memory)


def _identity(found: os.stat_result) -> str:
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return ":".join(map(str, parts))


def _read(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _load(file: Path) -> dict[str, str]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _save(file: Path, memory: _Memory) -> None:
    """Write the hashes whole; where that fails, they are computed again."""
    hashes = memory.used if len(memory.known) > _MOST else {**memory.known, **memory.used}
    with contextlib.suppress(OSError):
        handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(hashes, out)
            os.replace(temporary, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
