"""``tt serve`` as a user runs it: real processes, real servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

pytestmark = pytest.mark.server

DEADLINE_S = 60.0
AT_ONCE = ("--exit-timeout", "0s")


def add_model(root: Path, name: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    (root / name / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(root / name / "1" / "model.onnx"))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with a model repository; a detached server on it is ended afterwards."""
    add_model(tmp_path / "model_repository", "negate")
    yield tmp_path
    tt(tmp_path, "--stop")


@contextlib.contextmanager
def started(project: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Give a running ``tt serve``; a failed test does not leave it behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "triton_toolkit", "serve", *arguments],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tt(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with started(project, *arguments) as process:
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5) as answer:
            return int(answer.status) == 200
    except OSError:
        return False


def read_json(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Read one JSON document from a process that goes on."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            break
    value: dict[str, Any] = json.loads("".join(lines))
    return value


def test_a_detached_server_lives_on_until_it_is_stopped(project: Path) -> None:
    first = tt(project, "--detach", "--json", *AT_ONCE)
    assert first.returncode == 0
    value = json.loads(first.stdout)
    assert value["detached"] is True
    assert [(model["name"], model["state"]) for model in value["models"]] == [("negate", "READY")]
    assert ready(value["http_url"])

    second = tt(project, "--detach")
    assert second.returncode == 3
    assert f"runs on {project / 'model_repository'} already, at {value['grpc_url']}" in second.stderr
    assert ready(value["http_url"])

    stopped = tt(project, "--stop")
    assert stopped.returncode == 0
    assert f"Stopped the server on {project / 'model_repository'}." in stopped.stdout
    assert not ready(value["http_url"])
    assert not Path(f"/proc/{value['pid']}").exists()
    assert list(Path(os.environ["XDG_STATE_HOME"]).rglob("model_repository-*")) == []


def test_a_repository_with_a_name_as_long_as_names_can_be_is_served(project: Path) -> None:
    folder = project / ("r" * 255)
    (project / "model_repository").rename(folder)
    answer = tt(project, str(folder), "--detach", "--json", *AT_ONCE)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["models"][0]["state"] == "READY"
    assert json.loads(tt(project, str(folder), "--stop", "--json").stdout)["stopped"] is True


def test_stopping_nothing_says_so(project: Path) -> None:
    answer = tt(project, "--stop", "--json")
    assert answer.returncode == 0
    assert json.loads(answer.stdout)["stopped"] is False


def test_a_model_that_does_not_load_is_shown_and_sets_the_exit_code(project: Path) -> None:
    (project / "model_repository/broken/1").mkdir(parents=True)
    (project / "model_repository/broken/1/model.onnx").write_bytes(b"junk")
    answer = tt(project, "--detach", *AT_ONCE)
    assert answer.returncode == 1
    assert "onnx runtime error 7" in answer.stdout
    assert tt(project, "--stop").returncode == 0


def test_what_a_killed_detached_server_left_is_no_obstacle(project: Path) -> None:
    first = json.loads(tt(project, "--detach", "--json", *AT_ONCE).stdout)
    state = next(Path(os.environ["XDG_STATE_HOME"]).rglob("model_repository-*.json"))
    supervisor = json.loads(state.read_text())
    inner = Path(f"/proc/{first['pid']}/stat").read_text().rpartition(")")[2].split()[1]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # both at once, so that neither clears up after the other
        for pid in (supervisor["supervisor_pid"], int(inner)):
            os.kill(pid, number)
    deadline = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{first['pid']}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert Path(supervisor["folder"]).exists()
    assert tt(project, "--detach", *AT_ONCE).returncode == 0
    assert not Path(supervisor["folder"]).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_it_serves_until_it_is_interrupted(project: Path, number: int) -> None:
    with started(project, "--json", *AT_ONCE) as process:
        value = read_json(process)
        assert ready(value["http_url"])
        os.killpg(process.pid, number)
        process.wait(DEADLINE_S)
    assert process.returncode == 0
    assert not ready(value["http_url"])
    assert not Path(f"/proc/{value['pid']}").exists()


def test_a_server_that_ends_by_itself_is_an_error(project: Path) -> None:
    with started(project, "--json", *AT_ONCE) as process:
        os.kill(read_json(process)["pid"], signal.SIGKILL)
        _, stderr = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 3
    assert "ended by itself (killed by SIGKILL) while it served" in stderr


def test_the_repository_is_the_specs(project: Path) -> None:
    (project / "tt.yaml").write_text(
        "spec: 1\nrepository: elsewhere\nmodels: {m: {kind: prebuilt, path: m}}\n"
    )
    answer = tt(project)
    assert answer.returncode == 3
    assert f"{project / 'elsewhere'}: no such folder" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--model", "negat"), 2, "did you mean 'negate'"),
        (("--ready-timeout", "soon"), 2, "--ready-timeout: 'soon' is not a duration"),
        (("--ready-timeout", "1e300s"), 2, "--ready-timeout: '1e300s' is not above 0 and up to a day"),
        (("--ready-timeout", "0s"), 2, "--ready-timeout: '0s' is not above 0"),
        (("--exit-timeout", "-1s"), 2, "--exit-timeout: '-1s' is not between 0 and a day"),
        (("x" * 300,), 3, "no such folder"),
        (("--exit-timeout", "0.5s"), 2, "--exit-timeout: '0.5s' is not a whole number of seconds"),
        (("--stop", "--detach"), 2, "--stop and --detach exclude each other"),
        (("--grpc-port", "0"), 2, "--grpc-port"),
        (("nowhere",), 3, "nowhere: no such folder"),
        (("--spec", "no.yaml"), 2, "no.yaml"),
    ],
)
def test_wrong_use_is_refused(project: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    answer = tt(project, *arguments)
    assert answer.returncode == code
    assert words in answer.stderr
