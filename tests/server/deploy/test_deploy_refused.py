"""Deployments that must not happen: what is refused, with which exit code, and that nothing changes."""

from __future__ import annotations

import shutil
import socket

import pytest

from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.errors import (
    EXIT_ENVIRONMENT,
    EXIT_NO,
    DeployError,
    EnvironmentProblem,
    ServerError,
    ServerTimeoutError,
    SpecError,
)
from triton_toolkit.repository.passport import read_passport
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

pytestmark = pytest.mark.server

_BROKEN = {
    "outputs-off": ({"answer": "triple"}, "y differs in 3 of 3 elements"),
    "wrong-shape": ({"answer": "longer"}, r"y has shape \[1, 6\], expected \[1, 3\]"),
}


@pytest.mark.parametrize(("how", "problem"), _BROKEN.values(), ids=_BROKEN)
def test_broken_version_is_refused_and_no_caller_meets_it(workshop, busy_clients, how, problem):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    before = workshop.tree()
    workshop.build("m", 2, marker=22, **how)
    with busy_clients("m", count=4) as seen, pytest.raises(DeployError, match=problem) as caught:
        workshop.deploy("m")
    assert caught.value.exit_code == EXIT_NO
    assert "Nothing was published" in caught.value.message
    assert (seen.errors, seen.markers) == ([], {11})
    assert workshop.tree() == before
    assert workshop.candidates() == []


@pytest.mark.parametrize("rehearsal", [False, True], ids=["on-the-server", "in-rehearsal"])
def test_corrupt_file_with_fitting_hashes_is_refused(workshop, busy_clients, rehearsal):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.build_onnx("m", 2, marker=22, cut=20)
    with busy_clients("m", count=2) as seen, pytest.raises(DeployError) as caught:
        workshop.deploy("m", rehearsal=rehearsal)
    assert ("fails on a private server" in caught.value.message) is rehearsal
    assert (seen.errors, seen.markers) == ([], {11})
    assert workshop.serving("m") == ["1"]


def test_file_changed_after_the_build_is_refused(workshop):
    folder = workshop.build("m", 1, marker=11)
    (folder / "samples.npz").write_bytes(b"other")
    with pytest.raises(DeployError, match=r"changed after it was built: samples\.npz"):
        workshop.deploy("m")


def test_config_edited_after_the_build_is_refused(workshop):
    folder = workshop.build("m", 1, marker=11)
    config = folder.parent / "config.pbtxt"
    config.write_text(config.read_text() + "# mine\n")
    with pytest.raises(DeployError, match=r"config\.pbtxt is not the one that was built"):
        workshop.deploy("m")


def test_model_that_is_not_built_is_refused(workshop):
    workshop.build("m", 1, marker=11)
    workshop.forget("m")
    with pytest.raises(DeployError, match="is not built") as caught:
        workshop.deploy("m")
    assert caught.value.hint == f"run `tt build {workshop.name('m')}` first"


def test_unknown_model_and_target_are_errors_of_the_spec(workshop):
    workshop.build("model", 1, marker=11)
    with pytest.raises(SpecError, match=f"did you mean '{workshop.name('model')}'"):
        workshop.deploy("modle")


def test_config_that_the_server_would_refuse_is_refused_before_it_is_asked(workshop):
    workshop.build("m", 1, marker=11, more="instance_group [ { count: 1 } ]\n")
    with pytest.raises(DeployError, match=r"config\.pbtxt: instance_group"):
        workshop.deploy("m")


def test_version_that_the_policy_leaves_out_is_refused(workshop):
    workshop.build("m", 2, marker=11, more="version_policy { specific { versions: [ 1 ] } }\n")
    with pytest.raises(DeployError, match="version 2, its number on the target, would not be served"):
        workshop.deploy("m")


def test_onnx_that_the_release_cannot_load_is_refused(workshop):
    workshop.build("m", 1, marker=11, onnx={"opset": {"": 30}, "ir_version": 8})
    with pytest.raises(DeployError, match=r"opset 30 of ai\.onnx, and ONNX Runtime \S+ loads \d+ at most"):
        workshop.deploy("m")


