"""What every kind of model must answer: what it depends on, how it is made, how it is configured."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from triton_toolkit import _workspace
from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file
from triton_toolkit._progress import Progress
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import TritonToolkitError
from triton_toolkit.export.trace_files import split_missing
from triton_toolkit.repository.layout import latest_version
from triton_toolkit.repository.passport import MISSING, Passport, read_passport
from triton_toolkit.spec.load import Project

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from triton_toolkit.build.cache import StageCache
    from triton_toolkit.export.environments import Environment
    from triton_toolkit.spec.models import Model

_VANISHED = "gone before the build ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a build happens and what it is for.

    Attributes:
        project: The loaded spec.
        release: Triton container that the models must run on; None for the embedded one.
        opset: Highest ONNX opset that the target release runs.
        ir_version: Highest ONNX IR version that the target release reads.
        cache: Where results of earlier builds are looked for and kept; None for nowhere.
        refused: Key of an export that failed in this build -> its error: variants share an export.
    """

    project: Project
    release: str | None
    opset: int
    ir_version: int
    cache: StageCache | None = None
    refused: dict[str, TritonToolkitError] = field(default_factory=dict)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Folders of the project that a build writes or a deployment fills, never reads."""
        spec = self.project.spec
        cache = self.cache.folder if self.cache else None
        stores = (target.store for target in spec.targets.values())
        return (spec.repository, *stores, _workspace.NAME, *([str(cache.absolute())] if cache else []))

    def folder(self, name: str) -> Path:
        """Return a model's folder in the repository."""
        return self.project.repository / name

    def passport(self, name: str) -> Passport | None:
        """Return the passport of a model's latest built version, None where there is none."""
        version = latest_version(self.folder(name))
        return None if version is None else read_passport(self.folder(name) / str(version))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a recipe put into a version folder, beside the files themselves."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch_dim: str | None = None
    dims: dict[str, list[int]] = field(default_factory=dict)
    onnx: dict[str, Any] = field(default_factory=dict)
    parity: list[dict[str, Any]] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    speed: dict[str, Any] = field(default_factory=dict)
    tolerance: dict[str, Any] | None = None
    """Of the served outputs against the golden sample; that of the model where left out."""
    dependencies: tuple[str, ...] = ()
    tools: dict[str, str] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)
    sample_inputs: dict[str, NDArray[Any]] | None = None
    """Golden inputs whose outputs the embedded server has yet to record."""


class Recipe(Protocol):
    """How one model of the spec becomes a version folder and a config."""

    name: str
    backend: str
    variant: str

    @property
    def measured(self) -> bool:
        """Whether the passport holds figures of the processor at hand, which are another's elsewhere."""

    def key(self) -> dict[str, str]:
        """Return what the version folder depends on, part -> value or SHA-256; project files apart."""

    def make(self, folder: Path, progress: Progress) -> Made:
        """Fill an empty version folder.

        Raises:
            TritonToolkitError: Why it cannot be made; the folder is then thrown away.
        """

    def config(self, passport: Passport) -> str:
        """Return the text of ``config.pbtxt`` for what was made."""

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield files that lie beside ``config.pbtxt`` (labels …): name, source."""


NOT_BUILT = frozenset({"serve", "slo", "extends", "env", "trust"})
"""Keys of a model that do not decide what is in its version folder. An environment does by its content,
see ``environment_key``; without trust a build fails or gives the same."""


def spec_hash(model: Model, *, without: frozenset[str] = NOT_BUILT) -> str:
    """Return the hash of the part of a model's spec that the version folder depends on."""
    return sha256_bytes(canonical_json(model.model_dump(mode="json", exclude=set(without))).encode())


def environment_key(context: Context, model: Model) -> dict[str, str]:
    """Return the part of a key that stands for the model's own environment; {} without one."""
    from triton_toolkit.export import environments

    return environments.environment_key(context.project.root, _environment(model))


def interpreter(
    context: Context, name: str, kind: Literal["torch", "onnx", "sample"], progress: Progress
) -> str | None:
    """Return the model's own interpreter, made where it is not there yet; None for that of tt.

    Raises:
        EnvironmentProblem: It is missing or does not run, or its lock does not install.
        MissingDependencyError: It lacks a package that ``kind`` needs.
    """
    from triton_toolkit.export.environments import prepare_environment

    model = context.project.model(name)
    python = prepare_environment(context.project.root, _environment(model), kind, progress, name)
    return None if python is None else str(python)


def _environment(model: Model) -> Environment | None:
    from triton_toolkit.export.environments import Environment

    return None if model.env is None else Environment(python=model.env.python, lock=model.env.lock)


def tool_versions(*packages: str) -> dict[str, str]:
    """Return ``tool NAME`` -> version of the packages that are installed here.

    A package that is missing is left out: without it nothing can be rebuilt, so its absence does
    not make a built version stale.
    """
    found = {f"tool {package}": _version(package) for package in packages}
    return {tool: version for tool, version in found.items() if version}


@functools.cache
def _version(package: str) -> str:
    """Return an installed package's version without its local part, empty where it is not installed."""
    try:
        # 2.13.0+cpu and 2.13.0+cu130 export the same graph
        return metadata.version(package).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def file_hashes(root: Path, names: Iterator[str] | tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return name -> SHA-256 of files below ``root``; MISSING for one that is not there."""
    return {
        name: sha256_file(root / name) if (root / name).is_file() else MISSING for name in sorted(set(names))
    }


def states_read(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Return what a step that has just ended found: name -> SHA-256, or MISSING.

    One that was missing counts as missing even where it is there by now, and one that has vanished
    since as nothing that it can be again: either makes what was built from it stale.
    """
    there, missing = split_missing(names)
    hashes = file_hashes(root, list(there))
    gone = {name: _VANISHED for name, value in hashes.items() if value == MISSING}
    return dict(sorted({**hashes, **gone, **dict.fromkeys(missing, MISSING)}.items()))
