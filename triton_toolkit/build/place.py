"""Put a version folder and a config in place by renames, the version first."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from triton_toolkit._files import sha256_bytes, staged_folder, write_text
from triton_toolkit._progress import Progress
from triton_toolkit.build.accelerators import accelerator_notes
from triton_toolkit.build.beside import files_beside
from triton_toolkit.build.plan import Action, Decision
from triton_toolkit.build.recipe import Context, Recipe
from triton_toolkit.build.reuse import fetch_version, store_version
from triton_toolkit.build.version import make_version
from triton_toolkit.errors import RepositoryError
from triton_toolkit.repository.layout import CONFIG_NAME
from triton_toolkit.repository.passport import check_files, read_passport, write_passport


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a decision, and whether what was made was taken from the cache."""

    action: Action
    from_cache: bool = False


def carry_out(
    context: Context, recipe: Recipe, decision: Decision, stages: Collection[str], progress: Progress
) -> Outcome:
    """Put the version folder in place first and the config last, as a server may be reading.

    Where the config cannot be written, the new version is taken away again.

    Args:
        context: The build.
        recipe: Of the model.
        decision: What is to be done.
        stages: Which stages may run: export, config.
        progress: Is told each step.
    """
    folder = context.folder(recipe.name) / str(decision.version)
    outcome = Outcome(decision.action)
    if decision.action is Action.BUILD and "export" in stages:
        outcome = _build_version(context, recipe, folder, progress)
        if outcome.action is Action.SAME:
            folder = folder.with_name(str(decision.version - 1))
    if decision.action is Action.NONE or "config" not in stages or not folder.is_dir():
        return outcome
    try:
        _write_config(context, recipe, folder, progress)
    except BaseException:
        if outcome.action is Action.BUILD:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # holds the earlier versions, if there are any
                folder.parent.rmdir()
        raise
    return outcome


def _build_version(context: Context, recipe: Recipe, target: Path, progress: Progress) -> Outcome:
    """Make the version folder in a staging folder of the repository and rename it into place.

    Where its files are those of the version before, byte for byte, that version stays the latest: only
    its passport is renewed, so that it is not made again for the same reason.
    """
    try:
        before = context.passport(recipe.name)
    except RepositoryError:  # damaged or of another format; a new one is made now
        before = None
    action = Action.BUILD
    with staged_folder(target, staging=context.project.repository) as folder:
        started = time.time()
        found = fetch_version(context, recipe, folder, progress)
        passport = found or make_version(context, recipe, folder, progress)
        former = target.with_name(str(int(target.name) - 1))
        write_passport(folder, passport)
        if found is None:
            store_version(context, recipe, folder, passport, since=started)
        if before is not None and before.files == passport.files and not check_files(former, before):
            progress.note(recipe.name, f"what was made is version {former.name}, byte for byte")
            shutil.rmtree(folder)
            write_passport(former, passport)
            action = Action.SAME
    return Outcome(action, from_cache=found is not None)


def _write_config(context: Context, recipe: Recipe, version_folder: Path, progress: Progress) -> None:
    """Write the config, the files beside it, and the config's hash into the version's passport."""
    passport = read_passport(version_folder)
    if passport is None:
        raise RepositoryError(f"{version_folder} has no passport", hint="run `tt build --force`")
    folder = context.folder(recipe.name)
    text = recipe.config(passport)
    for name, source in files_beside(context, recipe).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    write_text(folder / CONFIG_NAME, text)
    for note in accelerator_notes(text, version_folder, context.release):
        progress.note(recipe.name, note)
    sha = sha256_bytes(text.encode())
    if passport.config_sha256 != sha:
        write_passport(version_folder, dataclasses.replace(passport, config_sha256=sha))
