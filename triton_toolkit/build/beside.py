"""The files that a model has beside its ``config.pbtxt``: the recipe's own, and labels named in the spec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from triton_toolkit._files import sha256_file
from triton_toolkit.build.recipe import Context, Recipe
from triton_toolkit.repository.layout import CONFIG_NAME


def files_beside(context: Context, recipe: Recipe) -> dict[str, Path]:
    """Return path below the model's folder -> file that is copied there.

    Raises:
        SpecError: A ``label_filename`` is missing in the project, or cannot lie in the model's folder.
    """
    return {**dict(recipe.beside_config()), **dict(_labels(context, recipe.name))}


def changed_beside(context: Context, recipe: Recipe) -> list[str]:
    """Return which of these files are not in the repository as they are here.

    Raises:
        SpecError: As ``files_beside``.
    """
    built = context.folder(recipe.name)
    return [
        name
        for name, source in files_beside(context, recipe).items()
        if not (built / name).is_file() or sha256_file(built / name) != sha256_file(source)
    ]


def _labels(context: Context, model: str) -> Iterator[tuple[str, Path]]:
    """Yield the label files of outputs; Triton does not load a model without them (seen on 2.51)."""
    entry = context.project.model(model)
    outputs = {} if entry.kind == "prebuilt" else entry.serve.get("output", {})
    for tensor, fields in outputs.items():
        name = fields.get("label_filename")
        if not name:
            continue
        at = ("models", model, "serve", "output", tensor, "label_filename")
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or path.parts[0].isdigit() or name == CONFIG_NAME:
            raise context.project.error(
                at, f"{name!r} cannot lie beside the model's config", "give it from the folder of tt.yaml"
            )
        source = context.project.root / path
        if not source.is_file():
            hint = f"it is copied from the folder of tt.yaml to beside {CONFIG_NAME}"
            raise context.project.error(at, f"no such file: {name}", hint)
        yield path.as_posix(), source
