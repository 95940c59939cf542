"""``tt build --bisect``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from triton_toolkit.cli import cli

SPEC = """\
spec: 1
release: "22.07"
models:
  net: {{source: "nets:model", inputs: {{x: {{shape: [batch, 4]}}}}, dims: {{batch: [1, 4, 8]}}}}
  file: {{kind: onnx, source: a.onnx}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Give a project whose model has a right export and a wrong branch."""
    (tmp_path / "tt.yaml").write_text(SPEC.format())
    (tmp_path / "nets.py").write_text("from torch import nn\n\n\ndef model():\n    return nn.Linear(4, 3)\n")
    return tmp_path


@pytest.mark.torch
def test_every_combination_is_shown_and_nothing_is_written(project: Path, monkeypatch) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(cli, ["build", "net", "--bisect", "--json"])
    assert result.exit_code == 0, result.output
    (model,) = json.loads(result.stdout)["models"]
    assert (model["name"], model["ok"], model["error"]) == ("net", True, None)
    assert {trial["exporter"] for trial in model["trials"]} == {"dynamo", "torchscript"}
    assert all(trial["opset"] <= 17 for trial in model["trials"])
    assert not (project / "model_repository").exists()


def test_only_pytorch_models_are_bisected(project: Path, monkeypatch) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(cli, ["build", "file", "--bisect"])
    assert result.exit_code == 2
    assert "file is of kind onnx" in result.stderr


@pytest.mark.parametrize("second", ["file", "none"])
def test_names_are_looked_at_before_the_first_trial(project: Path, monkeypatch, second: str) -> None:
    monkeypatch.chdir(project)
    result = CliRunner().invoke(cli, ["build", "net", second, "--bisect"])
    assert result.exit_code == 2
    assert "net: " not in result.stderr
