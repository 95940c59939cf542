"""The documents name what exists: links, commands, options, versions."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

from triton_toolkit import __version__
from triton_toolkit.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```(?:console|sh|bash|shell)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^\s*(?:\$ )?(tt (?:[^#\n\\]|\\\n)+)", re.MULTILINE)


def test_the_documents_that_every_project_has_are_there():
    names = {path.name for path in DOCUMENTS}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md"} <= names
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(document):
    targets = [target for target in LINK.findall(document.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert missing == []


def commands_in(document: Path) -> list[str]:
    """Return the ``tt …`` lines of a document's shell blocks, joined where they continue."""
    blocks = FENCE.findall(document.read_text(encoding="utf-8"))
    return [line.replace("\\\n", " ").strip() for block in blocks for line in PROMPT.findall(block)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_in_documents_parse(document):
    for line in commands_in(document):
        words = shlex.split(re.split(r"\s(?:\||&&|>|&)(?:\s|$)", line)[0])[1:]
        with click.Context(cli) as context:
            command = cli.get_command(context, words[0])
            if words[0].startswith("-"):
                continue
            assert command is not None, line
            command.make_context(words[0], words[1:], parent=context)


def test_the_readme_names_every_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"tt {name}" not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    assert f"tt {name}" in (command.epilog or "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    silent = [p.name for p in command.params if isinstance(p, click.Option) and not p.help]
    assert silent == []


def test_the_changelog_has_an_entry_for_this_version():
    assert __version__ in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def constraints() -> dict[str, str]:
    """Return package -> version as pinned for the tests."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def test_the_changelog_names_the_tested_versions():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    pinned = constraints()
    for package in ("torch", "onnx", "onnxruntime", "tritonclient", "nvidia-pytriton"):
        assert pinned[package] in text, package


def test_constraints_pin_within_what_the_package_allows():
    """Every pinned package meets the condition in pyproject.toml."""
    from triton_toolkit.environment import satisfies

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(requirement for extra in extras for requirement in extra)]
    pinned = constraints()
    for requirement in wanted:
        match = re.match(r"([\w.-]+)(?:\[[^]]*\])?(.*)", requirement)
        assert match is not None
        if match[1].lower() in pinned:
            assert satisfies(pinned[match[1].lower()], match[2]), requirement


def test_the_decisions_are_all_in_their_index():
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert pages
    assert [page for page in pages if page not in index] == []
