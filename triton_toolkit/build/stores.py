"""Where a cache lies: a folder, or a bucket. Entries are whole: there, or not there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from triton_toolkit.errors import UsageError

LIMIT_BYTES = 10 * 2**30
"""A folder that grows beyond this loses its least recently used entries."""

_KEPT_SHARE = 0.8
"""What remains of the limit after a clearing, so that not every build clears."""

_IGNORE_NAME = ".gitignore"
_TEMPORARY = ".tt-writing-"
_ABANDONED_S = 24 * 3600.0


class StoreProblem(Exception):  # noqa: N818 - never leaves the cache
    """The store cannot be reached, read or written; says why, without credentials."""


class Store(Protocol):
    """Entries by name, a relative path with ``/``. All methods raise StoreProblem."""

    @property
    def shown(self) -> str:
        """Its location for messages."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the entries in a folder, sorted; [] where there is none."""

    def read(self, name: str) -> bytes | None:
        """Return an entry's bytes, None where there is none."""

    def read_file(self, name: str, target: Path) -> bool:
        """Copy an entry to a file; False where there is none."""

    def size(self, name: str) -> int | None:
        """Return an entry's size in bytes, None where there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Write an entry whole, in place of one of that name."""

    def write_file(self, name: str, source: Path) -> None:
        """Write a file as an entry, whole, in place of one of that name."""

    def prune(self) -> None:
        """Make room, where the store is bounded."""


def open_store(location: str | Path) -> Store:
    """Return the store at a location.

    Raises:
        UsageError: A URL of a scheme other than s3, one without a bucket, or one with credentials.
        MissingDependencyError: The extra s3 is not installed.
    """
    scheme, separator, _ = str(location).partition("://")
    if not separator:
        return LocalStore(Path(location))
    if scheme != "s3":
        raise UsageError(f"a cache lies in a folder or in s3://, not in {scheme}://")
    parts = urlsplit(str(location))
    if "@" in parts.netloc or parts.query:
        raise UsageError(
            f"the cache's URL s3://…{parts.path} holds more than a bucket and a prefix",
            hint="credentials come from the environment (AWS_ACCESS_KEY_ID …), a profile or a role",
        )
    if not parts.netloc:
        raise UsageError(f"{location} names no bucket", hint="write s3://BUCKET/PREFIX")
    from triton_toolkit.build.s3_store import S3Store

    return S3Store(parts.netloc, parts.path.strip("/"))


class LocalStore:
    """A folder. Writers put a file beside its place and rename it; the clock of use is the mtime."""

    def __init__(self, folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = folder
        self._limit_bytes = limit_bytes
        self._size_bytes: int | None = None
        """What the folder holds, as far as this process knows; None before it has looked."""

    @property
    def shown(self) -> str:
        """The folder's path."""
        return str(self.folder)

    def names(self, folder: str) -> list[str]:
        """Return the names of the entries in a folder, sorted; [] where there is none."""
        path = self.folder / folder
        with _host_problems():
            if not path.is_dir():
                return []
            return sorted(
                f"{folder}/{item.name}" for item in path.iterdir() if not item.name.startswith(_TEMPORARY)
            )

    def read(self, name: str) -> bytes | None:
        """Return an entry's bytes, None where there is none."""
        with _host_problems():
            try:
                data = (self.folder / name).read_bytes()
            except FileNotFoundError:
                return None
            self._touch(name)
            return data

    def read_file(self, name: str, target: Path) -> bool:
        """Copy an entry to a file; False where there is none."""
        with _host_problems():
            try:
                source = (self.folder / name).open("rb")
            except FileNotFoundError:
                return False
            with source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            self._touch(name)
            return True

    def size(self, name: str) -> int | None:
        """Return an entry's size in bytes, None where there is none."""
        with _host_problems():
            try:
                found = (self.folder / name).stat().st_size
            except FileNotFoundError:
                return None
            self._touch(name)
            return found

    def write(self, name: str, data: bytes) -> None:
        """Write an entry whole, in place of one of that name."""
        with self._new(name) as temporary:
            temporary.write_bytes(data)

    def write_file(self, name: str, source: Path) -> None:
        """Write a file as an entry, whole, in place of one of that name."""
        with self._new(name) as temporary:
            shutil.copyfile(source, temporary)

    def prune(self) -> None:
        """Remove what was not used for longest, where the folder is larger than its limit.

        Files that a killed writer has left go as well. Another process may be writing: what it has just
        written is the newest, and a result whose files are gone is taken for none.
        """
        if self._size_bytes is not None and self._size_bytes <= self._limit_bytes:
            return
        with _host_problems():
            files = sorted((stat.st_mtime, stat.st_size, path) for path, stat in self._walk())
            self._size_bytes = sum(size for _, size, _ in files)
            over = self._size_bytes > self._limit_bytes
            for used_at, size, path in files:
                abandoned = path.name.startswith(_TEMPORARY) and used_at < time.time() - _ABANDONED_S
                full = over and self._size_bytes > self._limit_bytes * _KEPT_SHARE
                if abandoned or full:
                    path.unlink(missing_ok=True)
                    self._size_bytes -= size

    def _walk(self) -> Iterator[tuple[Path, os.stat_result]]:
        for top, _, names in os.walk(self.folder):
            for path in (Path(top, name) for name in names if name != _IGNORE_NAME):
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.stat()

    @contextlib.contextmanager
    def _new(self, name: str) -> Iterator[Path]:
        """Give a temporary file beside an entry's place; it takes that place when the block ends well."""
        path = self.folder / name
        with _host_problems():
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / _IGNORE_NAME).write_text("*\n", encoding="utf-8")  # git sees none of it
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, text = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
            os.close(handle)
            temporary = Path(text)
            try:
                yield temporary
                size = temporary.stat().st_size
                temporary.chmod(0o644)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            if self._size_bytes is not None:
                self._size_bytes += size

    def _touch(self, name: str) -> None:
        """Note that an entry was used; a folder that only others may write is still read."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / name)


@contextlib.contextmanager
def _host_problems() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StoreProblem(exc.strerror or type(exc).__name__) from exc
