"""Run a build: decide, make, prove, and put each model in place by renames."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit._files import host_errors, locked_folder, remove_staging
from triton_toolkit._hashes import remembered_hashes
from triton_toolkit._progress import Progress
from triton_toolkit._workspace import HASHES_NAME, make_workspace
from triton_toolkit.build.cache import StageCache
from triton_toolkit.build.changed import changed_models
from triton_toolkit.build.configure import check_keys
from triton_toolkit.build.ensemble import EnsembleRecipe
from triton_toolkit.build.exported import ExportRecipe
from triton_toolkit.build.files import PrebuiltRecipe, PythonRecipe
from triton_toolkit.build.fill import keep_standing
from triton_toolkit.build.place import Outcome, carry_out
from triton_toolkit.build.plan import Action, Decision, build_order, decide
from triton_toolkit.build.recipe import Context, Recipe
from triton_toolkit.core.releases import export_target
from triton_toolkit.errors import TritonToolkitError, UsageError
from triton_toolkit.repository.layout import latest_version
from triton_toolkit.repository.passport import Passport
from triton_toolkit.spec.load import Project

STAGES = ("export", "config")
"""What ``--only`` can name: the version folder, and ``config.pbtxt``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What to build and how.

    Attributes:
        names: Models to build, with the steps they need; all without names.
        only: Stages to run, of ``STAGES``.
        force: Build even what has not changed, without asking the cache.
        dry_run: Decide, write nothing.
        cache: Folder or ``s3://`` URL where results are looked for and kept; None for nowhere.
        fill_cache: Put there also what stands unchanged in the repository.
        changed_since: Leave out what is known to be as it was in this git commit.
    """

    names: tuple[str, ...] = ()
    only: frozenset[str] = frozenset(STAGES)
    force: bool = False
    dry_run: bool = False
    cache: str | Path | None = None
    fill_cache: bool = False
    changed_since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """What a build did, or would do, to one model.

    ``action`` is build, same (built, and the files are those of the version that stands), config,
    unchanged, failed or skipped; ``version`` the version that now stands; ``from_cache`` whether it was
    not made but found; ``error`` why it failed.
    """

    name: str
    kind: str
    action: str
    version: int | None
    reasons: tuple[str, ...]
    seconds: float = 0.0
    from_cache: bool = False
    passport: Passport | None = None
    error: TritonToolkitError | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "action": self.action,
            "version": self.version,
            "reasons": list(self.reasons),
            "seconds": round(self.seconds, 3),
            "from_cache": self.from_cache,
            "passport": self.passport.as_dict() if self.passport else None,
            "error": self.error.as_dict() if self.error else None,
        }


OnReport = Callable[[ModelReport], object]


def run_build(
    project: Project, options: BuildOptions, progress: Progress, on_report: OnReport = lambda _: None
) -> list[ModelReport]:
    """Build models in dependency order; one that fails does not stop those that do not need it.

    Args:
        project: The loaded spec.
        options: What to build and how.
        progress: Is told each step, and at once what failed.
        on_report: Called with the report of each model that is done, so that it is known of a build
            that is interrupted; not in a dry run.

    Returns:
        One report a model, in the order they were built. A failed model keeps its last version
        and config on disk.

    Raises:
        SpecError: The spec is wrong; nothing was written for the model concerned.
        UsageError: ``changed_since`` names no commit.
        EnvironmentProblem: The repository cannot be written, or another build is at it; or it cannot
            be told what changed.
    """
    with remembered_hashes(project.root / HASHES_NAME, save=not options.dry_run):
        return _build_chosen(build_context(project, options, progress), options, progress, on_report)


def _build_chosen(
    context: Context, options: BuildOptions, progress: Progress, on_report: OnReport
) -> list[ModelReport]:
    """Build what is named, or, where a commit is, what may have changed since."""
    project = context.project
    recipes = {name: recipe_for(context, name) for name in build_order(project, options.names)}
    _tell_unbuilt(project, recipes, progress)
    if options.changed_since is None:
        return _build_all(context, recipes, options, progress, on_report)
    why = changed_models(context, recipes, options.changed_since)
    wanted = build_order(project, list(why)) if why else []
    chosen = {name: recipes[name] for name in wanted}
    built = _build_all(context, chosen, options, progress, on_report)
    reports = {report.name: _explained(report, why.get(report.name)) for report in built}
    left = f"unchanged since {options.changed_since}"
    return [reports.get(name) or _left_out(context, name, left) for name in recipes]


def _tell_unbuilt(project: Project, names: Iterable[str], progress: Progress) -> None:
    """Tell of variants that are declared and that no build makes."""
    for name in names:
        model = project.model(name)
        if model.kind not in ("torch", "onnx") or name in project.variant_of:
            continue
        for variant in model.unbuilt:
            text = f"variant {variant} is not built: list it under also, or make it serve_variant"
            progress.note(name, text)


def _build_all(
    context: Context,
    recipes: Mapping[str, Recipe],
    options: BuildOptions,
    progress: Progress,
    on_report: OnReport,
) -> list[ModelReport]:
    project = context.project
    if options.dry_run:
        return _with_dependents(
            project, [_report(context, recipe, options, progress) for recipe in recipes.values()]
        )
    with host_errors(f"write {project.repository}"), locked_folder(project.repository):
        remove_staging(project.repository)
        with contextlib.suppress(OSError):  # a project that is read-only
            make_workspace(project.root)
        reports: list[ModelReport] = []
        broken: set[str] = set()
        for name, recipe in recipes.items():
            model = project.model(name)
            lost = (
                [step.model for step in model.steps if step.model in broken]
                if model.kind == "ensemble"
                else []
            )
            if lost:
                reason = f"its step {lost[0]!r} was not built"
                report = ModelReport(
                    name=name, kind=model.kind, action="skipped", version=None, reasons=(reason,)
                )
            else:
                report = _report(context, recipe, options, progress)
            if report.action in ("failed", "skipped"):
                broken.add(name)
            reports.append(report)
            on_report(report)
    return reports


def _explained(report: ModelReport, why: str | None) -> ModelReport:
    """Return a report that also says why the model was chosen."""
    return report if why is None else dataclasses.replace(report, reasons=(why, *report.reasons))


def _left_out(context: Context, name: str, reason: str) -> ModelReport:
    kind, version = context.project.model(name).kind, latest_version(context.folder(name))
    return ModelReport(name=name, kind=kind, action=Action.NONE.value, version=version, reasons=(reason,))


def _with_dependents(project: Project, reports: list[ModelReport]) -> list[ModelReport]:
    """Return a dry run's reports with the ensembles added that a planned build of a step will change."""
    planned: set[str] = set()
    result = []
    for decided in reports:
        report = decided
        model = project.model(report.name)
        steps = [step.model for step in model.steps] if model.kind == "ensemble" else []
        changing = [f"step {step} will be built" for step in steps if step in planned]
        if changing and report.action in (Action.NONE, Action.CONFIG):
            version = None if report.version is None else report.version + 1
            report = dataclasses.replace(
                report, action=Action.BUILD.value, version=version, reasons=(*report.reasons, *changing)
            )
        if report.action == Action.BUILD:
            planned.add(report.name)
        result.append(report)
    return result


