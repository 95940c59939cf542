"""Nothing heavy is imported before a command needs it, and imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "triton_toolkit"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = set(PYPROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-module-level-imports"])

HEAVY_BY_DESIGN = {
    "triton_toolkit.spec.models": "pydantic",
    "triton_toolkit.spec.entries": "pydantic",
    "triton_toolkit.config.templates": "jinja2",
}
"""Modules whose classes are built on a heavy package; their importers load them late."""

RUN_BY_TRITON = "triton_toolkit.server.backends."

LAYERS = (
    {"errors", "__init__"},
    {
        "_files",
        "_hashes",
        "_interrupts",
        "_machine",
        "_optional",
        "_process",
        "_progress",
        "_stdio",
        "_workspace",
    },
    {"core"},
    {"spec"},
    {"repository"},
    {"client", "config", "server", "export"},
    {"optimise"},
    {"build", "deploy", "probe", "scaffold", "environment"},
    {"report"},
    {"cli"},
    {"__main__"},
)
"""Lowest first. A module imports from its own part and from lower layers; the exceptions follow."""

BESIDE = {("_files", "errors"), ("_files", "_hashes"), ("_optional", "errors")}
"""Imports between parts of one layer, or upwards, that are allowed."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and the file of every module of the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


LIGHT = [name for name, _ in modules() if name not in HEAVY_BY_DESIGN and not name.startswith(RUN_BY_TRITON)]


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_walk_finds_the_package():
    assert {"triton_toolkit", "triton_toolkit.cli", "triton_toolkit.core.dims"} <= set(LIGHT)
    assert {"torch", "numpy", "yaml", "pydantic"} <= HEAVY


def test_no_module_imports_anything_heavy():
    """One process for all: the first module that brings something heavy is the one that is named."""
    code = f"""
import importlib, sys
heavy = {HEAVY!r}
for name in {LIGHT!r}:
    importlib.import_module(name)
    loaded = sorted(heavy & set(sys.modules))
    if loaded:
        print(name, "imports", *loaded)
        break
"""
    assert run(code) == ""


def test_help_of_every_command_works_and_loads_nothing_heavy():
    code = f"""
import sys
import click
from triton_toolkit.cli import cli
heavy = {HEAVY!r}

def walk(command, path):
    try:
        cli.main([*path, "--help"], prog_name="tt")
    except SystemExit as exc:
        if exc.code:
            print("FAILED", *path, exc.code, file=sys.stderr)
    if heavy & set(sys.modules):
        print("HEAVY", *path, *sorted(heavy & set(sys.modules)), file=sys.stderr)
    seen.append(path)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            walk(command.get_command(click.Context(command), name), [*path, name])

seen = []
walk(cli, [])
print("SEEN", len(seen))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    from triton_toolkit.cli import COMMANDS

    assert f"SEEN {len(COMMANDS) + 1}" in done.stdout
    assert all(f"Usage: tt {name} " in done.stdout for name in COMMANDS)


def part_of(name: str) -> str:
    """Return the part of the package that a module belongs to: ``core`` for triton_toolkit.core.dims."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports() -> Iterator[tuple[str, str]]:
    """Yield importing module and imported module, wherever in the file the import stands."""
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level:
                yield name, f"triton_toolkit.RELATIVE.{node.module}"
            elif isinstance(node, ast.ImportFrom) and node.module == "triton_toolkit":
                yield from ((name, f"triton_toolkit.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield name, node.module


def test_every_part_has_its_layer():
    known = set().union(*LAYERS)
    assert {part_of(name) for name, _ in modules()} <= known


def test_imports_go_one_way():
    height = {part: index for index, layer in enumerate(LAYERS) for part in layer}
    wrong = set()
    for importer, imported in imports():
        if imported.partition(".")[0] != "triton_toolkit" or imported == "triton_toolkit.__version__":
            continue
        above, below = part_of(importer), part_of(imported)
        if above != below and (above, below) not in BESIDE and height.get(below, 99) >= height[above]:
            wrong.add(f"{importer} imports {imported}")
    assert wrong == set()


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes but those under ``if __name__ == "__main__"``: there a module is a program."""
    for statement in tree.body:
        if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            yield from ast.walk(statement)


def test_the_library_neither_prints_nor_exits():
    """Only ``cli/`` does; a worker is a program of its own, and the backends run inside Triton."""
    calls = ("print", "sys.exit", "exit", "quit", "click.echo")
    found = {
        f"{name}:{node.lineno} {ast.unparse(node.func)}"
        for name, path in modules()
        if part_of(name) not in ("cli", "__main__") and not name.startswith(RUN_BY_TRITON)
        for node in statements(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls and path.stem != "worker"
    }
    assert found == set()


def test_help_costs_little_more_than_importing_click():
    """The one test that times: the best of several rounds, taken in turns; a busy host gets more rounds."""
    best = {"help": float("inf"), "click": float("inf")}
    argv = {
        "help": [sys.executable, "-m", "triton_toolkit", "--help"],
        "click": [sys.executable, "-c", "import click"],
    }
    for finished in range(40):
        for name, words in argv.items():
            start = time.perf_counter()
            subprocess.run(words, capture_output=True, check=True)
            best[name] = min(best[name], time.perf_counter() - start)
        if finished >= 4 and best["help"] <= 2 * best["click"]:
            break
    assert best["help"] <= 2 * best["click"]


@pytest.mark.parametrize(("name", "package"), HEAVY_BY_DESIGN.items())
def test_what_is_excepted_is_really_heavy(name, package):
    """An exception that is no longer needed must not stay."""
    assert run(f"import sys, {name}; print({package!r} in sys.modules)") == "True\n"
