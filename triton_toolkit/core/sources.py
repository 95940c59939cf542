"""What ``source:`` of a PyTorch model may be: a function of the project, or a path."""

from __future__ import annotations

import difflib
import enum
import re
from pathlib import Path

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")

FILE_SUFFIXES = (".pt2", ".pt", ".pth", ".ts", ".bin", ".ckpt")
"""Endings that make a text without a slash a path."""

_OTHER_FILES = (".onnx", ".safetensors")
"""Files that are no source, but are meant as one: they get their own error when they are looked at."""


class SourceKind(enum.Enum):
    """What a source is, by its text alone."""

    CALLABLE = "module:callable"
    PATH = "path"


def source_kind(text: str) -> SourceKind | None:
    """Return what a source is; None where it is neither.

    The two cannot be taken for each other: a reference has a colon between dotted names and no slash; a
    path has a slash or one of the known endings.
    """
    if _REFERENCE.fullmatch(text):
        return SourceKind.CALLABLE
    if "/" in text or text.endswith((*FILE_SUFFIXES, *_OTHER_FILES)):
        return SourceKind.PATH
    return None


def near_path(path: Path) -> str:
    """Return the name of a neighbour that may be meant by a path that does not exist, or nothing."""
    folder = path.parent
    names = [found.name for found in folder.iterdir()] if folder.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return near[0] if near else ""
