"""A hint names only commands and options that exist: hints rot when options are renamed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from triton_toolkit.cli import COMMANDS, cli
from triton_toolkit.errors import MissingDependencyError
from triton_toolkit.server.embedded import check_available

PACKAGE = Path(__file__).parents[2] / "triton_toolkit"
COMMAND = re.compile(r"(?:^|`|: )tt ([a-z]+)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
OF_OTHERS = {"--force-reinstall", "--enable-shared"}
"""Options of pip, and of Python's own configure script."""


def texts(node: ast.AST) -> str:
    """Return the literal parts of a string expression, with a mark where a value goes."""
    parts = []
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            parts.append(part.value)
    return " ".join(parts)


def hints() -> Iterator[tuple[str, str]]:
    """Yield place and text of everything that is given as ``hint=``, or as the hint of ``.error()``."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            found = [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "error" and len(node.args) == 3:
                found.append(node.args[2])
            for value in found:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", texts(value)


def options(command: click.Command) -> Iterator[str]:
    """Yield every option of a command and of the commands below it."""
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    yield "--help"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            yield from options(child) if child else ()


@pytest.fixture(scope="module")
def tritonserver_options() -> set[str]:
    """Return the options that the embedded server's own help lists."""
    try:
        info = check_available()
    except MissingDependencyError as exc:
        pytest.skip(exc.message)
    done = subprocess.run(
        [info.server, "--help"],
        env={**os.environ, "LD_LIBRARY_PATH": str(info.libraries)},
        capture_output=True,
        text=True,
        check=False,
    )
    return set(FLAG.findall(done.stdout + done.stderr))


def test_the_collection_finds_hints():
    assert len(list(hints())) > 40


def test_commands_in_hints_exist():
    wrong = {
        f"{place}: tt {n}" for place, text in hints() for n in COMMAND.findall(text) if n not in COMMANDS
    }
    assert wrong == set()


def test_options_in_hints_exist(tritonserver_options):
    assert "--model-control-mode" in tritonserver_options
    known = set(options(cli)) | tritonserver_options | OF_OTHERS
    wrong = {
        f"{place}: {flag}" for place, text in hints() for flag in FLAG.findall(text) if flag not in known
    }
    assert wrong == set()


def test_extras_in_hints_exist():
    import tomllib

    pyproject = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    extras = set(pyproject["project"]["optional-dependencies"])
    named = {
        extra
        for _, text in hints()
        for group in re.findall(r"triton-toolkit\[([\w,]+)\]", text)
        for extra in group.split(",")
    }
    assert named <= extras