def recipe_for(context: Context, name: str) -> Recipe:
    """Return the recipe of a model of the spec.

    Raises:
        SpecError: A file or folder that the spec names is missing, or a key below ``serve:`` is wrong.
    """
    model = context.project.model(name)
    if model.kind != "prebuilt":
        check_keys(context, name, model.serve)
    match model.kind:
        case "torch" | "onnx":
            return ExportRecipe(context, name, model)
        case "python":
            return PythonRecipe(context, name, model)
        case "prebuilt":
            return PrebuiltRecipe(context, name, model)
        case "ensemble":
            return EnsembleRecipe(context, name, model)


def build_context(project: Project, options: BuildOptions, progress: Progress) -> Context:
    """Take opset and IR version from the oldest release that the spec must run on."""
    cache = None
    if options.cache is not None:
        cache = StageCache(options.cache, project.root, progress=progress, refresh=options.force)
    releases = [target.release for target in project.spec.targets.values() if target.release]
    release = project.spec.release or min(releases, default=None)
    opset, ir_version = export_target(release)
    return Context(project=project, release=release, opset=opset, ir_version=ir_version, cache=cache)


def _report(context: Context, recipe: Recipe, options: BuildOptions, progress: Progress) -> ModelReport:
    """Decide and, unless it is a dry run, do; a failure becomes part of the report."""
    started = time.monotonic()
    name = recipe.name
    kind = context.project.model(name).kind
    reasons: tuple[str, ...] = ()
    try:
        asked = time.time()
        decision = decide(context, recipe, force=options.force)
        if options.fill_cache and not options.dry_run and decision.action is not Action.BUILD:
            keep_standing(context, recipe, decision.version, since=asked, progress=progress)
        if decision.action is Action.BUILD and "export" not in options.only:
            decision = _config_only(context, decision, name)
        reasons = decision.reasons
        outcome = Outcome(decision.action)
        if not options.dry_run:
            outcome = carry_out(context, recipe, decision, options.only, progress)
    except TritonToolkitError as exc:
        seconds = time.monotonic() - started
        progress.note(name, f"failed: {exc.message.partition(chr(10))[0].removeprefix(f'{name}: ')}")
        return ModelReport(
            name=name, kind=kind, action="failed", version=None, reasons=reasons, seconds=seconds, error=exc
        )
    return ModelReport(
        name=name,
        kind=kind,
        action=outcome.action.value,
        version=decision.version if options.dry_run else latest_version(context.folder(name)),
        reasons=reasons,
        seconds=time.monotonic() - started,
        from_cache=outcome.from_cache,
        passport=None if options.dry_run else context.passport(name),
    )


def _config_only(context: Context, decision: Decision, name: str) -> Decision:
    """Return what is left of a build without the export: a config for the version that stands."""
    if context.passport(name) is None:
        raise UsageError(f"{name}: --only config needs a built version", hint=f"run `tt build {name}` first")
    return dataclasses.replace(decision, action=Action.CONFIG, version=decision.version - 1)
