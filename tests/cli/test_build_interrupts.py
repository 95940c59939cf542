"""ctrl-C in the middle of ``tt build``: a clear message, nothing half-written, and the next build goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SPEC = """
spec: 1
models:
  first:
    kind: python
    files: first
    inputs: {x: {dtype: fp32, shape: [3]}}
    outputs: {y: {dtype: fp32, shape: [3]}}
  second:
    kind: python
    files: first
    inputs: {x: {dtype: fp32, shape: [3]}}
    outputs: {y: {dtype: fp32, shape: [3]}}
    sample: slow:sample
"""
SLOW = """
import os, time

def sample():
    print("making it", flush=True)
    open("started", "w").write(str(os.getpid()))
    time.sleep(60)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/model.py").write_text("class TritonPythonModel: pass\n")
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "tt.yaml").write_text(SPEC)
    return tmp_path


def build(project: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "triton_toolkit", "build"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not (path.is_file() and path.read_text()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_a_step_leaves_what_was_built_and_nothing_half(project: Path, number: int) -> None:
    with build(project) as process:
        wait_for(project / "started", process)
        process.send_signal(number)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert stderr.endswith(
        "What was built before stays; the same command goes on from there.\nInterrupted.\n"
    )
    assert not Path(f"/proc/{(project / 'started').read_text()}").exists()
    repository = project / "model_repository"
    assert sorted(path.name for path in repository.iterdir()) == ["first"]
    log = (project / ".tt/logs/second/sample.log").read_text()
    assert "making it\n" in log
    assert "# interrupted after" in log
    assert not [path for path in (project / ".tt").rglob(".tt-*")]

    (project / "slow.py").write_text("import numpy\ndef sample():\n    return {'x': numpy.ones(3, 'f')}\n")
    (project / "tt.yaml").write_text(SPEC.replace("    sample: slow:sample\n", ""))
    with build(project) as process:
        stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    results = [
        line.split()[2] for line in stdout.splitlines() if line.lstrip().startswith(("first", "second"))
    ]
    assert results == ["unchanged", "build"]


def test_a_build_that_is_killed_is_no_obstacle_for_the_next(project: Path) -> None:
    with build(project) as process:
        wait_for(project / "started", process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    (project / "tt.yaml").write_text(SPEC.replace("    sample: slow:sample\n", ""))
    with build(project) as process:
        _, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert sorted(path.name for path in (project / "model_repository").iterdir()) == ["first", "second"]
