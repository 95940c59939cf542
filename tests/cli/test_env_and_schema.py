"""``tt env`` and ``tt schema``."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from triton_toolkit import __version__
from triton_toolkit.cli import cli
from triton_toolkit.server import embedded
from triton_toolkit.spec.schema import json_schema


def test_env_is_json_alone_on_stdout():
    result = CliRunner().invoke(cli, ["env", "--json"])
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["tt"] == __version__
    assert set(found) == {
        *("tt", "python", "executable", "host", "extras", "gpu", "embedded", "commands", "warnings"),
    }


def test_env_shows_the_facts_one_a_line():
    lines = CliRunner().invoke(cli, ["env"]).stdout.splitlines()
    facts = [re.split(r"\s{2,}|(?<=Triton) ", line)[0] for line in lines[:7]]
    assert facts == ["tt", "Python", "system", "CPU", "memory", "GPU", "embedded Triton"]


def test_env_says_how_to_add_what_is_missing(monkeypatch):
    from triton_toolkit import environment

    monkeypatch.setattr(environment, "_version", {"click": "8.1.0"}.get)
    result = CliRunner().invoke(cli, ["env"])
    assert result.exit_code == 0
    assert "to add torch: pip install 'triton-toolkit[torch]'" in result.stdout
    assert re.search(r"base\s+partly", result.stdout)


def test_env_without_the_embedded_server_says_why(monkeypatch):
    from triton_toolkit.errors import MissingDependencyError

    def missing() -> None:
        raise MissingDependencyError("no wheel for this platform", hint="use the container")

    monkeypatch.setattr(embedded, "check_available", missing)
    result = CliRunner().invoke(cli, ["env"])
    assert result.exit_code == 0
    assert "no: no wheel for this platform (use the container)" in result.stdout


@pytest.mark.server
def test_env_check_starts_the_server():
    result = CliRunner().invoke(cli, ["env", "--check"])
    assert result.exit_code == 0
    assert "yes, 2.51.0 (started and stopped)" in result.stdout


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["plain", "json"])
def test_schema_prints_the_json_schema(options):
    result = CliRunner().invoke(cli, ["schema", *options])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()
