"""docs/spec.md is the reference of tt.yaml: its examples load, and it leaves no key out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from triton_toolkit.spec.load import load_project
from triton_toolkit.spec.schema import json_schema

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMPLETE, INCLUDED = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
KINDS = {"torch", "onnx", "python", "prebuilt", "ensemble"}


def properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield part, key and schema of every key that a spec may have."""
    for part, definition in {"Spec": json_schema(), **json_schema()["$defs"]}.items():
        for form in (definition, *definition.get("anyOf", ())):
            for key, value in form.get("properties", {}).items():
                yield part, key, value


def rows(key: str) -> list[str]:
    """Return the table rows that are about a key."""
    return [line for line in TEXT.splitlines() if re.match(rf"\| [^|]*`{key}`", line)]


def test_the_complete_example_loads_and_has_every_kind(tmp_path):
    (tmp_path / "tt.yaml").write_text(COMPLETE)
    models = load_project(tmp_path / "tt.yaml").spec.models
    assert {model.kind for model in models.values()} == KINDS
    assert models["encoder"].dims["seq"].max == 128


def test_the_included_file_loads_with_the_complete_example(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "intent.yaml").write_text(INCLUDED)
    (tmp_path / "tt.yaml").write_text(COMPLETE + "include: [models/*.yaml]\n")
    assert load_project(tmp_path / "tt.yaml").model("intent").batch_dim == "batch"


def test_the_schema_has_many_keys():
    assert len(list(properties())) > 60


@pytest.mark.parametrize("key", sorted({key for _, key, _ in properties()}))
def test_every_key_has_a_row(key):
    assert rows(key) != []


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_a_section_or_a_row_for_each_of_its_keys(kind):
    section = TEXT.partition(f"## `kind: {kind}`\n")[2].partition("\n## ")[0]
    every = TEXT.partition("## Every kind of model\n")[2].partition("\n## ")[0]
    own = {key for part, key, _ in properties() if part == f"{kind.capitalize()}Model"}
    assert own
    assert [key for key in sorted(own) if f"| `{key}` |" not in section + every] == []


DEFAULTS = {
    (part, key): value["default"]
    for part, key, value in properties()
    if isinstance(value.get("default"), str | int | float) and not isinstance(value["default"], bool)
}


@pytest.mark.parametrize(("place", "default"), DEFAULTS.items(), ids=str)
def test_defaults_are_those_of_the_code(place, default):
    assert any(f"`{default}`" in row for row in rows(place[1]))
