"""``model_repository/`` in the checkout is what building gives, and it is served as built."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.build.run import BuildOptions, run_build
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.compare import compare_outputs, default_tolerances
from triton_toolkit.repository.passport import check_files, read_passport, read_samples
from triton_toolkit.server.embedded import EmbeddedServer
from triton_toolkit.spec.load import load_project

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "model_repository/digits"
MEASURED = {"created", "files", "parity", "accuracy", "tools"}
"""What may differ in the last digits, or in its date, between two builds on two machines."""


@pytest.mark.torch
def test_building_digits_gives_the_committed_model(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "tt.yaml", tmp_path / "tt.yaml")
    (report,) = run_build(load_project(tmp_path / "tt.yaml"), BuildOptions(names=("digits",)), Silent())
    assert report.action == "build"
    built = tmp_path / "model_repository/digits"
    assert (built / "1/model.onnx").read_bytes() == (COMMITTED / "1/model.onnx").read_bytes()
    assert (built / "config.pbtxt").read_text() == (COMMITTED / "config.pbtxt").read_text()
    new, old = read_passport(built / "1"), read_passport(COMMITTED / "1")
    assert new is not None
    assert old is not None
    assert {k: v for k, v in new.as_dict().items() if k not in MEASURED} == {
        k: v for k, v in old.as_dict().items() if k not in MEASURED
    }
    ours, theirs = read_samples(built / "1"), read_samples(COMMITTED / "1")
    assert ours is not None
    assert theirs is not None
    np.testing.assert_array_equal(ours.inputs["image"], theirs.inputs["image"])
    np.testing.assert_allclose(ours.outputs["logits"], theirs.outputs["logits"], rtol=1e-3, atol=1e-4)


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
