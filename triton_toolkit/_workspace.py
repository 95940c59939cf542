"""``.tt``, the folder of a project for what can be made again: cache, environments, logs, what crashed."""

from __future__ import annotations

from pathlib import Path

NAME = ".tt"
CACHE_NAME = f"{NAME}/cache"
LOGS_NAME = f"{NAME}/logs"
CRASHES_NAME = f"{NAME}/crashes"
HASHES_NAME = f"{NAME}/hashes.json"
ENVIRONMENTS_NAME = f"{NAME}/envs"


def make_workspace(root: Path) -> Path:
    """Make the folder below a project's root, hidden from git by a file of its own.

    Raises:
        OSError: It cannot be made.
    """
    folder = root / NAME
    ignore = folder / ".gitignore"
    if not ignore.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        ignore.write_text("# made by tt; all of it can be made again\n*\n", encoding="utf-8")
    return folder
