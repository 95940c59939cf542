"""What is in the wheel, and that it works with nothing but its base dependencies and no checkout."""

from __future__ import annotations

import email
import json
import os
import subprocess
import venv
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from triton_toolkit import __version__
from triton_toolkit.cli import COMMANDS

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_every_module_is_in_it(names):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "triton_toolkit").rglob("*.py")}
    assert modules <= names


@pytest.mark.parametrize(
    "name",
    [
        "triton_toolkit/py.typed",
        "triton_toolkit/data/releases.tsv",
        "triton_toolkit/data/onnxruntime.tsv",
        "triton_toolkit/data/features.tsv",
        "triton_toolkit/data/init/example_model.py.in",
        "triton_toolkit/server/backends/onnxruntime/model.py",
    ],
)
def test_what_modules_need_beside_them_is_in_it(names, name):
    assert name in names


def test_every_template_is_in_it(names):
    templates = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "templates").rglob("*") if path.is_file()
    }
    assert templates
    assert {f"triton_toolkit/{name}" for name in templates} <= names


def test_nothing_else_is_in_it(names):
    information = f"triton_toolkit-{__version__}.dist-info/"
    assert {name for name in names if not name.startswith(("triton_toolkit/", information))} == set()
    assert [name for name in names if "__pycache__" in name or "test" in Path(name).name] == []


def test_its_metadata_names_licence_command_and_python(wheel):
    information = f"triton_toolkit-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        found = email.message_from_bytes(archive.read(f"{information}/METADATA"))
        assert "tt = triton_toolkit.__main__:main" in archive.read(f"{information}/entry_points.txt").decode()
        assert "Apache License" in archive.read(f"{information}/licenses/LICENSE").decode()
    assert found["Version"] == __version__
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Requires-Python"] in ("<3.13,>=3.11", ">=3.11,<3.13")


def base_packages(wheel: Path) -> set[str]:
    """Return what the wheel requires without extras, and all that this requires in turn."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"triton_toolkit-{__version__}.dist-info/METADATA").decode()
    found: set[tuple[str, str]] = set()
    todo = [(line, "") for line in email.message_from_string(text).get_all("Requires-Dist") or ()]
    while todo:
        line, extra_of_parent = todo.pop()
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra_of_parent}):
            continue
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) not in found:
                found.add((requirement.name, extra))
                todo += [(inner, extra) for inner in metadata.requires(requirement.name) or ()]
    return {name for name, _ in found}


@pytest.fixture(scope="module")
def base_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs a program where only the wheel and its base dependencies are.

    The dependencies are linked in from this environment, package by package, so that no index is
    needed; what is not in their closure (torch, onnxruntime …) is as absent as in a fresh install.
    """
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder, with_pip=False, symlinks=True)
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for package in base_packages(wheel):
        _link(metadata.distribution(package), site)
    (folder / "bin" / "tt").write_text(
        f"#!{folder}/bin/python\nfrom triton_toolkit.cli import main\nmain()\n", encoding="utf-8"
    )
    (folder / "bin" / "tt").chmod(0o755)
    environment = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder)}

    def run(*argv: str, cwd: Path = folder) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(folder / "bin" / argv[0]), *argv[1:]],
            cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def _link(distribution: metadata.Distribution, site: Path) -> None:
    """Link the top-level files and folders of an installed package into another site-packages."""
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        target = site / top
        source = Path(str(distribution.locate_file(top)))
        if not target.exists() and source.exists():
            os.symlink(source, target)


def test_the_optional_packages_are_really_absent(base_only):
    for name in ("torch", "onnxruntime", "pytriton", "tensorrt", "sklearn"):
        assert "ModuleNotFoundError" in base_only("python", "-c", f"import {name}").stderr


def test_it_is_the_wheel_that_runs(base_only):
    where = base_only("python", "-c", "import triton_toolkit; print(triton_toolkit.__file__)").stdout
    assert str(ROOT) not in where
    assert "site-packages" in where


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_works(base_only, words):
    done = base_only("tt", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_init_and_schema_work(base_only, tmp_path):
    assert base_only("tt", "init", cwd=tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["example_model.py", "tt.yaml"]
    schema = base_only("tt", "schema", cwd=tmp_path)
    assert json.loads(schema.stdout)["title"] == "tt.yaml"


def test_env_says_what_is_missing(base_only):
    found = json.loads(base_only("tt", "env", "--json").stdout)
    assert {extra["name"]: extra["complete"] for extra in found["extras"]} == {
        "base": True, "cpu": False, "gpu": False, "torch": False, "serve": False, "s3": False,
    }  # fmt: skip
    assert not found["embedded"]["available"]


def test_a_build_without_torch_says_what_to_install(base_only, tmp_path):
    base_only("tt", "init", cwd=tmp_path)
    done = base_only("tt", "build", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "torch is not installed" in done.stderr
    assert "pip install 'triton-toolkit[torch]'" in done.stderr
    assert not (tmp_path / "model_repository" / "example").exists()


def test_serving_without_the_server_says_what_to_install(base_only, tmp_path):
    (tmp_path / "models").mkdir()
    done = base_only("tt", "serve", "models", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "pip install 'triton-toolkit[serve]'" in done.stderr


def test_templates_are_found_in_the_wheel(base_only):
    code = (
        "from triton_toolkit.config.templates import shipped_folder\n"
        "print(shipped_folder(), len([*shipped_folder().rglob('*.j2')]))"
    )
    where, count = base_only("python", "-c", code).stdout.split()
    assert where.endswith("site-packages/triton_toolkit/templates")
    assert int(count) == len(list((ROOT / "templates").rglob("*.j2")))


@pytest.mark.slow
def test_pip_installs_it_with_its_base_dependencies(wheel, tmp_path):
    """The same through pip and an index, as a user does it."""
    venv.create(tmp_path / "env", with_pip=True)
    programs = tmp_path / "env" / "bin"

    def run(*argv: str | Path) -> None:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    run(programs / "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel)
    run(programs / "tt", "--help")
    run(programs / "tt", "init")
    run(programs / "tt", "schema")
