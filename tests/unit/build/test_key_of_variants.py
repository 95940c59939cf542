"""What a variant depends on beyond its export: its own keys, calibration code and data, the processor."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit._progress import Silent
from triton_toolkit.build import reuse
from triton_toolkit.build.plan import decide
from triton_toolkit.build.reuse import fetch_version
from triton_toolkit.build.run import BuildOptions, build_context, recipe_for, run_build
from triton_toolkit.export.run import run_export
from triton_toolkit.spec.load import load_project

SPEC = """
spec: 1
models:
  net:
    kind: onnx
    source: net.onnx
    dims: {batch: [1, 4, 8]}
    batch_dim: batch
    variants: {fp32: {}, int8: {precision: int8, calibration: "calibration:rows"}}
    also: [int8]
"""
CALIBRATION = """
import numpy as np
import sizes

def rows():
    data = np.load("rows.npy")
    return [{"x": data[start:start + sizes.ROWS]} for start in range(0, len(data), sizes.ROWS)]
"""


def write_project(root: Path) -> None:
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((generator.standard_normal(shape) / 6).astype(np.float32), name)
        for name, shape in (("w1", (32, 64)), ("w2", (64, 8)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])
    opset = [helper.make_opsetid("", 18)]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), root / "net.onnx")
    np.save(root / "rows.npy", generator.standard_normal((256, 32)).astype(np.float32))
    (root / "calibration.py").write_text(CALIBRATION)
    (root / "sizes.py").write_text("ROWS = 8\n")
    (root / "tt.yaml").write_text(SPEC)


class Notes(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, subject: str, text: str) -> None:
        self.texts.append(f"{subject}: {text}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a folder with a project that is built, its cache, and what the build told."""
    folder = tmp_path_factory.mktemp("variants")
    (folder / "project").mkdir()
    write_project(folder / "project")
    project, notes = load_project(folder / "project/tt.yaml"), Notes()
    reports = run_build(project, BuildOptions(cache=folder / "cache"), notes)
    assert [report.error for report in reports] == [None, None]
    return folder, notes.texts


@pytest.fixture
def root(built: tuple[Path, list[str]], tmp_path: Path) -> Path:
    shutil.copytree(built[0], tmp_path / "copy")
    return tmp_path / "copy/project"


def judge(root: Path, name: str) -> tuple[tuple[str, ...], bool]:
    """Return why a version is stale, and whether the cache has it."""
    project = load_project(root / "tt.yaml")
    context = build_context(project, BuildOptions(cache=root.parent / "cache"), Silent())
    recipe = recipe_for(context, name)
    into = root / f"fetched-{name}"
    into.mkdir()
    reasons = decide(context, recipe, force=False).reasons
    return reasons, fetch_version(context, recipe, into, Silent()) is not None


def test_the_export_is_made_once_for_all_variants(built: tuple[Path, list[str]]) -> None:
    assert "net_int8: the checked ONNX file taken from the cache" in built[1]


def test_unchanged_both_stand(root: Path) -> None:
    assert judge(root, "net") == ((), True)
    assert judge(root, "net_int8") == ((), True)


@pytest.mark.parametrize("name", ["calibration.py", "sizes.py", "rows.npy"])
def test_the_calibrations_code_and_data_count_for_the_variant_alone(root: Path, name: str) -> None:
    (root / name).write_bytes((root / name).read_bytes() + b"\n")
    assert judge(root, "net_int8") == ((f"{name} changed",), False)
    assert judge(root, "net") == ((), True)


def test_the_variants_own_keys_count_for_it_alone(root: Path) -> None:
    spec = root / "tt.yaml"
    spec.write_text(spec.read_text().replace("precision: int8,", "precision: int8, keep: [none],"))
    assert judge(root, "net_int8") == (("variant changed",), False)
    assert judge(root, "net") == ((), True)


def test_figures_of_another_processor_are_not_taken(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "processor", lambda: "another")
    assert judge(root, "net_int8") == ((), False)
    assert judge(root, "net") == ((), True)


def test_an_export_that_fails_is_not_tried_again_for_each_variant(tmp_path, monkeypatch):
    write_project(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"no model")
    runs = []
    monkeypatch.setattr(
        "triton_toolkit.export.run.run_export", lambda *given: runs.append(given) or run_export(*given)
    )
    reports = run_build(load_project(tmp_path / "tt.yaml"), BuildOptions(), Silent())
    assert [(report.name, report.action) for report in reports] == [("net", "failed"), ("net_int8", "failed")]
    assert len(runs) == 1
