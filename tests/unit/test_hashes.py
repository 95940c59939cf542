"""Hashes remembered from run to run: the same file is not read again, another one always is."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from triton_toolkit import _hashes
from triton_toolkit._hashes import file_sha256, remembered_hashes

SIZE = 100_000


class Folder:
    """A large file, long at rest, and a count of the files that are read."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory = tmp_path / "hashes.json"
        self.file = tmp_path / "model.onnx"
        self.reads: list[str] = []
        self.file.write_bytes(b"a" * SIZE)
        read = _hashes._read
        monkeypatch.setattr(_hashes, "_read", lambda path: self.reads.append(path.name) or read(path))
        clock = time.time
        monkeypatch.setattr(_hashes.time, "time", lambda: clock() + 10)

    def hash(self, *, save: bool = True) -> str:
        with remembered_hashes(self.memory, save=save):
            return file_sha256(self.file)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    return Folder(tmp_path, monkeypatch)


def test_a_file_is_read_once(folder: Folder) -> None:
    wanted = hashlib.sha256(b"a" * SIZE).hexdigest()
    assert [folder.hash() for _ in range(3)] == [wanted] * 3
    assert folder.reads == ["model.onnx"]


def test_outside_a_block_it_is_read_each_time(folder: Folder) -> None:
    folder.hash()
    file_sha256(folder.file)
    assert len(folder.reads) == 2


def test_a_change_of_the_same_size_that_is_dated_back_is_seen(folder: Folder) -> None:
    folder.hash()
    before = folder.file.stat()
    folder.file.write_bytes(b"b" * SIZE)
    os.utime(folder.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert folder.hash() == hashlib.sha256(b"b" * SIZE).hexdigest()


def test_another_file_in_its_place_is_seen(folder: Folder) -> None:
    folder.hash()
    before = folder.file.stat()
    other = folder.file.with_name("other")
    other.write_bytes(b"c" * SIZE)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(folder.file)
    assert folder.hash() == hashlib.sha256(b"c" * SIZE).hexdigest()


def test_a_file_that_was_written_just_now_is_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    folder.hash()
    assert not folder.memory.exists()


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _hashes._read

    def slow(path: Path) -> str:
        found = read(path)
        path.write_bytes(b"d" * SIZE)
        return found

    monkeypatch.setattr(_hashes, "_read", slow)
    folder.hash()
    assert not folder.memory.exists()


def test_small_files_are_not_worth_it(folder: Folder) -> None:
    folder.file.write_bytes(b"small")
    folder.hash()
    folder.hash()
    assert len(folder.reads) == 2
    assert not folder.memory.exists()


def test_nothing_new_writes_nothing(folder: Folder) -> None:
    folder.hash(save=False)
    assert not folder.memory.exists()
    folder.hash()
    before = folder.memory.stat().st_mtime_ns
    folder.hash()
    assert folder.memory.stat().st_mtime_ns == before


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_memory_is_made_anew(folder: Folder, text: str) -> None:
    folder.memory.write_text(text)
    folder.hash()
    folder.hash()
    assert len(folder.reads) == 1
