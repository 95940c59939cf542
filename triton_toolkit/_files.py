"""Files: hashes, atomic writes, and names that cannot leave their folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from triton_toolkit._hashes import file_sha256
from triton_toolkit.errors import EnvironmentProblem, SpecError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be one path component and a Triton model name.

    Letters, digits, ``.``, ``_`` and ``-``, not starting with a dot. Triton's load API refuses
    ``/`` and ``..``, and its Python backend refuses shell metacharacters in instance names.

    Raises:
        SpecError: The name has another character; ``what`` names its place.
    """
    if _NAME.fullmatch(name) and ".." not in name:
        return name
    raise SpecError(
        f"{what}: {name!r} cannot be used as a name: it becomes a folder of the model repository",
        hint="use letters, digits, '.', '_' and '-', starting with a letter or digit, without '..'",
    )


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as lower-case hexadecimal; see ``_hashes``."""
    return file_sha256(path)


def hash_tree(folder: Path) -> dict[str, str]:
    """Return relative POSIX path -> SHA-256 of every regular file below ``folder``, sorted.

    Linked folders are followed, as a copy of the tree follows them; one that leads back to itself once.
    """
    files: list[Path] = []
    seen: set[str] = set()
    for top, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(top)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        files += [path for name in names if (path := Path(top, name)).is_file()]
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(files)}


def canonical_json(value: Any) -> str:
    """Return JSON whose text depends only on the value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@contextlib.contextmanager
def host_errors(doing: str) -> Iterator[None]:
    """Turn an ``OSError`` that the host causes (full, read-only, forbidden) into one clear error.

    Args:
        doing: What was going on, such as ``write /models/digits``; begins the message.

    Raises:
        EnvironmentProblem: For a full or read-only disk, a quota, a missing permission, or a path
            component that is not a folder. Other OSErrors pass through: they are bugs.
    """
    try:
        yield
    except shutil.Error as exc:  # of copytree: a list of (source, target, reason)
        source, _, reason = exc.args[0][0]
        raise EnvironmentProblem(
            f"cannot {doing}: {source} could not be copied: {reason}", hint="nothing was left half-written"
        ) from exc
    except OSError as exc:
        hints = {
            errno.ENOSPC: "free some space; nothing was left half-written",
            errno.EDQUOT: "the quota is used up; nothing was left half-written",
            errno.EROFS: "the file system is mounted read-only",
            errno.EACCES: "check the owner and the permissions",
            errno.EPERM: "check the owner and the permissions",
            errno.ENOTDIR: "a part of this path is a file",
            errno.EEXIST: "a file of that name is in the way",
            errno.EFBIG: "a limit on the size of files is in force (ulimit -f)",
            errno.EXDEV: "the folder must be on one file system",
            errno.ENAMETOOLONG: "the file system takes no name of this length",
        }
        if exc.errno not in hints:
            raise
        where = f" ({exc.filename})" if exc.filename else ""
        raise EnvironmentProblem(
            f"cannot {doing}: {os.strerror(exc.errno)}{where}", hint=hints[exc.errno]
        ) from exc


def write_text(path: Path, text: str) -> None:
    """Write a file whole: to a temporary neighbour, synced, then renamed over ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, whole, with a final newline."""
    write_text(path, json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def staged_folder(target: Path, *, staging: Path) -> Iterator[Path]:
    """Give a temporary folder that becomes ``target`` when the block ends well.

    The folder lies in ``<staging>/.tt-staging-…``; it is removed when the block raises, ctrl-C
    included. A block that removes the folder itself leaves nothing behind. ``target`` must not
    exist: nothing is ever overwritten.

    Args:
        target: What the folder becomes, by one rename; its parents are made then and not before.
        staging: An existing or new folder on the same file system as ``target``.

    Raises:
        FileExistsError: ``target`` exists when the block ends.
    """
    staging.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix=".tt-staging-", dir=staging))
    inner = base / target.name
    inner.mkdir()
    try:
        yield inner
        if not inner.exists():
            return
        _fsync_tree(inner)
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(inner, target)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def remove_staging(staging: Path) -> None:
    """Remove what killed builds have left in a folder whose lock is held."""
    for path in staging.glob(".tt-staging-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold a folder for one process: ``flock`` on the folder itself, so no lock file is left behind.

    Raises:
        EnvironmentProblem: Another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentProblem(
                f"{folder} is being written by another process", hint="wait for the other tt to end"
            ) from None
        yield
    finally:
        os.close(handle)


def _fsync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
