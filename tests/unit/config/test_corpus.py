"""Configs that people have written, where the folder of cases lies beside the checkout."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_toolkit.config.message import format_config, load_config, parse_config
from triton_toolkit.config.render import render_message
from triton_toolkit.config.rules import Severity, check_config
from triton_toolkit.errors import RepositoryError

CASES = Path(__file__).parents[4] / "shared" / "cases" / "configs"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason=f"no cases in {CASES}")

# Two copies of a config that is wrong on purpose.
WRONG = {"186.pbtxt", "198.pbtxt"}


def _files(kind: str, *, parses: bool) -> Iterator[Path]:
    with (CASES / kind / "index.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            path = CASES / kind / row["file"]
            if path.suffix == ".pbtxt" and path.is_file() and (row["protobuf_parse"] == "ok") is parses:
                yield path


def test_configs_survive_format_and_templates() -> None:
    files = [path for kind in ("accepted", "parts", "effective") for path in _files(kind, parses=True)]
    assert len(files) > 100
    for path in files:
        config = load_config(path)
        assert parse_config(format_config(config), path.name) == config
        assert parse_config(render_message(config), path.name) == config


def test_configs_that_do_not_parse_are_refused_with_their_line() -> None:
    files = list(_files("accepted", parses=False))
    assert files
    for path in files:
        with pytest.raises(RepositoryError, match=rf"{path.name}:\d+:\d+: "):
            load_config(path)


def test_accepted_configs_break_no_rule() -> None:
    found = {
        path.name
        for kind in ("accepted", "parts", "effective")
        for path in _files(kind, parses=True)
        if any(finding.severity is Severity.ERROR for finding in check_config(load_config(path)))
    }
    assert found == WRONG


@pytest.mark.parametrize(
    ("expected", "rule"),
    [
        ("batch input kind", "tensor/batch-input"),
        ("batch output kind", "tensor/batch-output"),
        ("unknown target output name", "tensor/batch-output"),
        ("has different size for dims and reshape", "tensor/reshape"),
        ("different number of variable-size dimensions", "tensor/reshape"),
        ("reshape dimensions must be integer", "tensor/reshape"),
        ("cannot have empty reshape", "tensor/reshape"),
        ("dimension must be integer", "tensor/dims"),
        ("default priority level", "batching/priority-level"),
        ("priority queue policy", "batching/priority-level"),
        ("preserve_ordering", "batching/ordering"),
        ("specifies multiple CONTROL", "sequence/control-tensor"),
        ("multiple control kinds", "sequence/control-tensor"),
        ("sequence batching must specify either", "sequence/control-values"),
        ("kind KIND_CPU but specifies", "instances/gpus"),
        ("unexpected 'platform' and 'backend' pair", "model/backend-and-platform"),
        ("ensemble scheduling must be set", "model/ensemble-without-steps"),
        ("must specify '", "ensemble/step"),
        ("should not be specified for ensemble", "ensemble/foreign-field"),
        ("can not be specified for ensemble", "ensemble/foreign-field"),
        ("in an output map only once", "ensemble/wiring"),
        ("is unused in ensemble", "ensemble/wiring"),
        ("is not used", "ensemble/wiring"),
        ("is not written", "ensemble/wiring"),
    ],
)
def test_refused_configs_break_the_rule_of_the_reason(expected: str, rule: str) -> None:
    judged = []
    for path in _files("refused", parses=True):
        reason = path.with_suffix(".expected")
        if reason.is_file() and expected in reason.read_text():
            judged.append(path.name)
            assert rule in {finding.rule for finding in check_config(load_config(path))}, path.name
    assert judged
