"""What is deployed: built models, read from the project's repository and checked against passports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file
from triton_toolkit.config.message import parse_config
from triton_toolkit.errors import DeployError
from triton_toolkit.repository.layout import CONFIG_NAME, latest_version, versions
from triton_toolkit.repository.passport import (
    MISSING,
    Passport,
    Samples,
    check_files,
    read_passport,
    read_samples,
)

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """The latest built version of a model.

    Attributes:
        name: Its name, here and on the server.
        folder: The version folder.
        version: Its number in the project's repository; the target may give it a higher one.
        passport: The facts of this version.
        config_text: ``config.pbtxt`` as built.
        config: The same, parsed.
        samples: Golden inputs and outputs; None where the build had none.
        beside: Further files of the model folder (labels, warm-up data), by relative path.
    """

    name: str
    folder: Path
    version: int
    passport: Passport
    config_text: str
    config: ModelConfig
    samples: Samples | None
    beside: dict[str, Path]

    @property
    def files(self) -> dict[str, Path]:
        """The files of the version folder by relative path, the passport included."""
        return {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }

    @property
    def bytes(self) -> int:
        """What a copy of it takes on a disk."""
        paths = [*self.files.values(), *self.beside.values()]
        return sum(path.stat().st_size for path in paths) + len(self.config_text.encode())

    @property
    def files_sha256(self) -> str:
        """The hash of the passport's list of file hashes: versions with the same content have the same.

        ``tt build`` writes it into the ensemble's passport for each step that it was built over.
        """
        return sha256_bytes(canonical_json(self.passport.files).encode())

    @property
    def steps(self) -> tuple[str, ...]:
        """The models that an ensemble calls, each once; () for others."""
        return ensemble_steps(self.config)


def ensemble_steps(config: ModelConfig) -> tuple[str, ...]:
    """Return the models that an ensemble's config calls, each once; () for another model's config."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def read_built(repository: Path, name: str) -> BuiltModel:
    """Read the latest built version of a model and check it against its passport.

    Raises:
        DeployError: Not built, or changed since it was built.
        RepositoryError: Its passport, samples or ``config.pbtxt`` cannot be read.
    """
    model_folder = repository / name
    version = latest_version(model_folder)
    config_path = model_folder / CONFIG_NAME
    if version is None or not config_path.is_file():
        raise DeployError(
            f"model {name!r} is not built: {model_folder} has no "
            + ("version folder" if version is None else CONFIG_NAME),
            hint=f"run `tt build {name}` first",
        )
    folder = model_folder / str(version)
    passport = read_passport(folder)
    if passport is None:
        raise DeployError(
            f"{folder} has no passport, so nothing says what it is", hint=f"run `tt build {name}`"
        )
    config_text = config_path.read_text(encoding="utf-8")
    _check_unchanged(name, folder, passport, config_text)
    return BuiltModel(
        name=name,
        folder=folder,
        version=version,
        passport=passport,
        config_text=config_text,
        config=parse_config(config_text, str(config_path)),
        samples=read_samples(folder),
        beside=files_beside(model_folder),
    )


def read_with_steps(repository: Path, names: Sequence[str]) -> list[BuiltModel]:
    """Read models and the steps that their ensembles call, each after what it needs.

    A step that the project does not build is left out: it must be on the target already, which
    the preflight checks.
    """
    models: dict[str, BuiltModel] = {}

    def add(name: str, *, required_by: str = "") -> None:
        if name in models or (required_by and not versions(repository / name)):
            return
        model = read_built(repository, name)
        for step in model.steps:
            add(step, required_by=name)
        models[name] = model

    for name in names:
        add(name)
    return list(models.values())


def changed_sources(root: Path, model: BuiltModel) -> list[str]:
    """Return, in words, the project's files that changed since a model was built from them.

    Args:
        root: The project's folder, that of the spec.
        model: The model; its passport names the files that were read while it was built.
    """
    changed = []
    for name, was in model.passport.dependencies.items():
        path = root / name
        if was == MISSING:
            changed += [f"{name} is new"] if path.is_file() else []
        elif not path.is_file():
            changed.append(f"{name} is gone")
        elif sha256_file(path) != was:
            changed.append(f"{name} changed")
    if not changed:
        return []
    return [f"{', '.join(changed)} since version {model.version} was built; run `tt build {model.name}`"]


def files_beside(model_folder: Path) -> dict[str, Path]:
    """Return the files of a model folder that are neither its config nor in a version folder."""
    inside = {str(number) for number in versions(model_folder)}
    found: dict[str, Path] = {}
    for path in sorted(model_folder.rglob("*")):
        relative = path.relative_to(model_folder)
        top = relative.parts[0]
        if path.is_file() and top not in inside and top != CONFIG_NAME and not top.startswith("."):
            found[relative.as_posix()] = path
    return found


def _check_unchanged(name: str, folder: Path, passport: Passport, config_text: str) -> None:
    problems = check_files(folder, passport)
    if passport.config_sha256 and sha256_bytes(config_text.encode()) != passport.config_sha256:
        problems.append(f"{CONFIG_NAME} is not the one that was built (its SHA-256 differs)")
    if passport.model != name:
        problems.append(f"its passport is that of model {passport.model!r}")
    if problems:
        raise DeployError(
            f"model {name!r} version {folder.name} was changed after it was built: {'; '.join(problems)}",
            hint=f"run `tt build --force {name}`, or put the built files back",
        )
