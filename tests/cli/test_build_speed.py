"""A variant that is not faster than FP32: the build warns, its table and the passport say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit.cli import cli
from triton_toolkit.optimise import run, worker
from triton_toolkit.optimise.timing import Speed

SPEC = """
spec: 1
models:
  net:
    kind: onnx
    source: net.onnx
    dims: {batch: [1, 4, 8]}
    batch_dim: batch
    variants: {dynamic: {precision: int8-dynamic}}
"""
CPU: dict[str, str | bool | None] = {"model": "A CPU", "avx2": True, "avx512_vnni": False, "avx_vnni": False}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((32, 8)).astype(np.float32)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", 32), ("y", 8))
    )
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "net", [x], [y], [numpy_helper.from_array(weights, "w")])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "net.onnx")
    (tmp_path / "tt.yaml").write_text(SPEC)
    return tmp_path


def build(
    project: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, *, faster: bool | None, words: str = ""
) -> Result:
    """Build in this process, with these figures for those of a clock."""
    speed = Speed(
        ratio=ratio,
        low=ratio - 0.02,
        high=ratio + 0.02,
        faster=faster,
        rounds=20,
        base_ms=1.0,
        variant_ms=1.0 / ratio,
        threads=2,
        cpu=CPU,
    )
    monkeypatch.setattr(worker, "time_variant", lambda *args, **options: speed)
    monkeypatch.setattr(run, "run_optimise", worker.perform)
    monkeypatch.chdir(project)
    return CliRunner().invoke(cli, ["build", "--no-cache", *words.split()])


WHERE = "on A CPU, with avx2, without avx512_vnni, avx_vnni"


@pytest.mark.parametrize(
    ("ratio", "faster", "noted", "told"),
    [(0.5, False, "not faster", "not faster"), (1.02, None, "not shown to be faster", "undecided")],
    ids=["slower", "unsure"],
)
def test_the_build_warns_and_its_table_says_so(
    project: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, faster: bool | None, noted: str, told: str
) -> None:
    done = build(project, monkeypatch, ratio, faster=faster)
    assert done.exit_code == 0
    assert f"net: dynamic: {noted} than fp32 here: {ratio:.2f} times as fast" in done.stderr
    assert WHERE in done.stderr
    assert f"{ratio:.2f} times as fast as fp32: {told}" in " ".join(done.stdout.split())


def test_the_passport_says_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project, monkeypatch, 0.5, faster=False)
    speed = json.loads((project / "model_repository/net/1/passport.json").read_text())["speed"]
    assert (speed["ratio"], speed["low"], speed["high"], speed["faster"]) == (0.5, 0.48, 0.52, False)
    assert speed["cpu"] == CPU


def test_json_says_so_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = build(project, monkeypatch, 0.5, faster=False, words="--json")
    assert json.loads(done.stdout)["models"][0]["passport"]["speed"]["faster"] is False


def test_of_a_faster_one_nothing_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = build(project, monkeypatch, 2.0, faster=True)
    assert "faster" not in done.stderr + done.stdout
    assert "2.00 times as fast as fp32" in " ".join(done.stdout.split())
