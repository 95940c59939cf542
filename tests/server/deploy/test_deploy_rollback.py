"""Deployments that are stopped on their way: everything is as it was, and answers as it did."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from triton_toolkit._files import hash_tree
from triton_toolkit._progress import Silent
from triton_toolkit.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_NO, DeployError, ServerError
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


@pytest.fixture
def mortal(workshop, tmp_path):
    """A server of the test's own, with version 1 of a Python model on it and version 2 built."""
    store = tmp_path / "mortal"
    store.mkdir()
    with EmbeddedServer(ServeOptions(repository=store, load=(), exit_timeout_s=0)) as server:
        workshop.url, workshop.target["store"] = server.grpc_url, str(store)
        workshop.build_python("m", 1, marker=11)
        workshop.deploy("m")
        workshop.build_python("m", 2, marker=22)
        before = hash_tree(store / workshop.name("m"))
        yield server
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)
        assert hash_tree(store / workshop.name("m")) == before
        assert sorted(path.name for path in store.iterdir() if path.is_dir()) == [workshop.name("m")]


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGKILL, "load"), (signal.SIGSTOP, "try the candidate")],
    ids=["dies", "hangs"],
)
def test_server_that_is_gone_on_the_way_is_no_refusal_and_finds_the_former_files(
    workshop, mortal, step, number
):
    end = _At(step, lambda: os.kill(mortal.pid, number))
    with pytest.raises(ServerError, match="All files are as they were, but the server") as caught:
        workshop.deploy("m", progress=end, load_timeout_s=2.0, call_timeout_s=1.0)
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert ("cannot be reached" if number == signal.SIGKILL else "no answer within") in caught.value.detail


def test_server_that_dies_before_a_refused_version_was_taken_back_is_the_servers_fault(workshop, mortal):
    def refuse():
        os.kill(mortal.pid, signal.SIGKILL)
        raise DeployError("the new version is wrong")

    with pytest.raises(ServerError, match=r"the new version is wrong\. All files are as they were") as caught:
        workshop.deploy("m", progress=_At("verify what is served", refuse))
    assert caught.value.exit_code == EXIT_ENVIRONMENT


def test_version_that_does_not_load_in_time_on_a_server_that_answers_is_at_fault(workshop, mortal):
    source = "import time\ntime.sleep(4)\nclass TritonPythonModel:\n    pass\n"
    workshop.build_python("m", 3, marker=33, source=source)
    with pytest.raises(DeployError, match=r"no answer within 1 s to: load") as caught:
        workshop.deploy("m", load_timeout_s=1.0)
    assert caught.value.exit_code == EXIT_NO
    assert mortal.alive


def test_version_that_takes_down_the_private_server_is_at_fault(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    source = "import os\nos.kill(os.getppid(), 9)\n"
    workshop.build_python("m", 2, marker=22, source=source)
    with pytest.raises(DeployError, match=r"on a private server: .*killed by SIGKILL") as caught:
        workshop.deploy("m", rehearsal=True)
    assert caught.value.exit_code == EXIT_NO
    assert "tt-candidate" not in caught.value.message
    assert (workshop.marker("m"), workshop.candidates()) == (11, [])


def test_ensemble_that_answered_otherwise_than_its_sample_is_back_when_it_answers_so_again(workshop):
    """Its step was deployed without it, so its sample was out of date before this deployment began."""
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=22)
    workshop.deploy("step")
    workshop.build("step", 3, marker=33)
    workshop.build_over("pipe", 2, marker=33, step="step")

    def refuse():
        raise DeployError("no")

    with pytest.raises(DeployError, match=r"^no\. Rolled back; served as before") as caught:
        workshop.deploy("pipe", progress=_At("verify what is served", refuse))
    assert caught.value.detail == ""
    assert (workshop.marker("step"), workshop.marker("pipe")) == (22, 22)


def test_former_version_that_cannot_answer_at_all_does_not_stop_the_one_that_can(workshop):
    workshop.build_python("m", 1, marker=11)
    workshop.deploy("m")
    (workshop.store / workshop.name("m") / "1" / "model.py").write_text(
        "class TritonPythonModel:\n    def execute(self, requests):\n        raise ValueError('no')\n"
    )
    with workshop.client() as client:
        client.unload(workshop.name("m"))
        client.load(workshop.name("m"))
    workshop.build("m", 2, marker=22)
    assert workshop.deploy("m").verdict == "deployed"
    assert workshop.marker("m") == 22


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
