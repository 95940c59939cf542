"""Deployments that end well, on a real server."""

from __future__ import annotations

import json

import pytest

from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.deploy.report import Action
from triton_toolkit.errors import RefusedError
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server


def test_first_deployment_serves_the_model_and_leaves_nothing_else(workshop):
    workshop.build("m", 1, marker=11)
    report = workshop.deploy("m")
    assert report.verdict == "deployed"
    assert (report.models[0].version, report.models[0].previous) == (1, ())
    assert [item.ok for item in report.models[0].golden] == [True, True]
    assert workshop.marker("m") == 11
    assert workshop.candidates() == []


def test_same_content_again_is_verified_and_changes_nothing(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before = workshop.tree()
    report = workshop.deploy("m")
    assert report.verdict == "already deployed"
    assert report.models[0].action is Action.VERIFY
    assert [step.step for step in report.steps] == ["verify what is served"]
    assert workshop.tree() == before


def test_new_version_under_8_busy_clients_fails_no_request(workshop, busy_clients):
    workshop.build_python("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build_python("m", 2, marker=22)
    with busy_clients("m", count=8) as seen:
        workshop.deploy("m")
    assert seen.errors == []
    assert seen.markers == {11, 22}
    assert workshop.marker("m") == 22


def test_number_on_the_target_follows_what_is_there(workshop):
    workshop.build("m", 4, marker=11)
    workshop.deploy("m")
    workshop.forget("m")
    workshop.build("m", 1, marker=22)
    report = workshop.deploy("m")
    assert (report.models[0].built_version, report.models[0].version) == (1, 5)
    assert workshop.marker("m") == 22


def test_changed_config_alone_is_a_new_version(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.forget("m")
    workshop.build("m", 1, marker=11, more="version_policy { latest { num_versions: 2 } }\n")
    assert workshop.deploy("m").models[0].version == 2
    assert workshop.serving("m") == ["1", "2"]


def test_old_versions_are_pruned_but_not_those_of_others(workshop):
    workshop.target["keep"] = "1"
    workshop.build("m", 2, marker=11)
    foreign = workshop.store / workshop.name("m") / "1"
    foreign.mkdir(parents=True)
    workshop.deploy("m")
    workshop.build("m", 3, marker=22)
    assert workshop.deploy("m").models[0].pruned == (2,)
    assert foreign.is_dir()
    assert not (foreign.parent / "2").exists()


def test_version_that_is_still_served_is_not_pruned(workshop):
    workshop.target["keep"] = "1"
    policy = {"more": "version_policy { all { } }\n"}
    workshop.build("m", 1, marker=11, **policy)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22, **policy)
    assert workshop.deploy("m").models[0].pruned == ()
    assert workshop.serving("m") == ["1", "2"]


def test_files_beside_the_config_travel(workshop):
    folder = workshop.build("m", 1, marker=11)
    (folder.parent / "labels").mkdir()
    (folder.parent / "labels" / "en.txt").write_text("one\n")
    workshop.deploy("m")
    assert (workshop.store / workshop.name("m") / "labels" / "en.txt").read_text() == "one\n"


def test_unloaded_model_is_loaded_without_a_new_version(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    with workshop.client() as client:
        client.unload(workshop.name("m"))
    report = workshop.deploy("m")
    assert (report.models[0].action, report.models[0].version) == (Action.LOAD, 1)
    assert workshop.marker("m") == 11


def test_ensemble_brings_its_changed_step_in_one_load(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    report = workshop.deploy("pipe")
    assert [model.name for model in report.models] == [workshop.name("step"), workshop.name("pipe")]
    assert report.calls[4:] == (f"load {workshop.name('pipe')}",)  # after two candidates came and went
    assert workshop.marker("pipe") == 11


def test_unchanged_step_of_an_ensemble_is_left_alone(workshop):
    workshop.build("step", 1, marker=11)
    workshop.deploy("step")
    workshop.build_over("pipe", 1, marker=11, step="step")
    report = workshop.deploy("pipe")
    assert [model.action for model in report.models] == [Action.VERIFY, Action.PUBLISH]
    assert workshop.serving("step") == ["1"]


def test_step_and_ensemble_change_their_wiring_together(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    names = ("image", "logits")
    workshop.build("step", 2, marker=22, names=names)
    workshop.build_over("pipe", 2, marker=22, step="step", names=names)
    report = workshop.deploy("pipe")
    assert workshop.marker("pipe") == 22
    assert any("requests in flight" in note for note in report.notes)


def test_new_step_is_verified_through_the_ensemble_that_calls_it(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=11, more="version_policy { latest { num_versions: 1 } }\n")
    report = workshop.deploy("step")
    assert report.steps[-1].subject == workshop.name("pipe")
    assert workshop.notes(report) == ()


def test_ensemble_that_answers_otherwise_through_a_new_step_is_noted(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=22)
    report = workshop.deploy("step")
    assert workshop.notes(report) == (
        f"{workshop.name('pipe')}: answers its golden sample otherwise than when it was built; "
        "build and deploy it too",
    )
    assert workshop.marker("pipe") == 22


def test_deployment_is_logged_with_hashes_and_verdict(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    entry = json.loads((workshop.store / ".tt-deployments.jsonl").read_text().splitlines()[-1])
    assert entry["verdict"] == "deployed"
    assert entry["models"][0]["name"] == workshop.name("m")
    assert len(entry["models"][0]["files_sha256"]) == 64


def test_dry_run_names_files_bytes_and_calls_and_writes_nothing(workshop):
    workshop.build("m", 1, marker=11)
    before = workshop.tree()
    report = workshop.deploy("m", dry_run=True)
    candidate = report.calls[0].removeprefix("load ")
    assert report.verdict == "planned"
    assert report.calls == (f"load {candidate}", f"unload {candidate}", f"load {workshop.name('m')}")
    assert report.models[0].files == 3  # passport, samples, config
    assert report.models[0].bytes > 0
    assert workshop.tree() == before


def test_model_without_a_golden_sample_is_deployed_with_a_note(workshop):
    workshop.build("m", 1, marker=11, samples=False)
    report = workshop.deploy("m")
    assert report.models[0].checked is False
    assert f"{workshop.name('m')}: has no golden sample; its outputs are not checked" in report.notes


def test_golden_sample_without_outputs_is_no_match(workshop):
    workshop.build("m", 1, marker=11, outputs_of_sample={})
    report = workshop.deploy("m")
    assert report.models[0].as_dict()["checked"] is False
    assert any("its golden sample has no outputs" in note for note in report.notes)


def test_output_that_the_golden_sample_lacks_is_noted(workshop):
    tensor = TensorSpec(name="extra", dtype=DataType.FP32, shape=(1,))
    workshop.build("m", 1, marker=11, outputs=(tensor,))
    report = workshop.deploy("m")
    assert f"{workshop.name('m')}: its golden sample lacks extra; not checked" in report.notes


def test_live_ensemble_without_golden_outputs_is_noted_when_its_step_changes(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step", samples=False)
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=22)
    report = workshop.deploy("step")
    assert any(note.startswith(f"{workshop.name('pipe')}: has no golden outputs") for note in report.notes)


_SLOW_TO_LEAVE = """\
import time
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        xs = [pb.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        marker = np.array([[11]], np.int64)
        return [pb.InferenceResponse([pb.Tensor("y", x * 2), pb.Tensor("marker", marker)]) for x in xs]

    def finalize(self):
        time.sleep(0.5)
"""


@pytest.fixture
def own_server(workshop, tmp_path):
    """A workshop with a server of its own: a load that failed keeps the shared one from being ready."""
    store = tmp_path / "own"
    store.mkdir()
    with EmbeddedServer(ServeOptions(repository=store, load=())) as server:
        yield type(workshop)(tmp_path, store, server.grpc_url, "own")


def test_deployment_ends_when_the_old_version_has_left_and_the_server_is_ready(own_server):
    own_server.build_python("m", 1, marker=11, source=_SLOW_TO_LEAVE)
    own_server.deploy("m")
    own_server.build_python("m", 2, marker=22)
    report = own_server.deploy("m")
    assert (report.ready, report.notes) == (True, ())
    with own_server.client() as client:
        assert client.is_ready()
        states = {
            state.version: state.state for state in client.index() if state.name == own_server.name("m")
        }
    assert states == {"1": "UNAVAILABLE", "2": "READY"}


def test_old_version_that_takes_too_long_to_leave_is_noted(workshop):
    workshop.build_python("m", 1, marker=11, source=_SLOW_TO_LEAVE)
    workshop.deploy("m")
    workshop.build("m", 2, marker=22)
    report = workshop.deploy("m", settle_s=0.0)
    assert report.ready is False
    assert report.notes[0] == f"{workshop.name('m')}: version 1 is still UNLOADING"
    assert workshop.marker("m") == 22


def test_server_that_is_not_ready_for_another_models_sake_is_not_waited_for(own_server):
    folder = own_server.store / "broken"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"none")
    (folder / "config.pbtxt").write_text('backend: "onnxruntime"')
    with own_server.client() as client, pytest.raises(RefusedError):
        client.load("broken")
    own_server.build_python("m", 1, marker=11)
    report = own_server.deploy("m", settle_s=600)
    assert report.ready is False
    assert report.notes == ("the server is not ready, as before: a load failed since it was started",)
