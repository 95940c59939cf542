"""Deployments that are stopped on their way: everything is as it was, and answers as it did."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.errors import EXIT_INTERRUPTED, EXIT_NO, DeployError
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server

_STEPS = (
    "copy",
    "show the server a candidate",
    "try the candidate",
    "unload the candidate",
    "remember what is served",
    "publish the files",
    "publish the config",
    "load",
    "verify what is served",
)


class _At(Silent):
    """Does something when a step is about to begin."""

    def __init__(self, step: str, action) -> None:
        self._step, self._action = step, action

    def step(self, subject: str, text: str) -> None:
        if text == self._step:
            self._action()


def _interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", _STEPS)
def test_interrupt_before_a_step_leaves_the_former_version(workshop, step):
    folder = workshop.build("m", 1, marker=11)
    (folder.parent / "labels.txt").write_text("old\n")
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build("m", 2, marker=22)
    (folder.parent / "labels.txt").write_text("new\n")
    (folder.parent / "more.txt").write_text("more\n")
    with pytest.raises(KeyboardInterrupt):
        workshop.deploy("m", progress=_At(step, _interrupt))
    assert workshop.tree() == before
    assert (workshop.serving("m"), workshop.marker("m")) == (["1"], 11)
    assert workshop.candidates() == []


@pytest.mark.parametrize("step", _STEPS)
def test_interrupt_of_a_first_deployment_leaves_no_model(workshop, step):
    workshop.build("m", 1, marker=11)
    before = workshop.tree()
    with pytest.raises(KeyboardInterrupt):
        workshop.deploy("m", progress=_At(step, _interrupt))
    assert workshop.tree() == before
    assert not (workshop.store / workshop.name("m")).exists()
    assert workshop.serving("m") == []


def test_interrupted_deployment_can_be_repeated(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22)
    with pytest.raises(KeyboardInterrupt):
        workshop.deploy("m", progress=_At("verify what is served", _interrupt))
    report = workshop.deploy("m")
    assert report.models[0].version == 2
    assert workshop.marker("m") == 22


def test_all_models_of_a_deployment_go_back_together(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    before = workshop.tree()
    names = ("image", "logits")
    workshop.build("step", 2, marker=22, names=names)
    workshop.build_over("pipe", 2, marker=22, step="step", names=names)
    with pytest.raises(KeyboardInterrupt):
        workshop.deploy("pipe", progress=_At("verify what is served", _interrupt))
    assert workshop.tree() == before
    assert (workshop.marker("step"), workshop.marker("pipe")) == (11, 11)


def test_version_that_fails_only_under_its_own_name_is_rolled_back(workshop, busy_clients):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build_python("m", 2, marker=22, y="x * 2 if 'candidate' in self.name else x * 3")
    with busy_clients("m", count=4) as seen, pytest.raises(DeployError) as caught:
        workshop.deploy("m")
    assert caught.value.exit_code == EXIT_NO
    assert f"Rolled back; served as before: {workshop.name('m')} version 1" in caught.value.message
    assert seen.errors == []
    assert (workshop.tree(), workshop.marker("m")) == (before, 11)
    assert "failed" in (workshop.store / ".tt-deployments.jsonl").read_text().splitlines()[-1]


def test_server_that_dies_on_the_way_finds_the_former_files(workshop, tmp_path):
    store = tmp_path / "mortal"
    store.mkdir()
    with EmbeddedServer(ServeOptions(repository=store, load=())) as server:
        workshop.url, workshop.target["store"] = server.grpc_url, str(store)
        workshop.build_python("m", 1, marker=11)
        workshop.deploy("m")
        config = (store / workshop.name("m") / "config.pbtxt").read_bytes()
        workshop.build_python("m", 2, marker=22)
        kill = _At("load", lambda: os.kill(server.pid, signal.SIGKILL))
        with pytest.raises(DeployError, match="Not all could be put back") as caught:
            workshop.deploy("m", progress=kill, load_timeout_s=5.0)
    assert "cannot be reached" in caught.value.detail
    assert (store / workshop.name("m") / "config.pbtxt").read_bytes() == config
    assert sorted(path.name for path in (store / workshop.name("m")).iterdir()) == ["1", "config.pbtxt"]


def test_ctrl_c_of_the_command_while_the_server_loads(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before = workshop.tree()
    source = "import time\ntime.sleep(2)\nclass TritonPythonModel:\n    pass\n"
    workshop.build_python("m", 2, marker=22, source=source)
    workshop.project()
    argv = [sys.executable, "-m", "triton_toolkit", "deploy", workshop.name("m"), "--to", "local"]
    process = subprocess.Popen(
        [*argv, "--no-rehearsal"], cwd=workshop.root, stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "try the candidate" in line:
            break
    time.sleep(0.3)  # into the load call
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, errors
    assert (workshop.tree(), workshop.marker("m")) == (before, 11)
    assert workshop.candidates() == []


_DIE = """
import os, signal, sys
from pathlib import Path
from triton_toolkit._progress import Silent
from triton_toolkit.deploy.run import DeployOptions, run_deploy
from triton_toolkit.spec.load import load_project


