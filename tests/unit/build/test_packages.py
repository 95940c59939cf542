"""Packages that a project's files import count for results from elsewhere."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from tests.unit.build.places import KEY, REPORT, Place
from triton_toolkit.build.cache import Reads
from triton_toolkit.build.packages import imported_packages

YAML = metadata.version("PyYAML")
CODE = """
import json, yaml.nodes
from . import numpy
from ..numpy import thing
import own_module

def late():
    from click.testing import CliRunner
"""


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CODE)
    assert imported_packages(tmp_path, ["net.py"]) == {
        "package PyYAML": YAML,
        "package click": metadata.version("click"),
    }


@pytest.mark.parametrize("name", ["weights.py.bin", "broken.py", "gone.py"])
def test_what_is_no_python_imports_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "weights.py.bin").write_text("import yaml")
    (tmp_path / "broken.py").write_bytes(b"import yaml\n\0(")
    assert imported_packages(tmp_path, [name]) == {}


def test_another_version_of_a_package_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    dependencies = {**place.hashes("net.py"), "package PyYAML": YAML}
    place.cache.store("export", KEY, dependencies, place.made(), REPORT)
    assert place.fetch()[0] == REPORT
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py"}), True)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9" if name == "PyYAML" else version(name))
    assert place.fetch()[0] is None
    assert place.cache.dependencies("export", KEY) == Reads(frozenset({"net.py"}), False)


def test_a_package_that_is_gone_finds_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.cache.store("export", KEY, {"package no-such-package": "1"}, place.made(), REPORT)
    assert place.fetch()[0] is None
