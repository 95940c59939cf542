"""An interrupt at any moment of the start ends ``tt`` with 130 and without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

PROGRAM = """
import atexit, os, signal, sys
from triton_toolkit import __main__

number, at = getattr(signal, sys.argv.pop(1)), int(sys.argv.pop(1))
count = 0

class Interrupter:
    @staticmethod
    def find_spec(name, path=None, target=None):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Interrupter)
if at == 0:
    atexit.register(lambda: print(f"imports: {count}", file=sys.stderr))
__main__.main()
"""
"""Runs tt and sends it a signal while it looks for its n-th import, so no clock is involved."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an ONNX file: reading it loads numpy, ml_dtypes and onnx."""
    folder = tmp_path_factory.mktemp("interrupts")
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph), folder / "net.onnx")
    return folder


def tt(folder: Path, project: str, *, at: int, signal: str = "SIGINT") -> subprocess.CompletedProcess[str]:
    """Run ``tt init`` in a process of its own, interrupted at its n-th import; 0 is never."""
    words = [signal, str(at), "init", project, "--from", "net.onnx"]
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def imports(folder: Path) -> int:
    """Return how many imports the command makes."""
    done = tt(folder, "whole", at=0)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.rpartition("imports: ")[2])


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6, 0.8, 0.99])
def test_an_interrupt_while_starting_ends_quietly(folder: Path, imports: int, share: float) -> None:
    project = f"at-{share}"
    done = tt(folder, project, at=1 + int(share * imports))
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr
    left = [path.name for path in folder.glob(f"{project}/*")]
    assert left in ([], ["tt.yaml"])  # written whole or not at all; the last imports are for printing


def test_sigterm_is_an_interrupt_too(folder: Path, imports: int) -> None:
    done = tt(folder, "terminated", at=imports // 2, signal="SIGTERM")
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_an_interrupt_that_the_caller_ignores_stays_ignored(folder: Path, imports: int) -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    words = ["SIGINT", str(imports // 2), "init", "ignored", "--from", "net.onnx"]
    done = subprocess.run([sys.executable, "-c", ignoring + PROGRAM, *words], cwd=folder, check=False)
    assert done.returncode == 0
    assert (folder / "ignored" / "tt.yaml").is_file()
