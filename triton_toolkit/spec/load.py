"""Load ``tt.yaml``: include, extend, validate; every error names file, line and key."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.source import KeyPath, Source, format_path, read_yaml

if TYPE_CHECKING:
    from triton_toolkit.spec.models import Model, Spec, Target

DEFAULT_NAME = "tt.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A loaded spec. Relative paths in it start at ``root``, the spec file's folder.

    ``spec.models`` also holds a model for each variant that another lists under ``also``;
    ``variant_of`` says whose it is.
    """

    root: Path
    spec: Spec
    source: Source
    variant_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        """The folder that ``tt build`` writes."""
        return self.root / self.spec.repository

    def error(self, path: KeyPath, message: str, hint: str = "") -> SpecError:
        """Return (not raise) an error about a key of the spec."""
        if path[:1] == ("models",) and len(path) > 1:
            path = ("models", self.variant_of.get(str(path[1]), path[1]), *path[2:])
        return self.source.error(path, message, hint)

    def with_variants(self, names: Sequence[str]) -> list[str]:
        """Return models, each followed by those that it lists under ``also``."""
        return [found for name in names for found in (name, *self._variants(name))]

    def _variants(self, name: str) -> list[str]:
        return [variant for variant, base in self.variant_of.items() if base == name]

    def model(self, name: str) -> Model:
        """Return a model of the spec.

        Raises:
            SpecError: There is none of that name; offers a near one.
        """
        models = self.spec.models
        if name in models:
            return models[name]
        raise self._unknown("model", name, list(models))

    def target(self, name: str) -> Target:
        """Return a target of the spec.

        Raises:
            SpecError: There is none of that name; offers a near one.
        """
        if name in self.spec.targets:
            return self.spec.targets[name]
        raise self._unknown("target", name, list(self.spec.targets))

    def at_server(self, target: str, url: str | None) -> Project:
        """Return this project with the target's server replaced, for a port that is not known before.

        Raises:
            SpecError: No such target.
        """
        if url is None:
            return self
        changed = self.target(target).model_copy(update={"servers": [url]})
        targets = {**self.spec.targets, target: changed}
        return replace(self, spec=self.spec.model_copy(update={"targets": targets}))

    def _unknown(self, what: str, name: str, known: list[str]) -> SpecError:
        near = difflib.get_close_matches(name, known, n=1)
        return SpecError(
            f"{self.source.mark(()).file}: no {what} {name!r}"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"{what}s of this spec: {', '.join(known) or 'none'}",
        )


def load_project(path: Path) -> Project:
    """Load and validate a spec file and the files it includes.

    Raises:
        SpecError: Anything wrong in it, with file, line, column and key.
    """
    source = read_yaml(path, str(path))
    if not isinstance(source.value, dict):
        raise source.error((), "a spec is a mapping of keys, starting with `spec: 1`")
    _include(source, path)
    _extend(source)
    spec, variant_of = _with_variants(source, _validate(source))
    project = Project(root=path.resolve().parent, spec=spec, source=source, variant_of=variant_of)
    _check_stores(project)
    return project


def _check_stores(project: Project) -> None:
    """Refuse a target that serves the very folder that ``tt build`` writes."""
    built = os.path.realpath(project.repository)
    for name, target in project.spec.targets.items():
        if os.path.realpath(project.root / target.store) == built:
            raise project.error(
                ("targets", name, "store"),
                f"{target.store!r} is the folder that tt build writes (`repository`): its server would load "
                "versions that were never tried, and a deployment has no former files to go back to",
                hint="give the server a folder of its own, such as ./served; tt deploy copies into it",
            )


