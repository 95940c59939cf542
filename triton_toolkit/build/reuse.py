"""Whole version folders out of the cache, and what is known of the files that a model is made from.

Two stages of the cache are used here. ``version`` holds a version folder as it was renamed into place,
passport included. ``reads`` holds no files: it remembers which project files a model was made from, under
a key without built steps, so that ``--changed-since`` can ask for it where the repository is empty.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from pathlib import Path

from triton_toolkit._files import sha256_bytes
from triton_toolkit._progress import Progress
from triton_toolkit.build.cache import Reads
from triton_toolkit.build.recipe import Context, Recipe, file_hashes, tool_versions
from triton_toolkit.build.stage import all_untouched, packages_of, processor
from triton_toolkit.errors import RepositoryError
from triton_toolkit.repository.layout import PASSPORT_NAME
from triton_toolkit.repository.passport import Passport, check_files, read_passport

_VERSION = "version"
_READS = "reads"


def fetch_version(context: Context, recipe: Recipe, folder: Path, progress: Progress) -> Passport | None:
    """Fill an empty version folder from the cache and return its passport; None where it has none.

    ``serve:`` is not part of what a version depends on, so the config's hash is made anew.
    """
    if context.cache is None or context.cache.fetch(_VERSION, _version_key(context, recipe), folder) is None:
        return None
    try:
        passport = read_passport(folder)
    except RepositoryError:  # of another format
        passport = None
    if passport is None or passport.key != recipe.key() or check_files(folder, passport):
        shutil.rmtree(folder)
        folder.mkdir()
        return None
    progress.note(recipe.name, "taken from the cache")
    (folder / PASSPORT_NAME).unlink()
    return dataclasses.replace(passport, config_sha256=sha256_bytes(recipe.config(passport).encode()))


def store_version(
    context: Context, recipe: Recipe, folder: Path, passport: Passport, *, since: float
) -> None:
    """Keep a version folder that is complete, passport included.

    Args:
        context: The build.
        recipe: Of the model.
        folder: The version folder.
        passport: What lies in it as ``passport.json``.
        since: When it was begun; with a dependency that was touched later, nothing is kept.
    """
    root = context.project.root
    if context.cache is None or not all_untouched(root, passport.dependencies, since):
        return
    dependencies = _dependencies(context, recipe, passport)
    context.cache.store(_VERSION, _version_key(context, recipe), dependencies, folder, {})
    with tempfile.TemporaryDirectory(prefix="tt-reads-") as empty:
        context.cache.store(_READS, _without_steps(recipe.key()), dependencies, Path(empty), {})


def has_version(context: Context, recipe: Recipe, passport: Passport) -> bool:
    """Say whether the cache has a version made from the files, packages and tools as they are now."""
    if context.cache is None:
        return False
    wanted = ((_VERSION, _version_key(context, recipe)), (_READS, _without_steps(recipe.key())))
    dependencies = _dependencies(context, recipe, passport)
    return all(context.cache.has(stage, key, dependencies) for stage, key in wanted)


def known_reads(context: Context, recipe: Recipe) -> Reads | None:
    """Return the project files that a model is made from, as the repository or else the cache knows them."""
    try:
        passport = context.passport(recipe.name)
    except RepositoryError:
        passport = None
    key = _without_steps(recipe.key())
    seen = None
    if passport is not None and _without_steps(passport.key) == key:
        names = frozenset(passport.dependencies)
        seen = Reads(names, file_hashes(context.project.root, list(names)) == passport.dependencies)
    if context.cache and not (seen and seen.current):
        seen = context.cache.dependencies(_READS, key) or seen
    return seen


def _dependencies(context: Context, recipe: Recipe, passport: Passport) -> dict[str, str]:
    return {**passport.dependencies, **packages_of(context, recipe.name, passport.dependencies)}


def _version_key(context: Context, recipe: Recipe) -> dict[str, str]:
    """Return all that a version folder depends on where it may come from another host.

    Golden outputs are recorded where the embedded server is installed, and only there.
    """
    key = {**recipe.key(), "model": recipe.name, "release": context.release or "none"}
    if recipe.measured:
        key["processor"] = processor()
    return {**key, **tool_versions("nvidia-pytriton")}


def _without_steps(key: dict[str, str]) -> dict[str, str]:
    return {part: value for part, value in key.items() if not part.startswith("step ")}
