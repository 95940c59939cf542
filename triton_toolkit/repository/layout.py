"""The rules of a Triton model repository's folders.

Source: Triton core model_lifecycle, read in the facts' section "Versions": a version folder's name
is a number without leading zeros; other folders (``warmup``, ``configs``, ``initial_state``) are not
versions.
"""

from __future__ import annotations

import re
from pathlib import Path

CONFIG_NAME = "config.pbtxt"
PASSPORT_NAME = "passport.json"
SAMPLES_NAME = "samples.npz"

_VERSION = re.compile(r"[1-9]\d{0,17}")


def versions(model_folder: Path) -> list[int]:
    """Return the version numbers present in a model's folder, ascending; [] without the folder."""
    if not model_folder.is_dir():
        return []
    return sorted(
        int(path.name) for path in model_folder.iterdir() if _VERSION.fullmatch(path.name) and path.is_dir()
    )


def latest_version(model_folder: Path) -> int | None:
    """Return the highest version number present, None without any."""
    return max(versions(model_folder), default=None)


def model_folders(repository: Path) -> list[Path]:
    """Return the folders that are models: not hidden, with a config or a version; by name."""
    if not repository.is_dir():
        return []
    return sorted(
        path
        for path in repository.iterdir()
        if path.is_dir()
        and not path.name.startswith(".")
        and ((path / CONFIG_NAME).is_file() or versions(path))
    )
