"""Python interpreters that are not ours: found, asked what they are, and kept apart from ours."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit._process import run_child
from triton_toolkit.errors import EnvironmentProblem

OLDEST_PYTHON = (3, 11)
"""The oldest Python that this package runs on."""

_OF_THE_PARENT = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")

_INSPECT = """\
import json, sys
from importlib import metadata
found = {}
for one in metadata.distributions():
    name = one.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-"), one.version)
print("tt:" + json.dumps({"version": list(sys.version_info[:3]), "packages": found}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """An interpreter that runs, and what is installed in it.

    ``packages`` maps names, in lower case with ``-``, to versions.
    """

    path: Path
    version: tuple[int, int, int]
    packages: Mapping[str, str]


def find_interpreter(root: Path, named: str) -> Path:
    """Return the path of an interpreter that the spec names: a path, or a command such as python3.12.

    Raises:
        EnvironmentProblem: There is none.
    """
    if "/" not in named and not (root / named).exists():
        found = shutil.which(named)
        if found:
            return Path(found)
    path = Path(os.path.abspath(root / named))  # links stay: a virtual environment is known by its path
    if path.is_dir():
        inner = "/bin/python" if (path / "bin" / "python").exists() else ""
        meant = (
            f"write {named.rstrip('/')}{inner}"
            if inner
            else "name the interpreter, such as envs/nlp/bin/python"
        )
        raise EnvironmentProblem(f"env: {named} is a folder, not a Python interpreter", hint=meant)
    if not os.access(path, os.X_OK):
        fault = "cannot be run" if path.exists() else "does not exist"
        folder = str(Path(named).parent.parent)
        raise EnvironmentProblem(
            f"env: the interpreter {named} {fault}",
            hint=f"make it: python -m venv {folder} && {named} -m pip install torch onnx onnxscript, with "
            "what the model needs; or give a lock, from which tt makes it: env: {lock: FILE}",
        )
    return path


@functools.cache
def inspect_interpreter(path: Path) -> Interpreter:
    """Run an interpreter and ask for its version and packages; once a process.

    Raises:
        EnvironmentProblem: It does not run, or is too old.
    """
    try:
        child = run_child([str(path), "-c", _INSPECT], env=clean_environment())
    except OSError as exc:
        raise EnvironmentProblem(f"env: {path} cannot be run: {exc.strerror}") from exc
    answer = next((line[3:] for line in child.output.splitlines() if line.startswith("tt:")), None)
    if answer is None:
        raise EnvironmentProblem(
            f"env: {path} does not run as a Python interpreter ({child.how_it_ended})",
            hint="name the interpreter of an environment, such as envs/nlp/bin/python",
            detail=child.output,
        )
    found: dict[str, Any] = json.loads(answer)
    version = tuple(found["version"])
    if version[:2] < OLDEST_PYTHON:
        raise EnvironmentProblem(
            f"env: {path} is Python {dotted(version)}; the export needs {dotted(OLDEST_PYTHON)} or newer",
            hint=f"make the environment with a newer one: python{dotted(OLDEST_PYTHON)} -m venv …",
        )
    return Interpreter(path=path, version=version, packages=found["packages"])


def clean_environment() -> dict[str, str]:
    """Return our environment variables without those that lead one interpreter to another's packages."""
    return {name: value for name, value in os.environ.items() if name not in _OF_THE_PARENT}


def numbers_of(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (2, 13, 0) of 2.13.0+cpu."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(version: tuple[int, ...]) -> str:
    """Return numbers as a version is written."""
    return ".".join(map(str, version))
