"""Make one version folder: the recipe's files, golden samples, and the facts of the passport."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from triton_toolkit import __version__
from triton_toolkit._files import hash_tree, sha256_bytes
from triton_toolkit._progress import Progress
from triton_toolkit.build.beside import files_beside
from triton_toolkit.build.recipe import Context, Made, Recipe, states_read
from triton_toolkit.build.samples import Around, record_golden, samples_as_served
from triton_toolkit.errors import ExportError
from triton_toolkit.repository.layout import PASSPORT_NAME
from triton_toolkit.repository.passport import Passport, write_samples


def make_version(context: Context, recipe: Recipe, folder: Path, progress: Progress) -> Passport:
    """Fill an empty version folder, golden samples included, and return its passport.

    Raises:
        TritonToolkitError: Why it cannot be made; or a file changed meanwhile.
    """
    key, started = recipe.key(), time.time()
    made = recipe.make(folder, progress)
    samples_as_served(folder, made)
    passport = _passport(context, recipe, made)  # hashes first: a change from here on is not in them
    _check_unchanged(context, passport, key, started)
    config = recipe.config(passport)
    if made.sample_inputs is not None:
        around = Around(config, files_beside(context, recipe))
        samples = record_golden(context, passport, around, folder, made.sample_inputs, progress)
        if samples is not None:
            write_samples(folder, samples)
    files = {name: sha for name, sha in hash_tree(folder).items() if name != PASSPORT_NAME}
    return replace(passport, files=files, config_sha256=sha256_bytes(config.encode()))


def _check_unchanged(context: Context, passport: Passport, key: dict[str, str], started: float) -> None:
    """Refuse what was made from files that changed meanwhile: its passport would tell of the new ones."""
    root = context.project.root
    changed = [part for part, value in passport.key.items() if key.get(part) != value]
    names = [name for name in passport.dependencies if (root / name).is_file()]
    dates = {name: (root / name).stat().st_mtime for name in names}
    changed += [name for name, date in dates.items() if date > started]
    if changed and dates.get(changed[0], 0) > time.time():
        raise ExportError(
            f"{passport.model}: {changed[0]} is dated in the future, so it cannot be told whether it changed "
            "while the model was built",
            hint=f"look at the clock, or date it now: touch {changed[0]}",
        )
    if changed:
        raise ExportError(
            f"{passport.model}: {changed[0]} changed while the model was built", hint="run the build again"
        )


def _passport(context: Context, recipe: Recipe, made: Made) -> Passport:
    project = context.project
    model = project.model(recipe.name)
    return Passport(
        model=recipe.name,
        kind=model.kind,
        variant=recipe.variant,
        backend=recipe.backend,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tools={"tt": __version__, **made.tools},
        key=recipe.key(),
        dependencies=states_read(project.root, made.dependencies),
        inputs=made.inputs,
        outputs=made.outputs,
        batch_dim=made.batch_dim,
        dims=made.dims,
        onnx=made.onnx,
        release=context.release,
        tolerance=made.tolerance or model.tolerances().as_dict(),
        parity=made.parity,
        accuracy=made.accuracy,
        precision=made.precision,
        speed=made.speed,
        requires=made.requires,
    )
