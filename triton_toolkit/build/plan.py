"""Decide, before anything is written, what a build has to do and why."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from triton_toolkit.build.beside import changed_beside, files_beside
from triton_toolkit.build.recipe import Context, Recipe, file_hashes
from triton_toolkit.errors import RepositoryError
from triton_toolkit.repository.layout import CONFIG_NAME, latest_version
from triton_toolkit.repository.passport import MISSING, Passport, check_files
from triton_toolkit.spec.load import Project


class Action(enum.StrEnum):
    """What a build does to one model; ``SAME`` is known only once it is built."""

    BUILD = "build"
    SAME = "same"
    CONFIG = "config"
    NONE = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, the version that will stand afterwards, and the reasons in words."""

    action: Action
    version: int
    reasons: tuple[str, ...]


def build_order(project: Project, names: Sequence[str]) -> list[str]:
    """Return the named models (all without names), their variants and the steps they need, steps first.

    Raises:
        SpecError: An unknown model, an unknown step, or ensembles that contain each other.
    """
    graph: dict[str, list[str]] = {}
    todo = project.with_variants(names) or list(project.spec.models)
    while todo:
        name = todo.pop()
        if name in graph:
            continue
        model = project.model(name)
        steps = [step.model for step in model.steps] if model.kind == "ensemble" else []
        for index, step in enumerate(steps):
            if step not in project.spec.models:
                known = ", ".join(other for other in project.spec.models if other != name)
                raise project.error(
                    ("models", name, "steps", index), f"no model {step!r} in this spec", f"known: {known}"
                )
        graph[name] = steps
        todo += steps
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as exc:
        cycle = " -> ".join(exc.args[1])
        raise project.error(
            ("models", exc.args[1][0], "steps"), f"ensembles contain each other: {cycle}"
        ) from exc
    position = {name: index for index, name in enumerate(project.spec.models)}
    depth: dict[str, int] = {}
    for name in order:
        depth[name] = 1 + max((depth[step] for step in graph[name]), default=-1)
    return sorted(order, key=lambda name: (depth[name], position[name]))


def decide(context: Context, recipe: Recipe, *, force: bool) -> Decision:
    """Compare what a model depends on with the passport of its latest version."""
    files_beside(context, recipe)  # one that is missing is told before anything is built
    folder = context.folder(recipe.name)
    version = latest_version(folder)
    try:
        passport = context.passport(recipe.name)
    except RepositoryError as exc:
        return Decision(action=Action.BUILD, version=(version or 0) + 1, reasons=(exc.message,))
    if version is None or passport is None:
        reason = "not built yet" if version is None else f"version {version} has no passport"
        return Decision(action=Action.BUILD, version=(version or 0) + 1, reasons=(reason,))
    reasons = ("--force",) if force else tuple(_stale(context, recipe, passport, version))
    if reasons:
        return Decision(action=Action.BUILD, version=version + 1, reasons=reasons)
    reason = _why_config(context, recipe, passport)
    if reason:
        return Decision(action=Action.CONFIG, version=version, reasons=(reason,))
    return Decision(action=Action.NONE, version=version, reasons=())


def _why_config(context: Context, recipe: Recipe, passport: Passport) -> str:
    """Return why the config and what lies beside it must be written anew; empty where they stand."""
    path = context.folder(recipe.name) / CONFIG_NAME
    if not path.is_file():
        return f"{CONFIG_NAME} is missing"
    if path.read_text(encoding="utf-8") != recipe.config(passport):
        return "serve, a template or a hand edit changed the config"
    changed = changed_beside(context, recipe)
    return f"{changed[0]}, beside {CONFIG_NAME}, is missing or another than in the project" if changed else ""


def _stale(context: Context, recipe: Recipe, passport: Passport, version: int) -> list[str]:
    """Return why a built version no longer stands for the spec, in words."""
    reasons = []
    new, old = recipe.key(), passport.key
    for part in sorted(new.keys() | old.keys()):
        if part.startswith("tool ") and part not in new:
            continue  # not installed here: see tool_versions
        if new.get(part) != old.get(part):
            reasons.append(_changed(part, old.get(part), new.get(part)))
    now = file_hashes(context.project.root, list(passport.dependencies))
    for name, was in passport.dependencies.items():
        if now[name] != was:
            reasons.append(f"{name} {_how(was, now[name])}")
    reasons += check_files(context.folder(recipe.name) / str(version), passport)
    return reasons


def _how(was: str, now: str) -> str:
    if now == MISSING:
        return "is gone"
    return "is new" if was == MISSING else "changed"


def _changed(part: str, old: str | None, new: str | None) -> str:
    short = all(value is None or len(value) < 40 for value in (old, new))
    if short:
        return f"{part}: {old or 'none'} -> {new or 'none'}"
    return f"{part} changed"
