"""The tree of errors is the one that the module's docstring draws, with its exit codes."""

from __future__ import annotations

import inspect
import re

import pytest

from triton_toolkit import errors
from triton_toolkit._optional import EXTRAS, require
from triton_toolkit.errors import MissingDependencyError, TritonToolkitError

LINE = re.compile(r"^ {4}([│ ]*(?:[├└]── )?)(\w+) +(\d) ", re.MULTILINE)
CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, TritonToolkitError)
}


def drawn() -> dict[str, tuple[str | None, int]]:
    """Return class name -> (parent, exit code) from the docstring's drawing."""
    found: dict[str, tuple[str | None, int]] = {}
    above: list[str] = []
    for indent, name, code in LINE.findall(errors.__doc__ or ""):
        depth = len(indent) // 4
        above = [*above[:depth], name]
        found[name] = (above[depth - 1] if depth else None, int(code))
    return found


def test_the_drawing_holds_every_class():
    assert set(drawn()) == set(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_drawn_under_its_parent_with_its_exit_code(name):
    cls = CLASSES[name]
    parent = None if cls is TritonToolkitError else cls.__base__.__name__
    assert drawn()[name] == (parent, cls.exit_code)


def test_exit_codes_are_distinct_and_none_means_success():
    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    assert sorted(codes) == [0, 1, 2, 3, 4, 70, 130, 141]


def test_an_error_for_json_names_its_class():
    error = errors.SpecError("m", hint="h", detail="d")
    assert error.as_dict() == {"error": "SpecError", "message": "m", "hint": "h", "detail": "d"}
    assert str(error) == "m"


def test_a_missing_package_names_the_extra():
    with pytest.raises(MissingDependencyError) as caught:
        require("no_such_package.part", extra="gpu", purpose="build engines")
    assert caught.value.message == "no_such_package is not installed; it is needed to build engines"
    assert caught.value.hint == "pip install 'triton-toolkit[gpu]'"


def test_a_package_that_is_there_is_returned():
    assert require("json.decoder", extra="cpu", purpose="x").__name__ == "json.decoder"


def test_what_breaks_inside_an_installed_package_passes(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        require("broken_package", extra="cpu", purpose="x")


def test_extras_say_what_they_are_for():
    assert all(EXTRAS.values())
