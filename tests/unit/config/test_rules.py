"""Every rule, on a config that breaks it; and the same configs on the real server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from triton_toolkit.config.message import parse_config
from triton_toolkit.config.rules import RULES, Severity, check_config
from triton_toolkit.errors import ServerError
from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions

MODEL_PY = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        values = [request.inputs()[0].as_numpy() for request in requests]
        return [pb.InferenceResponse([pb.Tensor("Y", value.astype(np.float32))]) for value in values]
"""
INPUT = 'input { name: "X" data_type: TYPE_FP32 dims: [2] }\n'
OUTPUT = 'output { name: "Y" data_type: TYPE_FP32 dims: [2] }\n'
PYTHON = 'backend: "python"\nmax_batch_size: 8\ninstance_group { count: 1 kind: KIND_CPU }\n'
ENSEMBLE = 'platform: "ensemble"\nmax_batch_size: 8\n' + INPUT + OUTPUT
STEP = """ensemble_scheduling {
  step {
    model_name: "part" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
  }
}
"""
BASES = {
    "nothing": "",
    "model": PYTHON + INPUT + OUTPUT,
    "output": PYTHON + OUTPUT,
    "ensemble": ENSEMBLE,
    "wired": ENSEMBLE + STEP,
}
STRICT = ("--disable-auto-complete-config",)


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    breaks: tuple[str, ...]
    says: str
    not_asked: str
    fragile: bool


def _cases() -> Iterator[Case]:
    values = yaml.safe_load((Path(__file__).parent / "rule_cases.yaml").read_text())
    for name, value in values.items():
        yield Case(
            name=name,
            text=BASES[value.get("base", "model")] + value["add"] + "\n",
            breaks=tuple(value.get("breaks", ())),
            says=value.get("says", ""),
            not_asked=value.get("server", ""),
            fragile=value.get("fragile", False),
        )


CASES = tuple(_cases())
SEVERITY = {rule.id: rule.severity for rule in RULES}


def _refused(case: Case) -> bool:
    return any(SEVERITY[rule] is Severity.ERROR for rule in case.breaks)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_config_breaks_the_rules_of_its_case(case: Case) -> None:
    findings = check_config(parse_config(case.text, case.name))
    assert Counter(finding.rule for finding in findings) == Counter(case.breaks), findings


def test_every_rule_has_a_case_that_breaks_it() -> None:
    assert {rule for case in CASES for rule in case.breaks} == {rule.id for rule in RULES}


def test_every_rule_has_a_name_of_its_own_and_a_source() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.check.__doc__ for rule in RULES)


def test_finding_says_where_what_and_what_follows() -> None:
    config = parse_config("max_batch_size: 4 dynamic_batching { preferred_batch_size: [2, 16] }", "c")
    [finding] = check_config(config)
    assert finding.path == ("dynamic_batching", "preferred_batch_size", 1)
    assert str(finding) == (
        "dynamic_batching.preferred_batch_size[1]: 16 is above max_batch_size 4 "
        "(Triton refuses to load the model)"
    )


def test_tensor_is_named_in_the_path() -> None:
    config = parse_config('backend: "python" input { name: "X" data_type: TYPE_FP32 dims: [0] }', "c")
    [finding] = check_config(config)
    assert finding.path == ("input", "X", "dims", 0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('input { name: "X" } instance_group { profile: ["1"] }', id="file-decides-backend"),
        pytest.param('platform: "tensorrt_plan" input { name: "X" is_shape_tensor: true }', id="platform"),
        pytest.param('backend: "tensorrt" input { name: "X" }', id="backend"),
    ],
)
def test_tensorrt_completes_what_is_left_out(text: str) -> None:
    assert check_config(parse_config(text, "c")) == []


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model a case, and ``part`` for the ensembles."""
    folder = tmp_path_factory.mktemp("rules")
    configs = {case.name: case.text for case in CASES} | {"part": BASES["model"]}
    for name, text in configs.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL_PY)
        (folder / name / "config.pbtxt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def strict_server(repository: Path, embedded_server: Callable[..., EmbeddedServer]) -> EmbeddedServer:
    """A server that does not ask the Python backend to complete configs, which costs a process a load."""
    return embedded_server(repository, load=("part",), extra_args=STRICT)


ASKED = [case for case in CASES if not case.not_asked]


@pytest.mark.server
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in ASKED if not c.fragile])
def test_server_agrees(case: Case, strict_server: EmbeddedServer) -> None:
    reason = strict_server.load(case.name)
    assert bool(reason) == _refused(case), reason
    assert case.says in reason


@pytest.mark.server
def test_server_refuses_or_ends(repository: Path) -> None:
    """Some faults are a race in the server: mostly it refuses, at times it dies of them."""
    options = ServeOptions(repository=repository, load=(), extra_args=STRICT)
    waiting = [case for case in ASKED if case.fragile]
    assert len(waiting) > 5
    while waiting:
        with EmbeddedServer(options) as server:
            while waiting and server.alive:
                case = waiting.pop()
                try:
                    reason = server.load(case.name)
                except ServerError as exc:
                    reason = f"{exc}, {case.says}"
                assert case.says in reason


@pytest.mark.server
def test_step_version_left_out_is_version_0(strict_server: EmbeddedServer) -> None:
    assert "required version 0 is not loaded" in strict_server.load("ensemble_step_of_version_0")


@pytest.mark.server
def test_metric_tag_ends_the_server(repository: Path) -> None:
    options = ServeOptions(repository=repository, load=())
    with EmbeddedServer(options) as server, pytest.raises(ServerError, match=r"ended by itself .* while"):
        server.load("metric_tag_hyphen")
