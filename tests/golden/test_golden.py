"""Rendered configs, as text and as protobuf, one case a template branch.

A case is a folder with ``description.yaml`` (a ConfigDescription) and ``expected.pbtxt``.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from triton_toolkit.config.describe import ConfigDescription, EnsembleStep, build_message
from triton_toolkit.config.message import parse_config
from triton_toolkit.config.render import render_config
from triton_toolkit.config.rules import Severity, check_config
from triton_toolkit.core.tensors import TensorSpec

FOLDER = Path(__file__).parent
CASES = sorted(path.parent.name for path in FOLDER.glob("*/description.yaml"))


def _tensors(values: dict[str, Any]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.from_dict({"name": name, **value}) for name, value in values.items())


def _description(name: str) -> ConfigDescription:
    values = yaml.safe_load((FOLDER / name / "description.yaml").read_text(encoding="utf-8"))
    assert set(values) <= {field.name for field in fields(ConfigDescription)}
    for side in ("inputs", "outputs"):
        values[side] = _tensors(values[side])
    values["ensemble_steps"] = tuple(EnsembleStep(**step) for step in values.get("ensemble_steps", ()))
    return ConfigDescription(**values)


@pytest.mark.parametrize("name", CASES)
def test_rendered_config_is_the_expected_one(name: str, update_golden: bool) -> None:
    description = _description(name)
    text = render_config(description)
    path = FOLDER / name / "expected.pbtxt"
    if update_golden:
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    assert text == expected
    assert parse_config(expected, name) == build_message(description)


@pytest.mark.parametrize("name", CASES)
def test_expected_config_breaks_no_rule(name: str) -> None:
    config = parse_config((FOLDER / name / "expected.pbtxt").read_text(encoding="utf-8"), name)
    assert [finding for finding in check_config(config) if finding.severity is Severity.ERROR] == []


def test_every_template_is_rendered_by_a_case() -> None:
    fields_of_templates = {path.name.partition(".")[0] for path in FOLDER.glob("../../templates/config/*.j2")}
    fields_of_templates -= {"blocks", "model", "tensors"}
    texts = "".join((FOLDER / name / "expected.pbtxt").read_text(encoding="utf-8") for name in CASES)
    assert len(fields_of_templates) >= 8
    assert [name for name in sorted(fields_of_templates) if f"\n{name} " not in texts] == []
