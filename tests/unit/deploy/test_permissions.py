"""What the file system forbids is known before anything is written."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from triton_toolkit.deploy.local_store import LocalStore
from triton_toolkit.deploy.permissions import why_not_replaceable
from triton_toolkit.errors import EXIT_ENVIRONMENT, EnvironmentProblem

_ANN, _BOB = 54321, 54322

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store with a model; other users can get to it, as they cannot to ``tmp_path``."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        (root / "m" / "1").mkdir(parents=True)
        (root / "m" / "config.pbtxt").write_text('name: "m"\n')
        yield root


@pytest.fixture
def bob() -> Iterator[None]:
    """Be a user without privileges."""
    os.seteuid(_BOB)
    yield
    os.seteuid(0)


def give(path: Path, user: int, mode: int) -> None:
    os.chown(path, user, -1)
    path.chmod(mode)


def test_what_is_ones_own_can_be_replaced(store: Path) -> None:
    assert why_not_replaceable(store / "m", ["config.pbtxt", "new.txt", "labels/new.txt"]) == ""


@as_root
def test_a_folder_of_another_user_cannot(store: Path, request: pytest.FixtureRequest) -> None:
    give(store / "m", _ANN, 0o755)
    request.getfixturevalue("bob")
    reason = why_not_replaceable(store / "m", ["config.pbtxt"])
    assert reason == f"{store / 'm'} belongs to user {_ANN} and cannot be written by user {_BOB}"
    with pytest.raises(EnvironmentProblem, match="model 'm' cannot be replaced: ") as caught:
        LocalStore(store).check_replaceable("m", ["config.pbtxt"])
    assert caught.value.exit_code == EXIT_ENVIRONMENT
    LocalStore(store).check_replaceable("another", ["config.pbtxt"])  # there is none yet


@as_root
def test_a_folder_inside_that_cannot_be_written_is_found(store: Path, request: pytest.FixtureRequest) -> None:
    give(store / "m", _BOB, 0o755)
    (store / "m" / "labels").mkdir()
    request.getfixturevalue("bob")
    assert why_not_replaceable(store / "m", ["config.pbtxt"]) == ""
    reason = why_not_replaceable(store / "m", ["config.pbtxt", "labels/deep/new.txt"])
    assert reason.startswith(f"{store / 'm' / 'labels'} belongs to user 0")


@as_root
def test_a_file_of_another_user_in_a_sticky_folder_cannot(
    store: Path, request: pytest.FixtureRequest
) -> None:
    give(store / "m", _ANN, 0o1777)
    request.getfixturevalue("bob")
    reason = why_not_replaceable(store / "m", ["config.pbtxt"])
    assert reason.startswith(f"{store / 'm' / 'config.pbtxt'} belongs to user 0, and its folder is sticky")
    assert why_not_replaceable(store / "m", ["new.txt"]) == ""


@as_root
@pytest.mark.parametrize("name", ["config.pbtxt", "."])
def test_what_is_marked_immutable_cannot(store: Path, name: str) -> None:
    path = store / "m" / name
    if subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False).returncode:
        pytest.skip("this file system has no such mark")
    try:
        assert why_not_replaceable(store / "m", ["config.pbtxt"]) != ""
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)
    assert why_not_replaceable(store / "m", ["config.pbtxt"]) == ""


@as_root
def test_the_config_of_another_user_is_dated_by_a_copy(store: Path, request: pytest.FixtureRequest) -> None:
    """A team deploys to one store: only a file's owner can set its times."""
    config = store / "m" / "config.pbtxt"
    give(store / "m", _ANN, 0o777)
    give(config, _ANN, 0o644)
    os.utime(config, ns=(0, 0))
    request.getfixturevalue("bob")
    LocalStore(store).touch("m")
    newest = max(path.stat().st_mtime_ns for path in (store / "m").rglob("*") if path != config)
    assert config.stat().st_mtime_ns > newest
    assert config.read_text() == 'name: "m"\n'
    assert [path.name for path in (store / "m").iterdir() if path.name.startswith(".")] == []
