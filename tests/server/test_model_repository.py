"""``model_repository/`` in the checkout is what building gives, and it is served as built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from examples.digits import accuracy
from triton_toolkit._progress import Silent
from triton_toolkit.build.run import BuildOptions, run_build
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.compare import Tolerances, compare_outputs, default_tolerances
from triton_toolkit.repository.passport import check_files, read_passport, read_samples
from triton_toolkit.server.embedded import EmbeddedServer
from triton_toolkit.spec.load import load_project

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "model_repository/digits"
MEASURED = {"created", "files", "parity", "accuracy", "tools"}
"""What may differ in the last digits, or in its date, between two builds on two machines."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with digits and its variants, built as a user would."""
    root = tmp_path_factory.mktemp("digits")
    shutil.copytree(ROOT / "examples", root / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "tt.yaml", root / "tt.yaml")
    reports = run_build(load_project(root / "tt.yaml"), BuildOptions(names=("digits",)), Silent())
    assert {report.name: (report.action, report.error) for report in reports} == dict.fromkeys(
        ("digits", "digits_fp16", "digits_int8"), ("build", None)
    )
    return root / "model_repository"


@pytest.mark.torch
def test_building_digits_gives_the_committed_model(built: Path) -> None:
    model = built / "digits"
    assert (model / "1/model.onnx").read_bytes() == (COMMITTED / "1/model.onnx").read_bytes()
    assert (model / "config.pbtxt").read_text() == (COMMITTED / "config.pbtxt").read_text()
    new, old = read_passport(model / "1"), read_passport(COMMITTED / "1")
    assert new is not None
    assert old is not None
    assert {k: v for k, v in new.as_dict().items() if k not in MEASURED} == {
        k: v for k, v in old.as_dict().items() if k not in MEASURED
    }
    ours, theirs = read_samples(model / "1"), read_samples(COMMITTED / "1")
    assert ours is not None
    assert theirs is not None
    np.testing.assert_array_equal(ours.inputs["image"], theirs.inputs["image"])
    np.testing.assert_allclose(ours.outputs["logits"], theirs.outputs["logits"], rtol=1e-3, atol=1e-4)


@pytest.mark.torch
@pytest.mark.server
@pytest.mark.parametrize("name", ["digits_fp16", "digits_int8"])
def test_a_variant_is_right_where_it_is_served(
    built: Path, embedded_server: Callable[..., EmbeddedServer], name: str
) -> None:
    """Its golden sample holds the original's outputs; its accuracy is measured through the server."""
    passport, samples = read_passport(built / name / "1"), read_samples(built / name / "1")
    assert passport is not None
    assert samples is not None
    server = embedded_server(built, load=("digits_fp16", "digits_int8"))
    with TritonClient(server.grpc_url) as client:
        answer = client.infer(name, samples.inputs)
        served = accuracy(lambda arrays: client.infer(name, arrays).outputs)
    tolerances = Tolerances.from_dict(passport.tolerance)
    (difference,) = compare_outputs(answer.outputs, samples.outputs, tolerances)
    assert difference.ok, difference.problem
    assert passport.accuracy["original"] - served <= 0.01
    assert passport.accuracy["exported"] == pytest.approx(served, abs=0.005)


@pytest.mark.torch
def test_the_variants_are_smaller_and_hold_their_precision(built: Path) -> None:
    size = {name: (built / name / "1/model.onnx").stat().st_size for name in ("digits", "digits_int8")}
    assert size["digits_int8"] < 0.5 * size["digits"]
    passport = read_passport(built / "digits_int8/1")
    assert passport is not None
    assert passport.precision["placement"]["int8"] == 3
    assert passport.speed["ratio"] > 0


def test_the_committed_digits_are_as_their_passport_says() -> None:
    passport = read_passport(COMMITTED / "1")
    assert passport is not None
    assert check_files(COMMITTED / "1", passport) == []
    assert passport.accuracy["exported"] >= 0.97


@pytest.mark.server
def test_the_committed_digits_are_served_as_built(embedded_server: Callable[..., EmbeddedServer]) -> None:
    server = embedded_server(ROOT / "model_repository", load=("digits",))
    samples = read_samples(COMMITTED / "1")
    assert samples is not None
    with TritonClient(server.grpc_url) as client:
        answer = client.infer("digits", samples.inputs)
    (difference,) = compare_outputs(answer.outputs, samples.outputs, default_tolerances("fp32"))
    assert difference.ok, difference.problem
