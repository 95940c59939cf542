"""Find the passport and the golden sample of the model version that a server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import sha256_file
from triton_toolkit.client.endpoint import parse_url
from triton_toolkit.errors import EnvironmentProblem, UsageError
from triton_toolkit.repository.layout import PASSPORT_NAME, SAMPLES_NAME
from triton_toolkit.repository.passport import Passport, Samples, read_passport, read_samples

if TYPE_CHECKING:
    from triton_toolkit.spec.load import Project
    from triton_toolkit.spec.models import Target

DEFAULT_TOLERANCE = {"absolute": 1e-4, "relative": 1e-3}
"""For a sample without a passport; the defaults of ``tolerance`` in tt.yaml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """What is known of how the model should answer.

    Attributes:
        samples: Golden inputs and outputs, None where there are none.
        passport: The version's passport, None where there is none.
        origin: Where they were found; empty where nowhere.
        missing: Why there is no sample, in words; empty where there is one.
    """

    samples: Samples | None = None
    passport: Passport | None = None
    origin: str = ""
    missing: str = ""

    @property
    def tolerance(self) -> dict[str, float]:
        """The absolute and relative tolerance of outputs against the sample."""
        known = self.passport.tolerance if self.passport else {}
        return {**DEFAULT_TOLERANCE, **known}

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
    return Golden(
        samples=samples,
        passport=read_passport(folder if folder.is_dir() else folder.parent),
        origin=str(path),
    )


def from_project(project: Project, model: str, version: str, url: str) -> Golden:
    """Look for the version that a server runs: in the store of the spec's target at this URL.

    A server that is no target's may serve the spec's repository or any target's store, whose version
    numbers need not agree: where they hold different samples under this number, none is taken.

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
    if not found:
        return Golden(missing=f"there is none in {', '.join(map(str, folders))}")
    if len({sha256_file(folder / SAMPLES_NAME) for folder in found}) > 1:
        return Golden(
            missing=f"{' and '.join(map(str, found))} hold different ones, and no target of the spec is at "
            f"{url}; --passport says which"
        )
    return Golden(samples=read_samples(found[0]), passport=read_passport(found[0]), origin=str(found[0]))


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
