"""The interpreter that a model's own code runs in: that of tt, one that is there, or one made from a lock.

Models of one project may need packages that exclude each other. Each names its interpreter; tt's own
package is brought into it by ``bootstrap``, tt's packages stay outside.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from triton_toolkit._files import canonical_json, host_errors, locked_folder, sha256_bytes, write_text
from triton_toolkit._process import run_child
from triton_toolkit._progress import Progress
from triton_toolkit._workspace import ENVIRONMENTS_NAME, make_workspace
from triton_toolkit.errors import EnvironmentProblem, MissingDependencyError
from triton_toolkit.export.interpreters import (
    Interpreter,
    clean_environment,
    dotted,
    find_interpreter,
    inspect_interpreter,
    numbers_of,
)
from triton_toolkit.export.locks import lock_hash

NEEDED: Mapping[str, tuple[int, ...]] = {
    "torch": (2, 6),
    "onnxscript": (0, 5),
    "onnx": (1, 17),
    "numpy": (1, 26),
}
"""The packages that the export takes from a model's interpreter, and the oldest version of each."""

_PACKAGES_OF: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "onnxscript", "onnx", "numpy"),
    "onnx": ("onnx", "numpy"),
    "sample": ("numpy",),
}
_COMPLETE = ".tt-complete"
_PIP_FOR_OTHERS = (22, 3)
_OF_PIP = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_DEPS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the spec says of a model's interpreter; paths are relative to the project's root.

    Attributes:
        python: An interpreter; with ``lock``, the one that the environment is made with.
        lock: A pip requirements file.
    """

    python: str | None = None
    lock: str | None = None

    @property
    def shown(self) -> str:
        """How the spec names it, for messages."""
        return self.lock or str(self.python)


def environment_key(root: Path, environment: Environment | None) -> dict[str, str]:
    """Return what a build depends on by its environment, part -> hash; makes and changes nothing.

    A lock counts by its content, with the files and local packages that it names, and the version of
    Python; an interpreter by the versions of all its packages. Of one that is not there now nothing is
    known: without it nothing can be rebuilt, so that does not make a built version stale.
    """
    if environment is None:
        return {}
    known = {"environment": "its own"}
    try:
        if environment.lock is not None:
            value = lock_hash(root, environment.lock, _base(root, environment).version)
        else:
            found = inspect_interpreter(find_interpreter(root, str(environment.python)))
            value = sha256_bytes(canonical_json([found.version, dict(found.packages)]).encode())
    except EnvironmentProblem:
        return known
    return known | {"tool environment": value}


def prepare_environment(
    root: Path,
    environment: Environment | None,
    kind: Literal["torch", "onnx", "sample"],
    progress: Progress,
    name: str = "",
) -> Path | None:
    """Return the interpreter to run a model's code in, made from the lock where it is not there yet.

    Args:
        root: The project's folder.
        environment: What the spec says; None for the interpreter of tt.
        kind: What will be done there, which decides the packages that it must have.
        progress: Is told what pip does.
        name: The model's name, for progress.

    Returns:
        Its path; None for the interpreter of tt.

    Raises:
        EnvironmentProblem: It is missing, does not run, or is too old; or the lock does not install.
        MissingDependencyError: It lacks a package that the export needs.
    """
    if environment is None:
        return None
    try:
        if environment.lock is None:
            python = find_interpreter(root, str(environment.python))
        else:
            python = _from_lock(root, environment, progress, name)
        _check_packages(inspect_interpreter(python), environment, kind)
    except (EnvironmentProblem, MissingDependencyError) as exc:
        if not name:
            raise
        raise type(exc)(f"{name}: {exc.message}", hint=exc.hint, detail=exc.detail) from exc
    return python


def _check_packages(found: Interpreter, environment: Environment, kind: str) -> None:
    lacking = []
    for package in _PACKAGES_OF[kind]:
        version, oldest = found.packages.get(package), NEEDED[package]
        if version is None:
            lacking.append(package)
        elif numbers_of(version) < oldest:
            lacking.append(f"{package}>={dotted(oldest)} (it has {version})")
    if not lacking:
        return
    needed = " ".join(f'"{package}>={dotted(NEEDED[package])}"' for package in _PACKAGES_OF[kind])
    if environment.lock:
        hint = f"add to {environment.lock} what is missing, of {needed}"
    else:
        hint = f"{environment.python} -m pip install {needed}"
    raise MissingDependencyError(
        f"env: {environment.shown} lacks {', '.join(lacking)}, which the export needs", hint=hint
    )


def _base(root: Path, environment: Environment) -> Interpreter:
    """Return the interpreter that an environment is made with."""
    named = environment.python
    return inspect_interpreter(Path(sys.executable) if named is None else find_interpreter(root, named))


def _from_lock(root: Path, environment: Environment, progress: Progress, name: str) -> Path:
    """Return the interpreter of the environment that stands for a lock.

    It is made where it will stay, since its scripts hold their own path, and counts as made when a file
    says so that is written last.
    """
    base = _base(root, environment)
    digest = lock_hash(root, str(environment.lock), base.version)
    folder = root / ENVIRONMENTS_NAME / f"{Path(str(environment.lock)).stem}-{digest[:16]}"
    python = folder / "bin" / "python"
    if (folder / _COMPLETE).is_file():
        return python
    with host_errors(f"write {folder}"):
        make_workspace(root)
        with locked_folder(folder):
            if not (folder / _COMPLETE).is_file():
                _clear(folder)
                try:
                    _make(root, folder, (base, str(environment.lock)), progress, name)
                    write_text(folder / _COMPLETE, digest + "\n")
                except BaseException:
                    _clear(folder)
                    folder.rmdir()
                    raise
    return python


def _make(root: Path, folder: Path, source: tuple[Interpreter, str], progress: Progress, name: str) -> None:
    """Make a virtual environment and install the lock into it.

    Raises:
        EnvironmentProblem: One of the two failed; holds what pip printed.
    """
    base, lock = source
    python = str(folder / "bin" / "python")
    variables = {key: value for key, value in clean_environment().items() if key not in _OF_PIP}
    progress.step(name, f"make an environment from {lock}")
    # The pip that is there installs into another environment, which saves some seconds.
    has_pip = numbers_of(base.packages.get("pip", "")) >= _PIP_FOR_OTHERS
    venv = ["-m", "venv", *(["--without-pip"] if has_pip else []), str(folder)]
    made = run_child([str(base.path), *venv], env=variables, cwd=root)
    if made.returncode:
        raise EnvironmentProblem(
            f"env: {base.path} cannot make a virtual environment ({made.how_it_ended})",
            hint="its venv module is incomplete: on Debian and Ubuntu, install python3-venv",
            detail=made.output,
        )
    pip = [str(base.path), "-m", "pip", "--python", python] if has_pip else [python, "-m", "pip"]
    pip += ["install", "--no-input", "--disable-pip-version-check", "-r", str(root / lock)]

    def tell(line: str) -> None:
        if line.strip():
            progress.step(name, f"{lock}: {line.strip()}")

    installed = run_child(pip, env=variables, cwd=root, on_line=tell)
    if installed.returncode:
        raise EnvironmentProblem(
            f"env: {lock} does not install: {_error_of_pip(installed.output)}",
            hint="correct the lock, or pip's settings (pip config list), and build again",
            detail=installed.output,
        )


def _error_of_pip(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wrong = [line for line in lines if line.startswith("ERROR:")]
    found = wrong[0] if wrong else next(reversed(lines), "pip said nothing")
    return found.removeprefix("ERROR: ")


def _clear(folder: Path) -> None:
    """Empty a folder that stays itself, as its lock is held on it."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
