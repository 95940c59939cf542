"""Atomic writes, hashes, names that cannot leave their folder, and the host's refusals."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit import _files
from triton_toolkit.errors import EnvironmentProblem, SpecError


@pytest.mark.parametrize("name", ["a", "digits_int8", "resnet-50.v2", "0", "A" * 200])
def test_usable_names_pass(name):
    assert _files.check_name(name, "models") == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "../x",
        "a..b",
        ".hidden",
        "-x",
        "_x",
        "a b",
        "é",
        "a\n",
        "a\0",
        "a$(x)",
        "a;b",
    ],
)
def test_names_that_could_leave_the_folder_are_refused(name):
    with pytest.raises(SpecError, match="cannot be used as a name") as caught:
        _files.check_name(name, "models.x")
    assert caught.value.message.startswith("models.x: ")


@given(st.text(max_size=12))
def test_an_accepted_name_is_one_safe_path_component(name):
    try:
        _files.check_name(name, "x")
    except SpecError:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + "._-")
    assert (Path("/repo") / name).resolve().parent == Path("/repo")


@given(st.binary(max_size=5000))
def test_hashes_are_sha256(data):
    assert _files.sha256_bytes(data) == hashlib.sha256(data).hexdigest()


def test_a_file_larger_than_a_chunk_is_hashed_whole(tmp_path):
    data = os.urandom(3 * (1 << 20) + 17)
    (tmp_path / "f").write_bytes(data)
    assert _files.sha256_file(tmp_path / "f") == hashlib.sha256(data).hexdigest()


def test_hash_tree_names_every_file_below(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"1")
    (tmp_path / "a").write_bytes(b"2")
    assert list(_files.hash_tree(tmp_path)) == ["a", "b/x"]


def test_canonical_json_depends_only_on_the_value():
    assert _files.canonical_json({"b": 1, "a": ["é"]}) == _files.canonical_json({"a": ["é"], "b": 1})
    assert _files.canonical_json({"b": 1, "a": None}) == '{"a":null,"b":1}'


def test_write_text_replaces_a_file_whole(tmp_path):
    path = tmp_path / "deep" / "f.txt"
    _files.write_text(path, "one\n")
    _files.write_text(path, "two\n")
    assert path.read_bytes() == b"two\n"
    assert [item.name for item in path.parent.iterdir()] == ["f.txt"]


def test_write_text_gives_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        _files.write_text(tmp_path / "f", "")
    finally:
        os.umask(before)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        _files.write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["f.txt"]


def test_write_json_refuses_nan_and_leaves_the_old_file(tmp_path):
    path = tmp_path / "f.json"
    _files.write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        _files.write_json(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}


def stage_and_raise(repository: Path, problem: type[BaseException]) -> None:
    with _files.staged_folder(repository / "m" / "1", staging=repository) as folder:
        (folder / "x").write_text("x")
        raise problem


def test_a_staged_folder_appears_when_the_block_ends(tmp_path):
    with _files.staged_folder(tmp_path / "m" / "1", staging=tmp_path) as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "m").exists()
    assert (tmp_path / "m" / "1" / "x").read_text() == "x"
    assert [item.name for item in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_a_staged_folder_vanishes_when_the_block_raises(tmp_path, problem):
    with pytest.raises(problem):
        stage_and_raise(tmp_path, problem)
    assert list(tmp_path.iterdir()) == []


def test_a_staged_folder_never_overwrites(tmp_path):
    (tmp_path / "1").mkdir()
    with pytest.raises(FileExistsError), _files.staged_folder(tmp_path / "1", staging=tmp_path):
        pass
    assert [item.name for item in tmp_path.iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EPERM, "permissions"),
        (errno.ENOTDIR, "is a file"),
        (errno.EEXIST, "in the way"),
    ],
)
def test_the_hosts_refusals_become_one_clear_error(code, hint):
    with pytest.raises(EnvironmentProblem) as caught, _files.host_errors("write /models/digits"):
        raise OSError(code, os.strerror(code), "/models/digits/1")
    assert caught.value.message == f"cannot write /models/digits: {os.strerror(code)} (/models/digits/1)"
    assert hint in caught.value.hint


def test_another_oserror_is_a_bug_and_passes():
    with pytest.raises(FileNotFoundError), _files.host_errors("write"):
        raise FileNotFoundError(errno.ENOENT, "gone")


def test_a_full_disk_leaves_nothing(tmp_path):
    """A file size limit stands in for a full disk: the kernel refuses the write in the same place."""
    code = (
        "import resource, signal, sys; from pathlib import Path; from triton_toolkit import _files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: _files.write_text(Path(sys.argv[1]), 'x' * 1000)\n"
        "except OSError as exc: print(exc.errno)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "f")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(errno.EFBIG)
    assert list(tmp_path.iterdir()) == []


def test_a_locked_folder_is_refused_to_another_process(tmp_path):
    code = (
        "import sys; from pathlib import Path; from triton_toolkit import _files, errors\n"
        "try:\n"
        "    with _files.locked_folder(Path(sys.argv[1])): print('locked')\n"
        "except errors.EnvironmentProblem as exc: print(exc.message)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    with _files.locked_folder(tmp_path):
        refused = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    allowed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert refused.strip() == f"{tmp_path} is being written by another process"
    assert allowed.strip() == "locked"
    assert list(tmp_path.iterdir()) == []