def test_step_that_would_break_a_served_ensemble_is_refused(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=22, names=("image", "logits"))
    with pytest.raises(DeployError, match=f"ensemble '{workshop.name('pipe')}', which is served") as caught:
        workshop.deploy("step")
    assert "input 'x' is gone; output 'y' is gone" in caught.value.message
    assert workshop.marker("pipe") == 11


def test_ensemble_whose_step_is_nowhere_is_refused(workshop):
    workshop.build_over("pipe", 1, marker=11, step="absent")
    with pytest.raises(DeployError, match="neither built nor on the target"):
        workshop.deploy("pipe")


def _identity(version_folder):
    return read_passport(version_folder).identity()


def test_ensemble_that_was_built_over_another_step_is_refused_before_the_server_is_asked(workshop):
    step = workshop.name("step")
    former = workshop.build("step", 1, marker=11)
    key = {f"step {step}": _identity(former)}
    workshop.build_over("pipe", 1, marker=11, step="step", key=key)
    workshop.build("step", 2, marker=22)
    workshop.url = "grpc://127.0.0.1:1"
    with pytest.raises(DeployError, match=f"was built over another {step} than version 2") as caught:
        workshop.deploy("pipe")
    assert caught.value.hint == f"run `tt build {workshop.name('pipe')}`"


def test_ensemble_that_was_built_over_this_step_is_deployed(workshop):
    folder = workshop.build("step", 1, marker=11)
    key = {f"step {workshop.name('step')}": _identity(folder)}
    workshop.build_over("pipe", 1, marker=11, step="step", key=key)
    assert workshop.deploy("pipe").verdict == "deployed"


def test_unchanged_ensemble_is_tried_over_its_new_step_before_that_is_published(workshop, busy_clients):
    """Its passport does not tell what it was built over, so only its golden sample can."""
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    before = workshop.tree()
    workshop.build("step", 2, marker=22)
    with busy_clients("step", count=2) as seen, pytest.raises(DeployError) as caught:
        workshop.deploy("pipe")
    assert "marker differs in 1 of 1 elements" in caught.value.message
    assert "Nothing was published" in caught.value.message
    assert (seen.errors, seen.markers) == ([], {11})
    assert (workshop.tree(), workshop.candidates()) == (before, [])


def test_served_model_that_no_longer_answers_right_stops_the_others_before_they_are_published(workshop):
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    workshop.build("step", 2, marker=22)
    workshop.deploy("step")  # noted: the ensemble answers otherwise
    workshop.forget("step")
    workshop.build("other", 1, marker=33)
    with pytest.raises(DeployError, match="does not answer the golden sample") as caught:
        workshop.deploy("other", "pipe")
    assert "Nothing was published" in caught.value.message
    assert workshop.serving("other") == []


def test_unserved_version_that_no_longer_answers_right_stops_the_others(workshop):
    """The files are the same, but what they are served with is not."""
    workshop.build("step", 1, marker=11)
    workshop.build_over("pipe", 1, marker=11, step="step")
    workshop.deploy("pipe")
    with workshop.client() as client:
        client.unload(workshop.name("pipe"))
    workshop.build("step", 2, marker=22)
    workshop.deploy("step")
    workshop.forget("step")
    workshop.build("other", 1, marker=33)
    with pytest.raises(DeployError, match="Nothing was published"):
        workshop.deploy("other", "pipe")
    assert (workshop.serving("other"), workshop.serving("pipe")) == ([], [])


def test_version_that_lies_there_unserved_is_refused(workshop):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    (workshop.store / workshop.name("m") / "7").mkdir()
    workshop.build("m", 2, marker=22)
    with pytest.raises(DeployError, match="would serve 7 of what lies in"):
        workshop.deploy("m")


@pytest.fixture(scope="module")
def server_elsewhere(tmp_path_factory):
    """A server on an empty repository of its own."""
    with EmbeddedServer(ServeOptions(repository=tmp_path_factory.mktemp("elsewhere"), load=())) as server:
        yield server


