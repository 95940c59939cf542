"""Write a spec and load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.load import Project, load_project


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Project]:
    """Return a function that writes ``tt.yaml`` and loads it."""

    def load_text(text: str) -> Project:
        path = tmp_path / "tt.yaml"
        path.write_text(text, encoding="utf-8")
        return load_project(path)

    return load_text


@pytest.fixture
def refuse(load: Callable[[str], Project], tmp_path: Path) -> Callable[[str], SpecError]:
    """Return a function that loads a spec and returns its error, paths shortened."""

    def error_of(text: str) -> SpecError:
        with pytest.raises(SpecError) as caught:
            load(text)
        error = caught.value
        error.message = error.message.replace(f"{tmp_path}/", "")
        return error

    return error_of
