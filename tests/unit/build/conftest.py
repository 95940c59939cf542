"""Projects of a few lines."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit.build.recipe import Context
from triton_toolkit.spec.load import load_project


@pytest.fixture
def project_of(tmp_path: Path) -> ProjectOf:
    """Write a spec whose ``models:`` is the given text, and return its build context."""

    def write(models: str) -> Context:
        text = "spec: 1\nmodels:\n" + textwrap.indent(textwrap.dedent(models), "  ")
        (tmp_path / "tt.yaml").write_text(text)
        return Context(project=load_project(tmp_path / "tt.yaml"), release=None, opset=18, ir_version=10)

    return write
