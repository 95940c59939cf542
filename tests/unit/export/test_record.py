"""Logs and crash folders of steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from triton_toolkit.export.record import KEPT_CRASHES, Command, StepRecord, shown_path


def crash(root: Path, model: str = "net", **more: object) -> Path:
    job = root / "job.json"
    job.write_text('{"exported": "%s"}' % (root / "exported"))
    command = Command(argv=("python", str(job), str(root / "out")), job=job, out=root / "out", **more)  # type: ignore[arg-type]
    with StepRecord(root, model, "optimise") as record:
        record.write("printed\n")
        hint = record.keep_crash(command, "killed by SIGKILL")
    return Path(hint.removeprefix("run it again with: ")).parent


def test_only_the_last_run_has_a_log(tmp_path: Path) -> None:
    for text in ("first\n", "second\n"):
        with StepRecord(tmp_path, "net", "export") as record:
            record.write(text)
    text = (tmp_path / ".tt/logs/net/export.log").read_text()
    assert "second\n" in text
    assert "first" not in text


def test_an_interrupted_step_says_so_in_its_log(tmp_path: Path) -> None:
    def interrupted() -> None:
        with StepRecord(tmp_path, "net", "export") as record:
            record.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "half# interrupted after" in (tmp_path / ".tt/logs/net/export.log").read_text()


def test_what_the_step_read_is_kept_with_it(tmp_path: Path) -> None:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported/model.onnx").write_text("onnx")
    folder = crash(tmp_path, inputs=(tmp_path / "exported",))
    assert (folder / "exported/model.onnx").read_text() == "onnx"
    assert (folder / "job.json").read_text() == f'{{"exported": "{folder / "exported"}"}}'


def test_words_of_the_command_are_quoted(tmp_path: Path) -> None:
    root = tmp_path / "a folder; rm -r $HOME"
    root.mkdir()
    text = (crash(root, variables={"PYTHONPATH": "a b"}) / "reproduce.sh").read_text()
    assert f"cd -- '{root}' || exit" in text
    assert """exec env PYTHONPATH='a b' python "$here"/job.json "$out"\n""" in text


def test_old_crashes_are_forgotten(tmp_path: Path) -> None:
    folders = []
    for number in range(KEPT_CRASHES + 2):
        folders.append(crash(tmp_path, f"net{number}"))
        os.utime(folders[-1], (number, number))
    assert [folder.is_dir() for folder in folders] == [False] * 2 + [True] * KEPT_CRASHES


def test_a_path_is_shown_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(tmp_path / "a/b") == "a/b"
    assert shown_path(Path("/etc/hosts")) == "/etc/hosts"
