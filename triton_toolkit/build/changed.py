"""Which models changed since a git commit: what ``tt build --changed-since`` builds.

A model is left out only where it is *known* to be unchanged: its part of the spec, the files that the
spec names, and every project file that it is made from. In doubt it is built; the decision of ``plan``
comes after, and finds nothing to do where the doubt was needless.
"""

from __future__ import annotations

import fnmatch
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.build.beside import files_beside
from triton_toolkit.build.checkout import Checkout
from triton_toolkit.build.recipe import Context, Recipe
from triton_toolkit.build.reuse import known_reads
from triton_toolkit.errors import SpecError, TritonToolkitError
from triton_toolkit.spec.load import Project, load_project
from triton_toolkit.spec.source import read_yaml

if TYPE_CHECKING:
    from triton_toolkit.spec.models import Model, Spec

_NOT_BUILT = frozenset({"slo", "extends"})
"""Keys of a model that nothing is built from; what ``extends`` brings has been merged."""


def changed_models(context: Context, recipes: Mapping[str, Recipe], ref: str) -> dict[str, str]:
    """Return the models to build and why, in the order of ``recipes``, in which steps come first.

    Raises:
        UsageError: git knows no such commit.
        EnvironmentProblem: Not a git checkout, or the commit is not in a shallow clone.
    """
    checkout = Checkout(context.project.root, ref)
    then = _spec_at(checkout, context.project)
    everything = _of_the_whole(context.project, then, checkout)
    chosen: dict[str, str] = {}
    for name, recipe in recipes.items():
        steps = [step for step in _steps(context.project.model(name)) if step in chosen]
        why = everything or (f"step {steps[0]} changed since {ref}" if steps else "")
        why = why or _why(context, recipe, then, checkout)
        if why:
            chosen[name] = why
    return chosen


def _why(context: Context, recipe: Recipe, then: Spec | None, checkout: Checkout) -> str:
    """Return what changed of one model, empty where it is known that nothing did."""
    name, since = recipe.name, f"since {checkout.ref}"
    model = context.project.model(name)
    before = then.models.get(name) if then else None
    if before is None:
        return f"new {since}"
    if _part(before) != _part(model):
        return f"its part of the spec changed {since}"
    try:
        beside = [
            os.path.relpath(path, context.project.root) for path in files_beside(context, recipe).values()
        ]
        reads = known_reads(context, recipe)
    except TritonToolkitError as exc:  # told again, and as an error, where the model is built
        return exc.message
    known = [*_named(context.project.root, model), *beside, *sorted(reads.names if reads else ())]
    changed = next(filter(None, (_differing(checkout, context.project.root, file) for file in known)), None)
    if changed:
        return f"{changed} changed {since}"
    return "" if reads and reads.current else "no build from its present files is known"


def _differing(checkout: Checkout, root: Path, name: str) -> str | None:
    """Return the file, or the first file of the folder, that differs; None without any."""
    if (root / name).is_dir():
        return checkout.differing_below(name)
    return name if checkout.differs(name) else None


def _named(root: Path, model: Model) -> Iterator[str]:
    """Yield the files and folders that a model's part of the spec names."""
    if model.env is not None and model.env.lock is not None:
        yield model.env.lock
    match model.kind:
        case "torch" | "onnx":
            yield from model.hashed
            if (root / model.source).exists():
                yield model.source
        case "python":
            yield from (model.files, *model.hashed)
        case "prebuilt":
            yield model.path


def _steps(model: Model) -> list[str]:
    return [step.model for step in model.steps] if model.kind == "ensemble" else []


def _part(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude=set(_NOT_BUILT))


def _of_the_whole(project: Project, then: Spec | None, checkout: Checkout) -> str:
    """Return what changed for all models; empty without such a change."""
    if then is None:
        return f"the spec at {checkout.ref} is missing or cannot be read"
    for key in ("repository", "release", "templates"):
        if getattr(then, key) != getattr(project.spec, key):
            return f"{key} changed since {checkout.ref}"
    if _releases(then) != _releases(project.spec):
        return f"the targets' releases changed since {checkout.ref}"
    below = checkout.differing_below(project.spec.templates) if project.spec.templates else None
    return f"{below} changed since {checkout.ref}" if below else ""


def _releases(spec: Spec) -> set[str | None]:
    return {target.release for target in spec.targets.values()}


def _spec_at(checkout: Checkout, project: Project) -> Spec | None:
    """Load the spec as it was in the commit, includes and families resolved; None where that fails."""
    name = Path(project.source.mark(()).file).resolve().name
    if name not in checkout.names():
        return None
    with tempfile.TemporaryDirectory(prefix="tt-spec-") as folder:
        path = Path(folder) / name
        path.write_bytes(checkout.read([name])[name])
        try:
            include = read_yaml(path, name).value.get("include", [])
            parts = [file for file in checkout.names() if _is_included(file, include)]
            for file, data in checkout.read(parts).items():
                (path.parent / file).parent.mkdir(parents=True, exist_ok=True)
                (path.parent / file).write_bytes(data)
            return load_project(path).spec
        except (SpecError, AttributeError):  # AttributeError: not even a mapping
            return None


def _is_included(file: str, patterns: object) -> bool:
    known = patterns if isinstance(patterns, list) else []
    return any(_matches(file.split("/"), str(pattern).split("/")) for pattern in known)


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Say whether a path matches as ``Path.glob`` matches: ``**`` is any number of folders."""
    if not pattern or not parts:
        return not pattern and not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
