"""Two builds of the same model that do not give the same bytes: each has its own proof."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.unit.optimise.fp16_models import write
from triton_toolkit._files import sha256_file
from triton_toolkit._progress import Silent
from triton_toolkit.build.run import BuildOptions, ModelReport, run_build
from triton_toolkit.export.session import Session
from triton_toolkit.optimise import run, worker
from triton_toolkit.optimise.timing import Speed
from triton_toolkit.repository.passport import Passport, check_files, read_passport, read_samples
from triton_toolkit.spec.load import load_project

SPEC = """
spec: 1
models:
  net:
    kind: onnx
    source: net.onnx
    dims: {batch: [1, 4, 8]}
    batch_dim: batch
    variants: {int8: {precision: int8, calibration: "MODULE:rows"}}
"""
ROWS = """
from pathlib import Path
import numpy as np

def rows():  # as if drawn without a seed: other ranges, and so other scales, in each build
    built = len(list((Path(__file__).parent / "model_repository" / "net").glob("[0-9]*")))
    rng = np.random.default_rng(built)
    return [{"x": rng.standard_normal((8, 16)).astype(np.float32)} for _ in range(8)]
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose variant is made in this process, without timing it."""
    rng = np.random.default_rng(0)
    weights = {name: (rng.standard_normal((16, 16)) / 4).astype(np.float32) for name in ("w1", "w2")}
    text = "(float[batch,16] x) => (float[batch,16] y) { a = MatMul(x, w1) r = Relu(a) y = MatMul(r, w2) }"
    write(tmp_path / "net.onnx", text, opset=18, ir_version=9, **weights)
    module = f"rows_of_{tmp_path.name}"  # modules of this process are those of all tests
    (tmp_path / f"{module}.py").write_text(ROWS)
    (tmp_path / "tt.yaml").write_text(SPEC.replace("MODULE", module))
    speed = Speed(
        ratio=2.0, low=1.9, high=2.1, faster=True, rounds=20, base_ms=2.0, variant_ms=1.0, threads=1, cpu={}
    )
    monkeypatch.setattr(worker, "time_variant", lambda *args, **more: speed)
    monkeypatch.setattr(run, "run_optimise", worker.perform)
    return tmp_path


def build(root: Path, *, force: bool = False) -> ModelReport:
    [report] = run_build(load_project(root / "tt.yaml"), BuildOptions(force=force), Silent())
    assert report.error is None
    return report


def passport_of(version: Path) -> Passport:
    passport = read_passport(version)
    assert passport is not None
    return passport


def test_each_version_holds_the_hash_and_the_figures_of_its_own_bytes(root: Path) -> None:
    """NVIDIA/TensorRT#4730 and #4798: the same command gives other bytes; close, never equal."""
    for _ in range(2):
        build(root, force=True)
    first, second = (root / "model_repository/net" / number for number in "12")
    one, two = passport_of(first), passport_of(second)
    assert one.key == two.key
    assert one.files["model.onnx"] == sha256_file(first / "model.onnx") != two.files["model.onnx"]
    assert two.files["model.onnx"] == sha256_file(second / "model.onnx")
    assert one.parity != two.parity
    for version, passport in ((first, one), (second, two)):
        samples = read_samples(version)
        assert samples is not None
        as_written = Session(version / "model.onnx", entries={"session.disable_quant_qdq": "1"})
        found = as_written.predict(samples.inputs)
        error = float(np.abs(found["y"] - samples.outputs["y"]).max())
        assert 0 < error <= passport.parity[0]["outputs"][0]["max_absolute"]


def test_a_verdict_is_not_taken_for_other_bytes(root: Path) -> None:
    for _ in range(2):
        build(root, force=True)
    first, second = (root / "model_repository/net" / number for number in "12")
    shutil.copyfile(first / "model.onnx", second / "model.onnx")
    [changed] = check_files(second, passport_of(second))
    assert changed.startswith("model.onnx is not the file that was built")
    report = build(root)
    assert (report.action, report.version) == ("build", 3)