class Die(Silent):
    def step(self, subject, text):
        if text == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)


options = DeployOptions(names=(sys.argv[2],), rehearsal=False)
run_deploy(load_project(Path("tt.yaml")), "local", options, Die())
"""


_DIE_BACK = _DIE.replace(
    "        if text == sys.argv[1]:",
    '        if text == "verify what is served":\n            raise KeyboardInterrupt\n'
    "        if text == sys.argv[1]:",
)


@pytest.mark.parametrize(
    "step",
    ["undo: load", "undo: publish the config", "undo: publish the files", "undo: remember what is served"],
)
def test_next_deployment_ends_a_rollback_that_was_killed(workshop, step):
    folder = workshop.build("m", 1, marker=11)
    (folder.parent / "labels.txt").write_text("old\n")
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build("m", 2, marker=22)
    (folder.parent / "labels.txt").write_text("new\n")
    workshop.project()
    argv = [sys.executable, "-c", _DIE_BACK, step, workshop.name("m")]
    assert subprocess.run(argv, cwd=workshop.root, check=False).returncode == -signal.SIGKILL
    assert workshop.marker("m") == 22

    workshop.build("other", 1, marker=33)
    workshop.deploy("other")
    tree = {name: sha for name, sha in workshop.tree().items() if workshop.name("other") not in name}
    assert tree == before
    assert (workshop.marker("m"), workshop.serving("m"), workshop.candidates()) == (11, ["1"], [])


def test_version_that_is_served_without_a_folder_gives_way_to_what_lies_on_disk(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22)
    workshop.deploy("m")
    shutil.rmtree(workshop.store / workshop.name("m") / "2")
    workshop.build("other", 1, marker=33)
    report = workshop.deploy("other")
    assert any("has no folder any more" in note for note in report.notes)
    assert workshop.serving("m") == ["1"]


@pytest.mark.parametrize(
    "step",
    ["try the candidate", "remember what is served", "publish the config", "load", "verify what is served"],
)
def test_next_deployment_clears_up_after_one_that_was_killed(workshop, step):
    folder = workshop.build("m", 1, marker=11)
    (folder.parent / "labels.txt").write_text("old\n")
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build("m", 2, marker=22)
    (folder.parent / "labels.txt").write_text("new\n")
    workshop.project()
    argv = [sys.executable, "-c", _DIE, step, workshop.name("m")]
    assert subprocess.run(argv, cwd=workshop.root, check=False).returncode == -signal.SIGKILL

    workshop.build("other", 1, marker=33)
    report = workshop.deploy("other")
    assert any("ended without a word" in note for note in report.notes)
    assert {
        name: sha for name, sha in workshop.tree().items() if workshop.name("other") not in name
    } == before
    assert (workshop.marker("m"), workshop.serving("m"), workshop.candidates()) == (11, ["1"], [])

    assert workshop.deploy("m").models[0].version == 2
    assert workshop.marker("m") == 22
