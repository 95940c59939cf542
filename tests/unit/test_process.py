"""Child processes: output, ends, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from triton_toolkit._process import ChildResult, kill_group, run_child


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def gone(pid: int, *, within_s: float = 5.0) -> bool:
    """Say whether a process is gone (or a zombie that init has yet to reap)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_both_streams_are_kept_in_order():
    result = run_child(
        python("import sys; print('a', flush=True); print('b', file=sys.stderr, flush=True); print('c')")
    )
    assert (result.returncode, result.output) == (0, "a\nb\nc\n")


def test_bytes_that_are_no_text_are_replaced():
    assert run_child(python("import os; os.write(1, b'\\xff!')")).output == "\ufffd!"


def test_environment_and_folder_are_the_given_ones(tmp_path):
    code = "import os; print(os.environ['A'], os.getcwd())"
    assert run_child(python(code), env={"A": "1"}, cwd=tmp_path).output == f"1 {tmp_path}\n"


def test_the_child_reads_nothing_from_the_terminal():
    assert run_child(python("import sys; print(repr(sys.stdin.read()))")).output == "''\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
        ("import os; os.abort()", "killed by SIGABRT"),
    ],
)
def test_how_it_ended_is_said_in_words(code, words):
    assert run_child(python(code)).how_it_ended == words


def test_a_signal_without_a_name_is_said_by_number():
    assert ChildResult(argv=(), returncode=-200, output="").how_it_ended == "killed by signal 200"


def test_an_interrupt_kills_the_child_and_its_children(tmp_path):
    """The whole group ends before the exception goes on."""
    pids = tmp_path / "pids"
    child = (
        "import os, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids) + '.new'!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        f"os.rename({str(pids) + '.new'!r}, {str(pids)!r}); time.sleep(60)\n"
    )
    parent = (
        "import sys; from triton_toolkit._process import run_child\n"
        f"try: run_child([sys.executable, '-c', {child!r}])\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    with subprocess.Popen(python(parent), stdout=subprocess.PIPE, text=True) as process:
        while not pids.exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=10)
    assert output == "interrupted\n"
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def leaving_behind(pid_file: Path, first: str, then: str) -> list[str]:
    """Return a child that ends as soon as another process of its own has done ``first``."""
    new = f"{pid_file}.new"
    other = (
        f"import os, time\n{first}\n"
        f"with open({new!r}, 'w') as file: file.write(str(os.getpid()))\n"
        f"os.rename({new!r}, {str(pid_file)!r})\n{then}\n"
    )
    return python(
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {other!r}])\n"
        f"while not os.path.exists({str(pid_file)!r}): time.sleep(0.01)\n"
        "print('done', end='')\n"
    )


@pytest.mark.parametrize("first", ["", "os.setpgid(0, 0)"], ids=["same group", "group of its own"])
def test_what_a_child_leaves_behind_is_killed_and_not_waited_for(tmp_path, first):
    """It holds the output open, and would leave a file at the end of a long life."""
    late, pid_file = tmp_path / "late", tmp_path / "pid"
    result = run_child(leaving_behind(pid_file, first, f"time.sleep(20); open({str(late)!r}, 'w')"))
    assert (result.returncode, result.output) == (0, "done")
    assert gone(int(pid_file.read_text()))
    assert not late.exists()


def test_what_keeps_writing_from_another_session_is_not_waited_for(tmp_path):
    late, pid_file = tmp_path / "late", tmp_path / "pid"
    then = (
        "for _ in range(2000):\n"
        "    try: os.write(1, b'x' * 999 + bytes([10]))\n"
        "    except OSError: pass\n"
        "    time.sleep(0.01)\n"
        f"open({str(late)!r}, 'w')\n"
    )
    assert "done" in run_child(leaving_behind(pid_file, "os.setsid()", then)).output
    assert not late.exists()
    os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_a_child_that_closes_its_output_is_waited_for():
    code = "import os, time; print('a', flush=True); os.close(1); os.close(2); time.sleep(0.3); os._exit(5)"
    result = run_child(python(code))
    assert (result.returncode, result.output) == (5, "a\n")


def test_all_of_a_large_output_is_read_and_lines_come_whole():
    lines = []
    code = "print('é' * 99_999 + '\\r\\n' + 'b' * 200_000 + '\\r' + 'end\\x1c.', end='')"
    result = run_child(python(code), on_line=lines.append)
    assert lines == ["é" * 99_999, "b" * 200_000, "end\x1c."]
    assert result.output == "é" * 99_999 + "\n" + "b" * 200_000 + "\nend\x1c."


def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path):
    pid_file = tmp_path / "pid"
    child = (
        f"import os, time; open({str(pid_file) + '.new'!r}, 'w').write(str(os.getpid()))\n"
        f"os.rename({str(pid_file) + '.new'!r}, {str(pid_file)!r}); time.sleep(60)\n"
    )
    parent = (
        "import sys; from triton_toolkit._process import run_child\n"
        f"run_child([sys.executable, '-c', {child!r}])\n"
    )
    with subprocess.Popen(python(parent)) as process:
        while not pid_file.exists():
            time.sleep(0.02)
        process.kill()
    assert gone(int(pid_file.read_text()))


def test_killing_a_group_that_is_gone_is_fine():
    with subprocess.Popen(python("pass"), start_new_session=True) as process:
        pass
    kill_group(process.pid)
    assert process.returncode == 0