def _with_variants(source: Source, spec: Spec) -> tuple[Spec, dict[str, str]]:
    """Give each variant under ``also`` a model of its own, named MODEL_VARIANT, after its model."""
    models: dict[str, Model] = {}
    variant_of: dict[str, str] = {}
    for name, model in spec.models.items():
        models[name] = model
        if model.kind not in ("torch", "onnx"):
            continue
        for index, variant in enumerate(model.also):
            derived = f"{name}_{variant}"
            if derived in spec.models or derived in variant_of:
                raise source.error(
                    ("models", name, "also", index),
                    f"would be served as {derived!r}, a name that is taken already",
                )
            models[derived] = model.model_copy(update={"serve_variant": variant, "also": []})
            variant_of[derived] = name
    return spec.model_copy(update={"models": models}), variant_of


def _include(source: Source, path: Path) -> None:
    """Merge ``include: [models/*.yaml]``: each file holds models by name."""
    patterns = source.value.pop("include", [])
    if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
        raise source.error(("include",), "must be a list of file patterns, such as [models/*.yaml]")
    for index, pattern in enumerate(patterns):
        for file in _matching(source, path, ("include", index), pattern):
            part = read_yaml(file, str(file))
            if not isinstance(part.value, dict) or "spec" in part.value or "models" in part.value:
                raise part.error(
                    (), "an included file is a mapping of model names, without `spec:` and `models:`"
                )
            _add_models(source, part)


def _matching(source: Source, path: Path, key: KeyPath, pattern: str) -> list[Path]:
    if not pattern or Path(pattern).is_absolute():
        raise source.error(key, f"{pattern!r} must be a file pattern relative to the spec's folder")
    files = [file for file in sorted(path.parent.glob(pattern)) if file.is_file() and file != path]
    if not files:
        raise source.error(key, f"no file matches {pattern!r}")
    return files


def _add_models(source: Source, part: Source) -> None:
    models = source.value.setdefault("models", {})
    if not isinstance(models, dict):
        return  # validation says what is wrong with it
    for name, value in part.value.items():
        if name in models:
            first = source.mark(("models", name))
            raise part.error((name,), f"model {name!r} is already defined at {first}")
        models[name] = value
    source.marks.update({("models", *key): mark for key, mark in part.marks.items() if key})
    source.texts.update({("models", *key): text for key, text in part.texts.items()})


def _extend(source: Source) -> None:
    """Replace ``extends: family`` by the family's keys, the model's own keys on top."""
    models = source.value.get("models")
    if not isinstance(models, dict):
        return
    for name, model in models.items():
        if isinstance(model, dict):
            models[name] = {"kind": "torch", **_with_family(source, ("models", name), model, ())}


def _with_family(
    source: Source, path: KeyPath, value: dict[str, Any], below: tuple[str, ...]
) -> dict[str, Any]:
    """Return a mapping with what it extends merged under it; families may extend families."""
    family = value.get("extends")
    if family is None:
        return value
    families = source.value.get("families")
    families = families if isinstance(families, dict) else {}
    if not isinstance(family, str) or not isinstance(families.get(family), dict):
        near = difflib.get_close_matches(str(family), [name for name in families if name != family], n=1)
        what = "is not a mapping of keys" if str(family) in families else "does not exist"
        raise source.error(
            (*path, "extends"),
            f"family {family!r} {what}" + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"families of this spec: {', '.join(families) or 'none'}",
        )
    if family in below:
        raise source.error((*path, "extends"), f"families extend each other: {' -> '.join((*below, family))}")
    base = _with_family(source, ("families", family), families[family], (*below, family))
    for table in (source.marks, source.texts):
        for key in [key for key in table if key[:2] == ("families", family) and len(key) > 2]:
            table.setdefault((*path, *key[2:]), table[key])  # type: ignore[arg-type]
    return _merge(base, value)


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _validate(source: Source) -> Spec:
    from pydantic import ValidationError

    from triton_toolkit.spec.faults import spec_error
    from triton_toolkit.spec.models import Spec

    try:
        return Spec.model_validate(source.value)
    except ValidationError as exc:
        raise spec_error(source, exc) from exc


__all__ = ["DEFAULT_NAME", "Project", "format_path", "load_project"]
