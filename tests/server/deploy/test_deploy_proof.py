"""The traps of the control API: what is believed, and what has to be proven."""

from __future__ import annotations

import os
import time

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.config.message import parse_config
from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.deploy.source import read_built
from triton_toolkit.deploy.verify import Proof, check_served
from triton_toolkit.errors import DeployError

pytestmark = pytest.mark.server


def _proof(workshop, short: str, version: int, **changes) -> Proof:
    built = read_built(workshop.root / "model_repository", workshop.name(short))
    values = {
        "version": version,
        "passport": built.passport,
        "samples": built.samples,
        "config": built.config,
    }
    return Proof(**(values | changes))


def _load_with_times_in_the_future(workshop, short: str) -> None:
    """A host whose clock is an hour ahead wrote the files that the server has loaded."""
    ahead = time.time() + 3600
    for path in (workshop.store / workshop.name(short)).rglob("*"):
        os.utime(path, (ahead, ahead))
    with workshop.client() as client:
        client.load(workshop.name(short))


def test_load_acts_also_where_the_loaded_files_are_dated_in_the_future(workshop):
    """A load does nothing unless a file is strictly newer than at the last one, and says yes."""
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    _load_with_times_in_the_future(workshop, "m")
    workshop.build("m", 2, marker=22)
    workshop.deploy("m")
    assert workshop.marker("m") == 22


def test_rollback_acts_also_where_the_loaded_files_are_dated_in_the_future(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    _load_with_times_in_the_future(workshop, "m")
    workshop.build("m", 2, marker=22)
    with pytest.raises(DeployError, match="Rolled back"):
        workshop.deploy("m", progress=_RefuseAtTheEnd())
    assert workshop.marker("m") == 11


class _RefuseAtTheEnd(Silent):
    """Fails the last step, when the new version is served already."""

    def step(self, subject: str, text: str) -> None:
        if text == "verify what is served":
            raise DeployError("refused")


def test_ready_version_that_does_not_answer_is_not_proven(workshop):
    more = "version_policy { all { } }\n"
    workshop.build("m", 1, marker=11, more=more)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22, more=more)
    workshop.deploy("m")
    with (
        workshop.client() as client,
        pytest.raises(DeployError, match=r"version 2 of model .* answers, not 1"),
    ):
        check_served(client, workshop.name("m"), _proof(workshop, "m", 1))


def test_served_config_that_is_not_the_deployed_one_is_not_proven(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    config = parse_config("max_batch_size: 7", "test")
    with workshop.client() as client, pytest.raises(DeployError, match="max_batch_size is 8, not 7"):
        check_served(client, workshop.name("m"), _proof(workshop, "m", 1, config=config))


def test_version_that_is_not_ready_is_not_proven(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    with workshop.client() as client:
        client.unload(workshop.name("m"))
        with pytest.raises(DeployError, match=r"version 1 of model .* is not READY"):
            check_served(client, workshop.name("m"), _proof(workshop, "m", 1))


def test_second_deployment_to_a_store_is_refused(workshop):
    workshop.build("m", 1, marker=11)
    with LocalStore(workshop.store).lock(wait_s=0), pytest.raises(DeployError, match="is under way"):
        workshop.deploy("m")
    assert workshop.serving("m") == []


def test_rehearsal_takes_the_steps_that_are_served_from_the_target(workshop):
    workshop.build("m", 1, marker=11)
    report = workshop.deploy("m", rehearsal=True)
    assert [step.step for step in report.steps][:2] == ["copy", "rehearse on a private server"]
    assert workshop.notes(report) == ()


def test_model_that_needs_a_gpu_is_not_rehearsed_and_that_is_told(workshop):
    config = 'backend: "tensorrt"\ninstance_group [ { kind: KIND_GPU count: 1 } ]\n'
    workshop.write("m", 1, 11, config=config, files={"model.plan": b"engine"}, backend="tensorrt")
    with pytest.raises(DeployError) as caught:
        workshop.deploy("m", rehearsal=True)
    assert "fails on a private server" not in caught.value.message
    assert not (workshop.store / workshop.name("m")).exists()
