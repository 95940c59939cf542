"""Fill a shared cache from a repository that is built already.

What a build makes is known to come from the files, packages and tools at hand. Of a version that stands,
the passport proves the files and the tools; what it does not name must have been there, unchanged, since
before the version was built.
"""

from __future__ import annotations

from datetime import datetime
from importlib import metadata
from pathlib import Path

from triton_toolkit._files import hash_tree
from triton_toolkit._progress import Progress
from triton_toolkit.build.recipe import Context, Recipe
from triton_toolkit.build.reuse import has_version, store_version
from triton_toolkit.build.stage import packages_of, untouched
from triton_toolkit.repository.layout import PASSPORT_NAME
from triton_toolkit.repository.passport import Passport

_PACKAGE = "package "
_OF_SERVER = "nvidia-pytriton"
"""Which records golden outputs of models that run nowhere else."""


def keep_standing(
    context: Context, recipe: Recipe, version: int, *, since: float, progress: Progress
) -> None:
    """Put a version that stands unchanged into the cache, where that has none like it.

    Args:
        context: The build.
        recipe: Of the model.
        version: Its latest version, of which the build has found that nothing has changed.
        since: When that was found.
        progress: Is told why one cannot be put there.
    """
    passport = context.passport(recipe.name)
    if context.cache is None or passport is None or passport.key != recipe.key():
        return
    if has_version(context, recipe, passport):
        return
    folder = context.folder(recipe.name) / str(version)
    why = _why_not(context, recipe, passport, folder)
    if why:
        progress.note(
            recipe.name, f"version {version} is not put into the cache: {why}; --force makes it anew"
        )
    else:
        store_version(context, recipe, folder, passport, since=since)


def _why_not(context: Context, recipe: Recipe, passport: Passport, folder: Path) -> str:
    """Return what speaks against a version as a result of this project on this machine; "" for nothing."""
    files = hash_tree(folder)
    files.pop(PASSPORT_NAME, None)
    if files != passport.files:
        return "it has other files than its passport names"
    if recipe.measured and passport.speed.get("cpu") != _cpu():
        return "its figures are of another processor"
    built = datetime.fromisoformat(passport.created).timestamp()
    later = next((name for name in _unproven(context, recipe, passport) if not _is_older(name, built)), None)
    return f"{later} was installed after it was built" if later else ""


def _unproven(context: Context, recipe: Recipe, passport: Passport) -> list[str]:
    """Return the packages that the version depends on and whose versions its passport does not prove."""
    found = packages_of(context, recipe.name, passport.dependencies)
    versions = {name.removeprefix(_PACKAGE): version for name, version in found.items()}
    if context.project.model(recipe.name).kind not in ("torch", "onnx"):
        versions[_OF_SERVER] = ""
    return [name for name, version in versions.items() if passport.tools.get(name) != version]


def _is_older(package: str, than: float) -> bool:
    """Say whether an installed package has not been touched since a time; so has one that is not there."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return True
    described = [file for file in files if file.name in ("METADATA", "PKG-INFO")]
    return bool(described) and all(untouched(Path(str(file.locate())), than) for file in described)


def _cpu() -> dict[str, str | bool | None]:
    from triton_toolkit.optimise.timing import describe_cpu

    return describe_cpu()
