"""The installed packages that a project's own files import: a result from elsewhere depends on them too.

The versions of tt's tools are part of every key. What the user's code brings along (scikit-learn that
trains a small model, tokenizers) is seen only in that code, so it is read from its import statements. A
model with an environment of its own has that in its key instead.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

_PREFIX = "package "


def imported_packages(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Return ``package NAME`` -> version of the packages that Python files of a project import.

    Args:
        root: The project's folder.
        names: Files, relative to it; those that are not Python, or not valid Python, have no imports.
    """
    tops = {top for name in names if name.endswith(".py") for top in _imports(root / name)}
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


def _imports(path: Path) -> Iterator[str]:
    """Yield the first parts of the modules that a file imports, wherever in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


@functools.cache
def _providers() -> Mapping[str, list[str]]:
    """Return the packages that bring each importable name; reading them takes a tenth of a second."""
    return metadata.packages_distributions()
