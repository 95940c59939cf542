"""The installed packages that a project's own files import: a result from elsewhere depends on them too.

The versions of tt's tools are part of every key. What the user's code brings along (scikit-learn that
trains a small model, tokenizers) is seen only in that code, so it is read from its import statements. A
model with an environment of its own has that in its key instead.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from triton_toolkit.export.trace_files import imported_tops

_PREFIX = "package "


def imported_packages(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Return ``package NAME`` -> version of the packages that Python files of a project import.

    Args:
        root: The project's folder.
        names: Files, relative to it; those that are not Python, or not valid Python, have no imports.
    """
    tops = {top for name in names if name.endswith(".py") for top in imported_tops(root / name)}
    packages = {package for top in tops for package in _providers().get(top, ())}
    return {f"{_PREFIX}{package}": metadata.version(package) for package in sorted(packages)}


def package_state(name: str) -> str | None:
    """Return the installed version for a ``package NAME``, "missing" without; None for other names."""
    if not name.startswith(_PREFIX):
        return None
    try:
        return metadata.version(name.removeprefix(_PREFIX))
    except metadata.PackageNotFoundError:
        return "missing"


def only_files(names: Iterable[str]) -> frozenset[str]:
    """Return the names that are not ``package NAME``."""
    return frozenset(name for name in names if not name.startswith(_PREFIX))


@functools.cache
def _providers() -> Mapping[str, list[str]]:
    """Return the packages that bring each importable name; reading them takes a tenth of a second."""
    return metadata.packages_distributions()
