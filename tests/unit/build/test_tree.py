"""Folders that cannot be copied into a model are told with the file that is to blame."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.build.helpers import ProjectOf
from triton_toolkit.build.run import recipe_for
from triton_toolkit.build.tree import check_tree
from triton_toolkit.errors import SpecError

PYTHON = """
m:
  kind: python
  files: FILES
  inputs: {x: {dtype: fp32, shape: [2]}}
  outputs: {y: {dtype: fp32, shape: [2]}}
"""


def check(folder: Path, *written: Path) -> None:
    check_tree(folder, written, lambda message, hint: ValueError(f"{message}; {hint}"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "assets").mkdir(parents=True)
    (folder / "model.py").write_text("")
    return folder


def test_files_folders_and_links_to_them_are_taken(code: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "words.txt").write_text("")
    for name in ("a", "b"):  # the same folder twice is no loop
        (code / "assets" / name).symlink_to(tmp_path / "shared")
    (code / "words.txt").symlink_to("assets/a/words.txt")
    check(code, tmp_path / "model_repository")


def test_what_is_not_copied_may_be_anything(code: Path) -> None:
    (code / ".venv").mkdir()
    (code / ".venv" / "self").symlink_to(code)
    os.mkfifo(code / ".pipe")
    check(code, code / ".tt")


def test_named_pipe_is_told(code: Path) -> None:
    os.mkfifo(code / "assets" / "pipe")
    with pytest.raises(ValueError, match=r"^assets/pipe is a named pipe, which cannot be part of a model"):
        check(code)


def test_socket_is_told(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code)  # a socket's path may not be long
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind("talk")
        with pytest.raises(ValueError, match=r"^talk is a socket"):
            check(code)


@pytest.mark.parametrize(
    ("link", "target", "problem"),
    [
        ("loop", ".", "loop is a link that leads back to itself"),
        ("assets/up", "../..", "assets/up/code is a link that leads back|assets/up.* leads back to itself"),
        ("loop", "loop", "loop is a link that leads back to itself"),
        ("gone", "nothing.txt", r"gone is a link to nothing \(nothing.txt\)"),
        ("zero", "/dev/zero", "zero is a device"),
    ],
)
def test_link_that_leads_nowhere_is_told(code: Path, link: str, target: str, problem: str) -> None:
    (code / link).symlink_to(target)
    with pytest.raises(ValueError, match=f"^({problem})"):
        check(code)


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(("files", "what"), [(".", "holds"), ("model_repository/m", "lies in")])
def test_folder_with_what_a_build_writes_is_refused(
    project_of: ProjectOf, tmp_path: Path, files: str, what: str, exists: bool
) -> None:
    if exists or files != ".":
        (tmp_path / files / "model_repository").mkdir(parents=True)
    (tmp_path / files / "model.py").write_text("")
    context = project_of(PYTHON.replace("FILES", files))
    with pytest.raises(
        SpecError, match=rf"{files}: the folder {what} .*model_repository, which tt itself"
    ) as caught:
        recipe_for(context, "m")
    assert "folder of their own" in caught.value.hint


def test_link_to_what_a_build_writes_is_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "model_repository").mkdir()
    (code / "assets" / "built").symlink_to(tmp_path / "model_repository")
    with pytest.raises(
        ValueError, match=r"^assets/built is a link to .*model_repository, which tt itself writes"
    ):
        check(code, tmp_path / "model_repository")
