"""Where the golden sample of a served version is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import EnvironmentProblem, UsageError
from triton_toolkit.probe.golden import from_path, from_project, target_headers
from triton_toolkit.repository.passport import Passport, Samples, write_passport, write_samples
from triton_toolkit.spec.load import Project, load_project

URL = "grpc://gpu:8001"
ELSEWHERE = "grpc://elsewhere:8001"


def write_version(folder: Path, value: float) -> Path:
    folder.mkdir(parents=True)
    write_samples(folder, Samples({"x": np.array([value])}, {"y": np.array([value])}))
    passport = Passport(
        model="m",
        kind="prebuilt",
        variant="",
        backend="",
        created="",
        tools={},
        key={},
        tolerance={"absolute": 0.5},
    )
    write_passport(folder, passport)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Callable[[], Project]:
    (tmp_path / "tt.yaml").write_text(
        "spec: 1\nrepository: built\nmodels:\n  m: {kind: prebuilt, path: old}\n"
        "targets:\n  prod:\n    store: store\n    servers: ['grpc://gpu:8001']\n"
        "    auth: {authorization: {env: PROBE_KEY}}\n"
    )
    return lambda: load_project(tmp_path / "tt.yaml")


@pytest.mark.parametrize("name", ["", "passport.json"])
def test_version_folder_and_its_passport_are_the_same(tmp_path: Path, name: str) -> None:
    folder = write_version(tmp_path / "1", 2.0)
    golden = from_path(folder / name)
    assert golden.samples is not None
    assert golden.passport is not None
    assert golden.tolerances.as_dict() == {"absolute": 0.5, "relative": 1e-3}


def test_samples_file_alone_has_the_default_tolerance(tmp_path: Path) -> None:
    folder = write_version(tmp_path / "1", 2.0)
    (folder / "passport.json").unlink()
    golden = from_path(folder / "samples.npz")
    assert golden.samples is not None
    assert golden.tolerances.as_dict() == {"absolute": 1e-4, "relative": 1e-3}


@pytest.mark.parametrize(("name", "words"), [("nowhere", "no such file"), ("", r"no samples\.npz")])
def test_passport_without_a_sample_is_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        from_path(tmp_path / name)


def test_target_at_the_url_has_it_in_its_store(project: Callable[[], Project], tmp_path: Path) -> None:
    write_version(tmp_path / "built" / "m" / "1", 1.0)
    assert from_project(project(), "m", "1", URL).samples is None
    store = write_version(tmp_path / "store" / "m" / "1", 2.0)
    assert from_project(project(), "m", "1", URL).origin == str(store)


def test_server_that_is_no_target_s_may_serve_the_repository(
    project: Callable[[], Project], tmp_path: Path
) -> None:
    built = write_version(tmp_path / "built" / "m" / "1", 1.0)
    assert from_project(project(), "m", "1", ELSEWHERE).origin == str(built)
    write_version(tmp_path / "store" / "m" / "1", 1.0)
    assert from_project(project(), "m", "1", ELSEWHERE).origin == str(built)


def test_different_samples_under_one_number_are_not_guessed_between(
    project: Callable[[], Project], tmp_path: Path
) -> None:
    """A target may number its versions differently from the repository."""
    write_version(tmp_path / "built" / "m" / "1", 1.0)
    write_version(tmp_path / "store" / "m" / "1", 2.0)
    golden = from_project(project(), "m", "1", ELSEWHERE)
    assert golden.samples is None
    assert "hold different samples of 'm' under version 1, and no target" in golden.missing
    assert "--passport says which" in golden.missing


class TestDimensions:
    """Names and sizes of dimensions serve where no sample does."""

    def passport(self, seq: int) -> Passport:
        x = TensorSpec(name="x", dtype=DataType.parse("fp32"), shape=("batch", "seq"))
        return Passport(
            model="m", kind="prebuilt", variant="", backend="", created="", tools={}, key={},
            inputs=(x,), dims={"seq": [1, seq, 512]},
        )  # fmt: skip

    def test_served_version_s_passport_comes_first(
        self, project: Callable[[], Project], tmp_path: Path
    ) -> None:
        for place, value in (("built", 1.0), ("store", 2.0)):
            write_passport(write_version(tmp_path / place / "m" / "1", value), self.passport(64))
        write_passport(write_version(tmp_path / "built" / "m" / "2", 1.0), self.passport(32))
        golden = from_project(project(), "m", "1", ELSEWHERE)
        assert golden.samples is None
        assert golden.inputs[0].shape == ("batch", "seq")
        assert golden.dims == {"seq": [1, 64, 512]}

    def test_spec_knows_a_version_that_is_not_here(self, tmp_path: Path) -> None:
        (tmp_path / "tt.yaml").write_text(
            "spec: 1\nmodels:\n  m:\n    source: a:b\n    batch_dim: batch\n"
            "    inputs: {x: {shape: [batch, H]}}\n    dims: {batch: [1, 4, 8], H: {min: 1, max: 64}}\n"
        )
        golden = from_project(load_project(tmp_path / "tt.yaml"), "m", "9", ELSEWHERE)
        assert golden.inputs[0].shape == ("batch", "H")
        assert golden.dims == {"batch": (1, 4, 8), "H": (1, 64, 64)}

    def test_newest_passport_serves_where_the_spec_is_silent(
        self, project: Callable[[], Project], tmp_path: Path
    ) -> None:
        write_passport(write_version(tmp_path / "built" / "m" / "2", 1.0), self.passport(32))
        assert from_project(project(), "m", "9", ELSEWHERE).dims == {"seq": [1, 32, 512]}


def test_only_the_served_version_counts(project: Callable[[], Project], tmp_path: Path) -> None:
    write_version(tmp_path / "built" / "m" / "1", 1.0)
    golden = from_project(project(), "m", "2", ELSEWHERE)
    assert golden.samples is None
    assert str(tmp_path / "built" / "m" / "2") in golden.missing


def test_model_that_the_spec_has_not_has_none(project: Callable[[], Project]) -> None:
    assert "has no model 'other'" in from_project(project(), "other", "1", URL).missing


def test_target_s_header_comes_from_the_environment(
    project: Callable[[], Project], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_KEY", "Bearer 7")
    assert target_headers(project(), URL) == {"authorization": "Bearer 7"}
    assert target_headers(project(), ELSEWHERE) == {}


def test_target_s_header_without_its_variable_is_refused(project: Callable[[], Project]) -> None:
    with pytest.raises(EnvironmentProblem, match="PROBE_KEY, which is not set"):
        target_headers(project(), URL)
