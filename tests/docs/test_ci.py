"""The workflow of docs/ci.md: its commands run, in the order and under the conditions that it states."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.build.test_checkout import git

ROOT = Path(__file__).parents[2]
MODEL = """\
  {name}:
    kind: python
    files: {name}
    inputs: {{x: {{dtype: fp32, shape: [3]}}}}
    outputs: {{y: {{dtype: fp32, shape: [3]}}}}
"""
NAMES = ("first", "second", "third")


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    text = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    workflow = yaml.safe_load(block)
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML 1.1 reads `on` as true
    return list(workflow["jobs"]["build"]["steps"])


def inputs(steps: list[dict[str, Any]], action: str) -> dict[str, Any]:
    """Return the inputs of an action."""
    (step,) = [step for step in steps if step.get("uses", "").startswith(f"actions/{action}@")]
    return dict(step["with"])


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """Return the repository that runners clone: three models on main, and a branch that changes one."""
    origin = tmp_path / "origin"
    origin.mkdir()
    for name in NAMES:
        (origin / name).mkdir()
        (origin / name / "model.py").write_text("class TritonPythonModel: pass\n")
    (origin / "tt.yaml").write_text("spec: 1\nmodels:\n" + "".join(MODEL.format(name=name) for name in NAMES))
    shutil.copyfile(ROOT / "constraints.txt", origin / "constraints.txt")
    (origin / "requirements.txt").write_text("triton-toolkit[cpu]\n")
    git(origin, "init", "-q", "-b", "main")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "first")
    git(origin, "checkout", "-q", "-b", "work")
    (origin / "second/model.py").write_text("class TritonPythonModel:\n    pass\n")
    git(origin, "commit", "-q", "-a", "-m", "second")
    git(origin, "checkout", "-q", "main")
    return origin


class Runner:
    """A fresh machine that runs the workflow's commands as GitHub's runners do."""

    def __init__(self, origin: Path, folder: Path, branch: str, steps: list[dict[str, Any]]) -> None:
        depth = inputs(steps, "checkout")["fetch-depth"]
        history = ["--depth", str(depth)] if depth else []
        git(origin.parent, "clone", "-q", "--branch", branch, *history, origin.as_uri(), str(folder))
        self.folder = folder
        self.summary = folder.with_name(f"{folder.name}-summary")
        self._steps = steps
        self._cache = inputs(steps, "cache")["path"]

    def restore(self, other: Runner) -> None:
        """Do what actions/cache does."""
        shutil.copytree(other.folder / self._cache, self.folder / self._cache)

    def run(self, event: str) -> dict[str, dict[str, Any]]:
        """Run the steps of an event and return the models of build.json."""
        conditions = {None: True, "always()": True, f"github.event_name == '{event}'": True}
        for step in self._steps:
            if "run" in step and conditions.get(step.get("if"), False):
                self._shell(step["run"])
        models = json.loads((self.folder / "build.json").read_text())["models"]
        return {model["name"]: model for model in models}

    def _shell(self, commands: str) -> None:
        environment = {
            **os.environ,
            "CI": "true",
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PIP_NO_INDEX": "1",  # all is installed here; pip must not change that
        }
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands]
        done = subprocess.run(
            words, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"


def test_one_changed_model_is_built_on_a_pull_request(
    steps: list[dict[str, Any]], origin: Path, tmp_path: Path
) -> None:
    main = Runner(origin, tmp_path / "main", "main", steps)
    assert {name: model["action"] for name, model in main.run("push").items()} == dict.fromkeys(
        NAMES, "build"
    )

    request = Runner(origin, tmp_path / "request", "work", steps)
    request.restore(main)
    models = request.run("pull_request")
    assert {name: model["action"] for name, model in models.items()} == {
        "first": "unchanged",
        "second": "build",
        "third": "unchanged",
    }
    assert request.summary.read_text() == (
        "- second: build; second/model.py changed since origin/main; not built yet\n"
    )
    uploaded = inputs(steps, "upload-artifact")["path"].split()
    assert {"build.json", "model_repository"} <= set(uploaded)
    assert [path.name for path in (request.folder / "model_repository").iterdir()] == ["second"]

    git(origin, "merge", "-q", "work")
    merged = Runner(origin, tmp_path / "merged", "main", steps)
    merged.restore(request)
    assert all(model["from_cache"] for model in merged.run("push").values())


def summary(steps: list[dict[str, Any]], folder: Path, build: str | None) -> str:
    """Run the step that always runs, after a build that printed this; None where none was begun."""
    if build is not None:
        (folder / "build.json").write_text(build)
    (step,) = [step for step in steps if step.get("name") == "Say what was built"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(folder / "summary"), "PATH": path}
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "summary").read_text()


def test_the_summary_of_a_wrong_spec_is_its_error(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "tt.yaml").write_text("spec: 1\nmodls: {}\n")
    words = [sys.executable, "-m", "triton_toolkit", "build", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown key 'modls'" in summary(steps, tmp_path, done.stdout)


@pytest.mark.parametrize("text", [None, ""], ids=["no file", "empty"])
def test_the_summary_after_an_install_that_failed_says_so(
    steps: list[dict[str, Any]], tmp_path: Path, text: str | None
) -> None:
    assert summary(steps, tmp_path, text) == "there was no build\n"


def test_the_summary_says_why_a_model_failed(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/model.py").write_text("class TritonPythonModel: pass\n")
    spec = "spec: 1\nmodels:\n" + MODEL.format(name="code") + "    sample: none:sample\n"
    (tmp_path / "tt.yaml").write_text(spec)
    words = [sys.executable, "-m", "triton_toolkit", "build", "--json", "--no-cache"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert summary(steps, tmp_path, done.stdout).startswith("- code: failed; code: none:sample: ")


def test_the_python_of_the_workflow_is_one_that_the_package_supports(steps: list[dict[str, Any]]) -> None:
    assert inputs(steps, "setup-python")["python-version"] == "3.11"
    assert sys.version_info[:2] >= (3, 11)


def test_folders_of_tt_are_uploaded_although_they_are_hidden(steps: list[dict[str, Any]]) -> None:
    upload = inputs(steps, "upload-artifact")
    assert {".tt/logs", ".tt/crashes"} <= set(upload["path"].split())
    assert upload["include-hidden-files"] is True


def test_the_steps_that_help_after_a_failure_always_run(steps: list[dict[str, Any]]) -> None:
    always = [step.get("uses") or step["name"] for step in steps if step.get("if") == "always()"]
    assert always == ["Say what was built", "actions/upload-artifact@v4"]
