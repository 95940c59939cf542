"""Whether this user may replace the files of a model folder, and put the former ones back.

Known before anything is sent, as a refusal half-way would need the same permission to be undone.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

_FS_IOC_GETFLAGS = 0x80086601
_FS_IMMUTABLE_OR_APPEND = 0x10 | 0x20  # chattr +i, +a


def why_not_replaceable(folder: Path, names: Iterable[str]) -> str:
    """Return why files below an existing folder cannot be renamed over, in words; "" where they can.

    Args:
        folder: A model's folder; new files are put into it as well.
        names: Relative paths of files that are replaced, or made anew.
    """
    files = [folder / name for name in names]
    for place in dict.fromkeys([folder, *(_nearest_folder(file) for file in files)]):
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            return f"{place} {_owned(place)} and cannot be written by user {os.geteuid()}"
    for file in files:
        reason = _why_kept(file) if file.exists() else ""
        if reason:
            return f"{file} {reason}"
    return ""


def _nearest_folder(file: Path) -> Path:
    return next(place for place in file.parents if place.is_dir())


def _why_kept(file: Path) -> str:
    about, around = file.stat(), file.parent.stat()
    if around.st_mode & stat.S_ISVTX and os.geteuid() not in (0, about.st_uid, around.st_uid):
        return f"{_owned(file)}, and its folder is sticky: only its owner may replace it"
    return "is marked immutable or append-only (chattr)" if _has_flag(file) else ""


def _owned(path: Path) -> str:
    return f"belongs to user {path.stat().st_uid}"


def _has_flag(file: Path) -> bool:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # it need not be readable to be replaced
        return False
    try:
        flags = fcntl.ioctl(handle, _FS_IOC_GETFLAGS, bytes(8))
    except OSError:  # a file system without such flags
        return False
    finally:
        os.close(handle)
    return bool(int.from_bytes(flags, "little") & _FS_IMMUTABLE_OR_APPEND)
