"""Load ``tt.yaml``: include, extend, validate; every error names file, line and key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.source import KeyPath, Source, format_path, read_yaml

if TYPE_CHECKING:
    from pydantic import ValidationError

    from triton_toolkit.spec.models import Model, Spec, Target

DEFAULT_NAME = "tt.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A loaded spec. Relative paths in it start at ``root``, the spec file's folder."""

    root: Path
    spec: Spec
    source: Source

    @property
    def repository(self) -> Path:
        """The folder that ``tt build`` writes."""
        return self.root / self.spec.repository

    def error(self, path: KeyPath, message: str, hint: str = "") -> SpecError:
        """Return (not raise) an error about a key of the spec."""
        return self.source.error(path, message, hint)

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
    return Project(root=path.resolve().parent, spec=_validate(source), source=source)


def _include(source: Source, path: Path) -> None:
    """Merge ``include: [models/*.yaml]``: each file holds models by name."""
    patterns = source.value.pop("include", [])
    if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
        raise source.error(("include",), "is a list of file patterns, such as [models/*.yaml]")
    models = source.value.setdefault("models", {})
    if not isinstance(models, dict):
        return  # validation says what is wrong with it
    for index, pattern in enumerate(patterns):
        files = sorted(path.parent.glob(pattern))
        if not files:
            raise source.error(("include", index), f"no file matches {pattern!r}")
        for file in files:
            part = read_yaml(file, str(file))
            if not isinstance(part.value, dict):
                raise part.error((), "an included file is a mapping of model names")
            for name, value in part.value.items():
                if name in models:
                    raise part.error(
                        (name,), f"model {name!r} is already defined at {source.mark(('models', name))}"
                    )
                models[name] = value
            source.marks.update({("models", *key): mark for key, mark in part.marks.items() if key})


def _extend(source: Source) -> None:
    """Replace ``extends: family`` by the family's keys, the model's own keys on top."""
    families, models = source.value.get("families", {}), source.value.get("models", {})
    if not isinstance(families, dict) or not isinstance(models, dict):
        return
    for name, model in models.items():
        if not isinstance(model, dict):
            continue
        model.setdefault("kind", "torch")
        family = model.get("extends")
        if family is None:
            continue
        if not isinstance(family, str) or not isinstance(families.get(family), dict):
            near = difflib.get_close_matches(str(family), list(families), n=1)
            raise source.error(
                ("models", name, "extends"),
                f"no family {family!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"families of this spec: {', '.join(families) or 'none'}",
            )
        for key, mark in list(source.marks.items()):
            if key[:2] == ("families", family) and len(key) > 2:
                source.marks.setdefault(("models", name, *key[2:]), mark)
        models[name] = _merge(families[family], model)


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return merged


def _validate(source: Source) -> Spec:
    from pydantic import ValidationError

    from triton_toolkit.spec.models import Spec

    try:
        return Spec.model_validate(source.value)
    except ValidationError as exc:
        raise _spec_error(source, exc) from exc


_KINDS = ("torch", "onnx", "python", "prebuilt", "ensemble")


def _spec_error(source: Source, exc: ValidationError) -> SpecError:
    """Report the first fault in full and the number of the others."""
    faults = exc.errors(include_url=False)
    first = faults[0]
    path = _key_path(first["loc"])
    others = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    match first["type"]:
        case "extra_forbidden":
            known = _keys_at(path)
            near = difflib.get_close_matches(str(path[-1]), known, n=1)
            text = f"unknown key {path[-1]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            return source.error(path, text + others, hint=f"known here: {', '.join(known)}" if known else "")
        case "missing":
            return source.error(path[:-1], f"key {path[-1]!r} is missing{others}")
        case "union_tag_invalid":
            return source.error((*path, "kind"), f"unknown kind{others}", hint=f"known: {', '.join(_KINDS)}")
        case "value_error":
            return source.error(path, str(first["ctx"]["error"]) + others)
        case _:
            shown = repr(first["input"])
            value = f", got {shown}" if len(shown) < 80 else ""
            return source.error(path, first["msg"][:1].lower() + first["msg"][1:] + value + others)


def _key_path(loc: tuple[int | str, ...]) -> KeyPath:
    """Drop what pydantic adds to a location: the union's tag after ``models.NAME``."""
    if len(loc) > 2 and loc[0] == "models" and loc[2] in _KINDS:
        return (*loc[:2], *loc[3:])
    return tuple(loc)


def _keys_at(path: KeyPath) -> list[str]:
    """Return the keys allowed beside the last part of ``path``, from the JSON Schema."""
    from triton_toolkit.spec.schema import json_schema, keys_at

    return keys_at(json_schema(), path[:-1])


__all__ = ["DEFAULT_NAME", "Project", "format_path", "load_project"]
