"""``tt init``: what it writes loads and builds; what it refuses, it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from triton_toolkit.cli import cli
from triton_toolkit.repository.passport import read_passport


@pytest.fixture
def tt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs ``tt`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, list(words))

    return run


def save_onnx(path: Path, *, output_shape: bool = True) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    if not output_shape:
        tensors[1] = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_it_says_what_it_wrote_and_what_comes_next(tt):
    result = tt("init")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["wrote tt.yaml", "wrote example_model.py", "next: tt build"]


def test_json_names_the_files(tt):
    assert json.loads(tt("init", "shop", "--json").stdout) == {
        "files": ["shop/tt.yaml", "shop/example_model.py"]
    }


def test_nothing_is_overwritten(tt):
    Path("tt.yaml").write_text("mine")
    result = tt("init")
    assert result.exit_code == 2
    assert "tt.yaml exists, and tt init overwrites nothing" in result.stderr
    assert Path("tt.yaml").read_text() == "mine"
    assert [path.name for path in Path().iterdir()] == ["tt.yaml"]


@pytest.mark.parametrize("source", ["no.onnx", "word", "module:", ":function", "a/b:c"])
def test_a_source_of_no_kind_is_wrong_usage(tt, source):
    result = tt("init", "--from", source)
    assert result.exit_code == 2
    assert "is neither a file nor module:function" in result.stderr
    assert list(Path().iterdir()) == []


def test_a_file_that_is_no_model_is_a_no(tt):
    Path("x.onnx").write_bytes(b"no model")
    result = tt("init", "--from", "x.onnx")
    assert result.exit_code == 1
    assert "x.onnx: not an ONNX file" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["x.onnx"]


@pytest.mark.torch
def test_the_example_builds(tt):
    tt("init")
    result = tt("build")
    assert result.exit_code == 0, result.output
    passport = read_passport(Path("model_repository/example/1"))
    assert passport is not None
    assert passport.outputs[0].shape == ("batch", 3)
    assert {entry["sizes"]["batch"] for entry in passport.parity} >= {1, 8, 32}
    assert list(passport.dependencies) == ["example_model.py"]


@pytest.mark.parametrize("output_shape", [True, False], ids=["shaped", "inferred"])
def test_an_onnx_file_builds_from_what_was_read_off_it(tt, output_shape):
    save_onnx(Path("net.onnx"), output_shape=output_shape)
    assert tt("init", "project", "--from", "net.onnx").stdout.endswith(
        "next: look through tt.yaml, then cd project && tt build\n"
    )
    result = tt("build", "--spec", "project/tt.yaml")
    assert result.exit_code == 0, result.output
    assert (Path("project/model_repository/net/1/model.onnx")).read_bytes() == Path("net.onnx").read_bytes()