@pytest.mark.parametrize("options", [{}, {"dry_run": True}], ids=["deploy", "dry-run"])
def test_store_that_the_server_does_not_read_is_refused(workshop, tmp_path, options):
    workshop.build("m", 1, marker=11)
    other = tmp_path / "other"
    other.mkdir()
    workshop.target["store"] = str(other)
    with pytest.raises(DeployError, match=f"{workshop.url} does not read store {other}") as caught:
        workshop.deploy("m", **options)
    assert "--server" in caught.value.hint
    assert list(other.iterdir()) == []


def test_copy_of_the_repository_that_the_server_reads_is_not_taken_for_it(workshop, tmp_path):
    """Names, versions and served configs are all the same, so only a write can tell."""
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    shutil.copytree(workshop.store, tmp_path / "copy")
    workshop.target["store"] = str(tmp_path / "copy")
    with pytest.raises(DeployError, match="does not read store"):
        workshop.deploy("m")


def test_other_server_than_the_targets_is_refused_also_with_nothing_to_do(workshop, server_elsewhere):
    workshop.build("m", 1, marker=11)
    workshop.deploy("m")
    workshop.url = server_elsewhere.grpc_url
    before = workshop.folders()
    with pytest.raises(DeployError, match=f"{server_elsewhere.grpc_url} does not read store"):
        workshop.deploy("m")
    assert workshop.folders() == before


def test_store_that_is_not_there(workshop, tmp_path):
    workshop.build("m", 1, marker=11)
    workshop.target["store"] = str(tmp_path / "nowhere")
    with pytest.raises(EnvironmentProblem, match="no such folder") as caught:
        workshop.deploy("m")
    port = workshop.url.rpartition(":")[2]
    folder = tmp_path / "nowhere"
    assert f"`mkdir -p {folder} && tt serve {folder} --grpc-port {port}`" in caught.value.hint
    assert not folder.exists()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("grpc://127.0.0.1:8001", "`mkdir -p served && tt serve served --grpc-port 8001` starts"),
        ("http://localhost:8000", "`mkdir -p served && tt serve served --http-port 8000` starts"),
        ("grpcs://triton.example:443", "mount it here, or `mkdir -p served` and start"),
    ],
)
def test_missing_store_tells_how_to_start_a_server_there(tmp_path, monkeypatch, url, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentProblem) as caught:
        LocalStore(tmp_path / "served", url=url).check_usable()
    assert hint in caught.value.hint


def test_server_that_is_down(workshop):
    workshop.build("m", 1, marker=11)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        workshop.url = f"grpc://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerError, match=workshop.url) as caught:
            workshop.deploy("m")
    assert caught.value.exit_code == EXIT_ENVIRONMENT


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_that_hangs_is_given_up_at_the_deadline(workshop, scheme):
    workshop.build("m", 1, marker=11)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        workshop.url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerTimeoutError, match=r"no answer within 0\.3 s") as caught:
            workshop.deploy("m", call_timeout_s=0.3)
    assert caught.value.exit_code == EXIT_ENVIRONMENT


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_server_in_control_mode_none(workshop, server_without_control, scheme):
    workshop.build("m", 1, marker=11)
    workshop.url = getattr(server_without_control, f"{scheme}_url")
    with pytest.raises(ServerError, match="is not in explicit model control mode") as caught:
        workshop.deploy("m")
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    assert "--model-control-mode=explicit" in caught.value.hint


@pytest.fixture(scope="module")
def server_without_control(tmp_path_factory):
    options = ServeOptions(
        repository=tmp_path_factory.mktemp("none"), load=(), extra_args=("--model-control-mode=none",)
    )
    with EmbeddedServer(options) as server:
        yield server


def test_missing_credentials_are_named(workshop):
    workshop.build("m", 1, marker=11)
    workshop.target["auth"] = "{authorization: {env: TT_TEST_NO_SUCH_TOKEN}}"
    with pytest.raises(EnvironmentProblem, match="TT_TEST_NO_SUCH_TOKEN is not set"):
        workshop.deploy("m")
