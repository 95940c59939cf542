"""Label files that the spec names are copied beside the config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit._progress import Silent
from triton_toolkit.build.beside import changed_beside, files_beside
from triton_toolkit.build.recipe import Context
from triton_toolkit.build.run import BuildOptions, recipe_for, run_build
from triton_toolkit.errors import SpecError

PYTHON = """
m:
  kind: python
  files: code
  inputs: {x: {dtype: fp32, shape: [2]}}
  outputs: {y: {dtype: fp32, shape: [2]}}
  serve: {output: {y: {label_filename: LABELS}}}
"""


@pytest.fixture
def context(project_of: ProjectOf, tmp_path: Path) -> Context:
    """A Python model without a sample, so that building it takes no server."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "model.py").write_text("")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "labels.txt").write_text("cat\ndog\n")
    return project_of(PYTHON.replace("LABELS", "lists/labels.txt"))


def build(context: Context) -> str:
    (report,) = run_build(context.project, BuildOptions(), Silent())
    assert report.error is None
    return report.action


def test_label_file_is_copied_beside_the_config_and_follows_its_source(
    context: Context, tmp_path: Path
) -> None:
    copied = tmp_path / "model_repository" / "m" / "lists" / "labels.txt"
    assert build(context) == "build"
    assert 'label_filename: "lists/labels.txt"' in (copied.parents[1] / "config.pbtxt").read_text()
    assert copied.read_text() == "cat\ndog\n"
    assert build(context) == "unchanged"
    (tmp_path / "lists" / "labels.txt").write_text("cat\ncow\n")
    assert build(context) == "config"
    assert copied.read_text() == "cat\ncow\n"
    copied.unlink()
    assert changed_beside(context, recipe_for(context, "m")) == ["lists/labels.txt"]
    assert build(context) == "config"


def test_label_file_that_is_missing_is_told_before_anything_is_built(
    context: Context, tmp_path: Path
) -> None:
    (tmp_path / "lists" / "labels.txt").unlink()
    (report,) = run_build(context.project, BuildOptions(), Silent())
    assert report.error is not None
    assert "models.m.serve.output.y.label_filename: no such file: lists/labels.txt" in report.error.message
    assert not (tmp_path / "model_repository" / "m").exists()


@pytest.mark.parametrize(
    "name", ["/etc/hostname", "../labels.txt", "a/../../b", "1/labels.txt", "config.pbtxt"]
)
def test_label_file_that_cannot_lie_there_is_refused(
    context: Context, project_of: ProjectOf, name: str
) -> None:
    context = project_of(PYTHON.replace("LABELS", name))
    with pytest.raises(SpecError, match="cannot lie beside the model's config"):
        files_beside(context, recipe_for(context, "m"))
