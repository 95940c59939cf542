"""Find the passport and the golden sample of the model version that a server runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import sha256_file
from triton_toolkit.client.endpoint import parse_url
from triton_toolkit.core.compare import Tolerances
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import EnvironmentProblem, UsageError
from triton_toolkit.repository.layout import PASSPORT_NAME, SAMPLES_NAME, latest_version
from triton_toolkit.repository.passport import Passport, Samples, read_passport, read_samples

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project
    from triton_toolkit.spec.models import Model, Target

    Declared = tuple[tuple[TensorSpec, ...], Mapping[str, Sequence[int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What is known of how the model should answer.

    Attributes:
        samples: Golden inputs and outputs, None where there are none.
        passport: The version's passport, None where there is none.
        origin: Where they were found; empty where nowhere.
        missing: Why there is no sample, in words; empty where there is one.
        inputs: The inputs as a passport or the spec names their dimensions; () where neither knows them.
        dims: Dynamic dimension -> [min, opt, max], likewise.
    """

    samples: Samples | None = None
    passport: Passport | None = None
    origin: str = ""
    missing: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def tolerances(self) -> Tolerances:
        """How far outputs may lie from the sample; those of FP32 for a sample without a passport."""
        return Tolerances.from_dict(self.passport.tolerance if self.passport else {})

    @property
    def rows_are_independent(self) -> bool:
        """Whether the build proved that rows of a batch do not influence each other."""
        return self.passport is not None and self.passport.kind in ("torch", "onnx")


def from_path(path: Path) -> Golden:
    """Read ``--passport``: a version folder, its ``passport.json``, or a samples file.

    Raises:
        UsageError: There is no sample there.
        RepositoryError: What is there cannot be read.
    """
    folder = path.parent if path.name == PASSPORT_NAME else path
    if not path.exists():
        raise UsageError(f"--passport {path}: no such file or folder")
    samples = read_samples(folder)
    if samples is None:
        raise UsageError(
            f"--passport {path}: there is no {SAMPLES_NAME}",
            hint="give a version folder that tt built, such as model_repository/digits/1",
        )
    return _golden(samples, read_passport(folder if folder.is_dir() else folder.parent), str(path))


def from_project(project: Project, model: str, version: str, url: str) -> Golden:
    """Look for the version that a server runs: in the store of the spec's target at this URL.

    A server that is no target's may serve the spec's repository or any target's store, whose version
    numbers need not agree: where they hold different samples under this number, none is taken. The
    names and usual sizes of the model's dimensions are known all the same: from the passport of that
    version, else from what the spec says, else from the newest passport of the model.

    Raises:
        RepositoryError: What is there cannot be read.
    """
    if model not in project.spec.models:
        return Golden(missing=f"{project.source.mark(()).file} has no model {model!r}")
    stores = [project.root / target.store for target in targets_at(project, url)]
    if not stores:
        all_stores = [project.root / target.store for target in project.spec.targets.values()]
        stores = [project.repository, *all_stores]
    folders = list(dict.fromkeys(store / model / version for store in stores))
    found = [folder for folder in folders if (folder / SAMPLES_NAME).is_file()]
    if len({sha256_file(folder / SAMPLES_NAME) for folder in found}) == 1:
        return _golden(read_samples(found[0]), read_passport(found[0]), str(found[0]))
    if found:
        places = " and ".join(str(folder.parent.parent) for folder in found)
        missing = (
            f"{places} hold different samples of {model!r} under version {version}, and no target of the "
            f"spec is at {url}; --passport says which"
        )
    else:
        missing = f"there is none in {', '.join(map(str, folders))}"
    inputs, dims = _declared(project, model, folders)
    return Golden(missing=missing, inputs=inputs, dims=dims)


def _golden(samples: Samples | None, passport: Passport | None, origin: str) -> Golden:
    return Golden(
        samples=samples,
        passport=passport,
        origin=origin,
        inputs=passport.inputs if passport else (),
        dims=passport.dims if passport else {},
    )


def _declared(project: Project, model: str, folders: Sequence[Path]) -> Declared:
    """Return the model's inputs and the ranges of their dimensions, as far as anything here knows them."""
    return (
        _from_passports(folders)
        or _from_spec(project.spec.models[model])
        or _from_passports(_newest([project.repository / model, *(folder.parent for folder in folders)]))
        or ((), {})
    )


def _from_passports(folders: Iterable[Path]) -> Declared | None:
    passports = (read_passport(folder) for folder in folders)
    return next(((item.inputs, item.dims) for item in passports if item is not None and item.inputs), None)


def _from_spec(model: Model) -> Declared | None:
    inputs = getattr(model, "inputs", {})  # a prebuilt model and an ensemble have none in the spec
    if not inputs:
        return None
    dims = {name: entry.dim(name) for name, entry in getattr(model, "dims", {}).items()}
    tensors = tuple(entry.tensor(name) for name, entry in inputs.items())
    return tensors, {name: (dim.min, dim.opt, dim.max) for name, dim in dims.items()}


def _newest(model_folders: Iterable[Path]) -> Iterator[Path]:
    for folder in model_folders:
        version = latest_version(folder)
        if version is not None:
            yield folder / str(version)


def targets_at(project: Project, url: str) -> Iterator[Target]:
    """Yield the spec's targets that this URL is a server of."""
    wanted = parse_url(url)
    for target in project.spec.targets.values():
        if any(parse_url(server) == wanted or server == url for server in target.servers):
            yield target


def target_headers(project: Project, url: str) -> dict[str, str]:
    """Return the headers that the spec's target at this URL asks for, from the environment.

    Raises:
        EnvironmentProblem: A variable that the target names is not set.
    """
    headers = {}
    for target in targets_at(project, url):
        for name, source in target.auth.items():
            value = os.environ.get(source.env)
            if value is None:
                raise EnvironmentProblem(
                    f"{url}: header {name!r} comes from environment variable {source.env}, which is not set",
                    hint=f"set {source.env}, as `auth` of the target in tt.yaml says",
                )
            headers[name] = value
    return headers
