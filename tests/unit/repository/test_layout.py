"""Which folders are versions and models."""

from __future__ import annotations

import pytest

from triton_toolkit.repository.layout import latest_version, model_folders, versions


@pytest.mark.parametrize("name", ["1", "2", "10", "999999999999999999"])
def test_a_number_is_a_version(tmp_path, name):
    (tmp_path / name).mkdir()
    assert versions(tmp_path) == [int(name)]


@pytest.mark.parametrize("name", ["0", "01", "02", "v3", "1abc", "warmup", "configs", "-1", "1.0", "¹"])
def test_other_folders_are_no_versions(tmp_path, name):
    (tmp_path / name).mkdir()
    assert versions(tmp_path) == []


def test_a_file_is_no_version(tmp_path):
    (tmp_path / "1").write_text("")
    assert versions(tmp_path) == []


def test_versions_are_numbers_not_texts(tmp_path):
    for name in ("10", "9", "1"):
        (tmp_path / name).mkdir()
    assert versions(tmp_path) == [1, 9, 10]
    assert latest_version(tmp_path) == 10


def test_what_is_not_there_has_no_versions(tmp_path):
    assert versions(tmp_path / "nowhere") == []
    assert latest_version(tmp_path / "nowhere") is None
    assert model_folders(tmp_path / "nowhere") == []


def test_models_are_folders_with_a_config_or_a_version(tmp_path):
    for folder in ("b/1", "a", "empty", ".tt-staging-x/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a" / "config.pbtxt").write_text("")
    (tmp_path / "file").write_text("")
    assert [path.name for path in model_folders(tmp_path)] == ["a", "b"]
