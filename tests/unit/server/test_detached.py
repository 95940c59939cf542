"""State files of detached servers: what they say is checked before anything is ended or removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from triton_toolkit.errors import EnvironmentProblem
from triton_toolkit.server.detached import (
    StateFiles,
    find_detached,
    list_detached,
    start_detached,
    state_files,
    stop_detached,
)
from triton_toolkit.server.options import ServeOptions


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "served"


def write(repository: Path, **changes: Any) -> StateFiles:
    """Write the three files as a server leaves them that was killed."""
    files = state_files(repository)
    files.state.parent.mkdir(parents=True, exist_ok=True)
    value = {
        "repository": str(repository),
        "grpc_url": "grpc://127.0.0.1:1",
        "http_url": "http://127.0.0.1:2",
        "metrics_url": "http://127.0.0.1:3/metrics",
        "pid": os.getpid(),
        "supervisor_pid": os.getpid(),
        "exit_timeout_s": 0,
        "log": str(files.log),
        "folder": "/nowhere",
    }
    files.state.write_text(json.dumps(value | changes))
    files.lock.touch()
    files.log.touch()
    return files


@contextlib.contextmanager
def held(files: StateFiles) -> Iterator[None]:
    """Hold the lock, as a server's guardian does."""
    with files.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def present(files: StateFiles) -> list[str]:
    return [path.suffix for path in (files.state, files.lock, files.log) if path.exists()]


def server_folder(repository: Path, lock: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tt-serve-"))
    (folder / "launch.json").write_text(json.dumps({"lock_file": str(lock)}))
    return folder


def test_what_a_dead_server_left_is_removed_but_for_its_log(repository: Path) -> None:
    folder = server_folder(repository, state_files(repository).lock)
    files = write(repository, folder=str(folder))
    assert find_detached(repository) is None
    assert not folder.exists()
    assert present(files) == [".log"]


@pytest.mark.parametrize("name", ["precious", "tt-serve-precious-too", "tt-serve-abcdefgh"])
def test_a_folder_that_is_not_this_servers_is_not_removed(repository: Path, name: str) -> None:
    folder = repository.parent / name
    folder.mkdir()
    files = write(repository, folder=str(folder))
    assert find_detached(repository) is None
    assert folder.is_dir()
    assert present(files) == [".log"]


def test_the_folder_of_another_server_is_not_removed(repository: Path) -> None:
    folder = server_folder(repository, state_files(repository.parent / "other").lock)
    write(repository, folder=str(folder))
    assert find_detached(repository) is None
    assert folder.is_dir()


def test_a_link_to_a_servers_folder_is_not_followed(repository: Path) -> None:
    folder = server_folder(repository, state_files(repository).lock)
    link = folder.with_name("tt-serve-abcdefgh")
    link.symlink_to(folder)
    write(repository, folder=str(link))
    assert find_detached(repository) is None
    assert folder.is_dir()


def test_a_process_that_does_not_hold_the_lock_is_not_ended(repository: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        files = write(repository, supervisor_pid=bystander.pid)
        with (
            held(files),
            pytest.raises(EnvironmentProblem, match=f"process {bystander.pid} is not") as caught,
        ):
            stop_detached(repository)
        assert str(files.lock) in caught.value.hint
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


@pytest.mark.parametrize(
    "changes",
    [{"supervisor_pid": "1"}, {"supervisor_pid": True}, {"exit_timeout_s": 1e300}, {"folder": None}],
)
def test_a_state_file_with_wrong_values_is_not_trusted(repository: Path, changes: dict[str, Any]) -> None:
    files = write(repository, **changes)
    with held(files), pytest.raises(EnvironmentProblem, match="cannot be trusted"):
        stop_detached(repository)
    assert stop_detached(repository) is None
    assert present(files) == [".log"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_state_file_that_is_none_is_no_obstacle(repository: Path, text: str) -> None:
    files = write(repository)
    files.state.write_text(text)
    assert find_detached(repository) is None
    assert present(files) == [".log"]


def test_a_key_of_a_later_version_does_not_matter(repository: Path) -> None:
    files = write(repository, later="key")
    with held(files):
        found = find_detached(repository)
    assert found is not None
    assert found.repository == str(repository)


def test_a_start_clears_up_after_all_dead_servers_and_after_no_other(repository: Path) -> None:
    dead, alive = write(repository.parent / "dead"), write(repository.parent / "alive")
    with held(alive):
        with pytest.raises(EnvironmentProblem, match="no such folder"):
            start_detached(ServeOptions(repository=repository))
        assert [Path(server.repository).name for server in list_detached()] == ["alive"]
    assert (present(dead), present(alive)) == ([], [".json", ".lock", ".log"])


@pytest.mark.parametrize("letter", ["x", "é", "\udcff"], ids=["ascii", "utf-8", "bytes"])
def test_a_long_name_of_a_repository_is_cut(repository: Path, letter: str) -> None:
    name = os.fsdecode(os.fsencode(letter * 254)[:254])
    files = write(repository.parent / name)
    assert len(os.fsencode(files.state.name)) < 130
    assert find_detached(repository.parent / name) is None
    assert state_files(repository.parent / f"{name}y") != files
