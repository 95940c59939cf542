"""What ``tt build`` tells of models that fail: at once, in full, and after ctrl-C as well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.unit.optimise.fp16_models import write as write_model
from triton_toolkit.cli import cli

MODEL = """
  {name}:
    kind: python
    files: code
    inputs: {{x: {{dtype: fp32, shape: [3]}}}}
    outputs: {{y: {{dtype: fp32, shape: [3]}}}}
"""
BAD = """
def {name}():
    print("evidence of {name}")
    raise ValueError("no {name} here")
"""
SLOW = """
import os, time

def sample():
    open("started", "w").write(str(os.getpid()))
    time.sleep(60)
"""


def write(root: Path, **more: str) -> None:
    """Write a project: model name -> further line of the model."""
    models = [MODEL.format(name=name) + (f"    {line}\n" if line else "") for name, line in more.items()]
    (root / "tt.yaml").write_text("spec: 1\nmodels:" + "".join(models))
    (root / "code").mkdir(exist_ok=True)
    (root / "code/model.py").write_text("class TritonPythonModel: pass\n")
    (root / "bad.py").write_text(BAD.format(name="first") + BAD.format(name="second"))
    (root / "slow.py").write_text(SLOW)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def build(*words: str) -> Result:
    return CliRunner().invoke(cli, ["build", "--no-cache", *words])


def test_each_of_two_failures_has_its_detail_and_its_name_once(project: Path) -> None:
    write(project, one="sample: bad:first", two="sample: bad:second")
    done = build()
    assert done.exit_code == 1
    for name, what in (("one", "first"), ("two", "second")):
        errors = done.stderr[done.stderr.index("Error: ") :]
        assert f"Error: {name}: bad:{what}" in errors
        assert f"evidence of {what}" in errors
        assert f"{name}: {name}:" not in done.stderr
    assert done.stderr.count("Hint: ") == 2


def test_a_failure_is_told_at_once(project: Path) -> None:
    write(project, one="sample: bad:first", two="")
    lines = build().stderr.splitlines()
    (told,) = [index for index, line in enumerate(lines) if line.startswith("one: failed: ")]
    assert "no first here" in lines[told]
    assert any(line.startswith("two: ") for line in lines[told + 1 :])


def test_a_failure_that_models_share_is_reported_once(project: Path) -> None:
    env = 'sample: bad:first\n    env: {python: "no/python"}'
    write(project, one=env, two=env)
    done = build()
    assert done.exit_code == 3
    assert done.stderr.count("Error: ") == done.stderr.count("Hint: ") == 1
    assert "Error: one, two: env: " in done.stderr


def test_what_is_built_again_and_is_the_same_has_its_own_word(project: Path) -> None:
    write(project, one="")
    assert json.loads(build("--json").stdout)["models"][0]["action"] == "build"
    done = build("--json", "--force")
    (model,) = json.loads(done.stdout)["models"]
    assert (model["action"], model["version"], model["from_cache"]) == ("same", 1, False)
    assert [path.name for path in (project / "model_repository/one").iterdir() if path.is_dir()] == ["1"]
    with (project / "code/model.py").open("a") as code:
        code.write("# more\n")
    (model,) = json.loads(build("--json").stdout)["models"]
    assert (model["action"], model["version"]) == ("build", 2)


def interrupt(project: Path, number: int, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "triton_toolkit", "build", *words]
    with subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (project / "started").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, number)
        stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_is_known(project: Path, number: int) -> None:
    write(project, one="", two="sample: bad:second", three="sample: slow:sample")
    code, stdout, stderr = interrupt(project, number)
    assert code == 130
    rows = [line.split()[:3] for line in stdout.splitlines()]
    assert ["one", "python", "build"] in rows
    assert ["two", "python", "failed"] in rows
    assert "three" not in stdout
    assert "Error: two: bad:second" in stderr
    assert "evidence of second" in stderr


def test_an_interrupt_keeps_what_is_known_as_json_too(project: Path) -> None:
    write(project, one="", two="sample: bad:second", three="sample: slow:sample")
    code, stdout, _ = interrupt(project, signal.SIGINT, "--json")
    assert code == 130
    value = json.loads(stdout)
    assert value["interrupted"] is True
    assert [(model["name"], model["action"]) for model in value["models"]] == [
        ("one", "build"),
        ("two", "failed"),
    ]


@pytest.mark.torch
def test_a_variant_that_cannot_be_close_enough_is_named_once_and_shows_its_search(project: Path) -> None:

    weights = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    text = "(float[batch,16] x) => (float[batch,16] y) { y = MatMul(x, w) }"
    write_model(project / "net.onnx", text, opset=18, ir_version=9, w=weights)
    write(project, bad="sample: bad:first")
    with (project / "tt.yaml").open("a") as spec:
        spec.write(
            "  strict:\n    kind: onnx\n    source: net.onnx\n    dims: {batch: [1, 4, 8]}\n"
            "    batch_dim: batch\n    variants: {q: {precision: int8-dynamic, tolerance: {absolute: 0.0, "
            "relative: 0.0, range: 0.0, max_noise: 0.0}}}\n"
        )
    done = build("--json")
    assert done.exit_code == 1
    failed = {model["name"]: model["error"] for model in json.loads(done.stdout)["models"]}
    assert failed["strict"]["message"].startswith("strict: q is not close enough to the original")
    errors = done.stderr[done.stderr.index("Error: ") :]
    assert "Error: strict: q is not close enough" in errors
    assert "layers kept, of 1   score   gate" in errors
