"""A cache that is new to a project is filled from what stands unchanged in the repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from triton_toolkit.cli import cli

SPEC = """
spec: 1
models:
  net:
    kind: python
    files: code
    inputs: {x: {dtype: fp32, shape: [3]}}
    outputs: {y: {dtype: fp32, shape: [3]}}
    hashed: [helper.py]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a project that was built without a cache."""
    project = tmp_path / "project"
    (project / "code").mkdir(parents=True)
    (project / "code/model.py").write_text("class TritonPythonModel: pass\n")
    (project / "helper.py").write_text("")
    (project / "tt.yaml").write_text(SPEC)
    built(build(project, "--no-cache"), "build")
    return project


def build(root: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["build", "--spec", str(root / "tt.yaml"), "--json", *words])


def built(done: Result, action: str) -> dict[str, Any]:
    (model,) = json.loads(done.stdout)["models"]
    assert model["action"] == action, done.output
    return dict(model)


def elsewhere(root: Path) -> Path:
    """Return the project on another machine, where nothing is built."""
    other = root.with_name("other")
    shutil.copytree(root, other, ignore=shutil.ignore_patterns("model_repository", ".tt"))
    return other


def test_what_stands_unchanged_is_put_into_a_new_cache(root: Path, tmp_path: Path) -> None:
    shared = f"--cache={tmp_path / 'shared'}"
    done = build(root, shared)
    built(done, "unchanged")
    assert "not put into the cache" not in done.stderr
    assert built(build(elsewhere(root), shared), "build")["from_cache"]


def test_it_is_put_there_once(root: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    build(root, f"--cache={shared}")
    before = {path: path.stat().st_ino for path in shared.rglob("*.json")}
    assert before
    build(root, f"--cache={shared}")
    assert {path: path.stat().st_ino for path in shared.rglob("*.json")} == before


@pytest.mark.parametrize("words", [("--dry-run",), ("--only", "config")], ids=" ".join)
def test_what_is_stale_or_only_looked_at_is_not_put_there(
    root: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    with (root / "code/model.py").open("a") as code:
        code.write("# more\n")
    build(root, f"--cache={tmp_path / 'shared'}", *words)
    assert not list((tmp_path / "shared").rglob("*.json"))


def test_a_version_with_files_that_its_passport_does_not_name_is_not_put_there(
    root: Path, tmp_path: Path
) -> None:
    (root / "model_repository/net/1/more.txt").write_text("by hand")
    done = build(root, f"--cache={tmp_path / 'shared'}")
    built(done, "unchanged")
    assert "net: version 1 is not put into the cache: it has other files than its passport" in done.stderr
    assert not list((tmp_path / "shared").rglob("*.json"))


def test_a_package_that_came_later_may_have_been_another(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("pytriton")
    shared = f"--cache={tmp_path / 'shared'}"
    passport = root / "model_repository/net/1/passport.json"
    passport.write_text(passport.read_text().replace('"created": "20', '"created": "19'))
    done = build(root, shared)
    built(done, "unchanged")
    assert "not put into the cache: nvidia-pytriton was installed after it was built" in done.stderr
