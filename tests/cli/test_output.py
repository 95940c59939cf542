"""An output that is closed, full, or that nobody reads any more ends ``tt`` quietly and rightly."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from triton_toolkit.cli._output import Console

UNREACHABLE = ("probe", "x", "--url", "grpc://127.0.0.1:1", "--json")
COMMANDS = [("schema",), ("--help",), ("--version",), ("env",), ("env", "--json"), UNREACHABLE]
END = {UNREACHABLE: 3}


def tt(words: tuple[str, ...], stdout: int | IO[bytes], *redirect: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "triton_toolkit", *words]
    if redirect:
        command = ["sh", "-c", f'exec "$@" {" ".join(redirect)}', "sh", *command]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_reader_that_has_gone_is_141_without_a_word(words: tuple[str, ...]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = tt(words, write_end)
    os.close(write_end)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_stdout_that_is_closed_changes_nothing_else(words: tuple[str, ...]) -> None:
    done = tt(words, subprocess.DEVNULL, ">&-")
    assert done.returncode == END.get(words, 0)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_stdout_that_is_full_is_3(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = tt(words, full)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "Error: cannot write to standard output: No space left on device"


@pytest.mark.parametrize("redirect", ["2>&-", "<&- 2>&-", "2>/dev/full"])
def test_stderr_that_cannot_be_written_changes_nothing(redirect: str) -> None:
    done = tt(UNREACHABLE, subprocess.PIPE, redirect)
    assert done.returncode == 3
    assert '"error": "ServerError"' in done.stdout


@pytest.mark.parametrize(("columns", "width"), [("", 120), ("60", 60), ("0", 120), ("wide", 120)])
def test_a_pipe_is_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch, columns: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert Console(json_mode=False).width == width
