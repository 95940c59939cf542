import contextlib
import importlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from triton_toolkit.export.trace_files import FileTrace, ProjectFiles, imported_readers, missing_name


@pytest.mark.parametrize(
    "name",
    [
        ".git/config",
        "pkg/__pycache__/a.pyc",
        "env/lib/thing.py",
        "lib/site-packages/x.py",
        "served/m/1/model.onnx",
        "../outside.txt",
    ],
)
def test_files_of_tools_are_not_the_projects(project, name):
    project.write("", name)
    project.write("", "env/pyvenv.cfg")
    assert ProjectFiles(project.root, ["served"]).relative(project.root / name) is None


def test_own_files_are_given_relative_to_the_root(project):
    path = project.write("", "deep/er/weights.bin")
    assert project.files.relative(path) == "deep/er/weights.bin"


def test_a_link_into_the_project_is_its_target(project, tmp_path_factory):
    path = project.write("", "weights.bin")
    link = tmp_path_factory.mktemp("elsewhere") / "link.bin"
    link.symlink_to(path)
    assert project.files.relative(link) == "weights.bin"


def test_the_toolkit_itself_is_not_the_projects():
    import triton_toolkit

    root = os.path.dirname(os.path.dirname(triton_toolkit.__file__))
    assert (
        ProjectFiles(importlib.import_module("pathlib").Path(root)).relative(triton_toolkit.__file__) is None
    )


def test_reads_are_recorded_and_writes_are_not(project, monkeypatch):
    for name in ("a.txt", "b.bin", "c.txt", "before.txt"):
        project.write("x", name)
    monkeypatch.chdir(project.root)
    trace = FileTrace(project.files)
    (project.root / "before.txt").read_text()
    with trace.active():
        (project.root / "a.txt").read_text()
        os.close(os.open(b"b.bin", os.O_RDONLY))
        (project.root / "c.txt").write_text("y")
        (project.root / "new.txt").write_text("y")
    (project.root / "c.txt").read_text()
    assert trace.dependencies() == ["a.txt", "b.bin"]


def test_a_file_that_was_not_there_is_told_apart(project, monkeypatch):
    monkeypatch.chdir(project.root)
    trace = FileTrace(project.files)
    with trace.active():
        for name in ("finetuned.txt", "/nowhere/outside.txt", "made.txt"):
            with contextlib.suppress(FileNotFoundError):
                Path(name).read_text()
        (project.root / "made.txt").write_text("by the source")
    assert trace.missing() == [missing_name("finetuned.txt")]
    assert trace.dependencies() == []


def test_a_module_that_a_source_looks_for_in_vain(project):
    project.write(
        """
        import importlib
        import pkg
        try:
            from override_of_ours import VALUE
        except ImportError:
            VALUE = 1
        try:
            from pkg import inner
        except ImportError:
            inner = None
        try:
            importlib.import_module("by_name_of_ours")
        except ImportError:
            pass
        """,
        "asking.py",
    )
    project.write("", "pkg/__init__.py")
    trace = FileTrace(project.files)
    sys.path.insert(0, str(project.root))
    with trace.active():
        importlib.import_module("asking")
    stems = ("by_name_of_ours", "override_of_ours", "pkg/inner")
    wanted = [missing_name(name) for stem in stems for name in (f"{stem}.py", f"{stem}/__init__.py")]
    assert trace.missing() == sorted(wanted)


def test_what_packages_look_for_in_vain_is_not_the_projects(project):
    trace = FileTrace(project.files)
    sys.path.insert(0, str(project.root))
    with trace.active(), contextlib.suppress(ImportError):
        importlib.import_module("nowhere_of_tests")  # asked for by this file, which is not below the root
    assert trace.missing() == []


def test_missing_files_are_no_flood(project, monkeypatch):
    monkeypatch.chdir(project.root)
    trace = FileTrace(project.files)
    with trace.active():
        for number in range(300):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{number}.txt").read_text()
    assert len(trace.missing()) == 200


@pytest.mark.parametrize("given", ["data.db", "file:data.db?mode=ro"])
def test_a_database_of_sqlite_is_a_file_that_was_read(project, monkeypatch, given):
    monkeypatch.chdir(project.root)
    sqlite3.connect("data.db").close()
    project.write("x", "data.db")
    trace = FileTrace(project.files)
    with trace.active():
        sqlite3.connect(given, uri=given.startswith("file:")).close()
        sqlite3.connect(":memory:").close()
    assert trace.dependencies() == ["data.db"]
    assert trace.missing() == []


def test_a_program_counts_where_a_source_of_the_project_starts_it(project):
    run = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\n"
    project.write(run, "starting.py")
    trace = FileTrace(project.files)
    sys.path.insert(0, str(project.root))
    with trace.active():
        exec(run, {"__name__": "of_the_test"})
        assert not trace.ran_programs
        importlib.import_module("starting")
    assert trace.ran_programs


def test_calls_that_read_unseen_are_found_in_sources(project):
    project.write("def model():\n    import onnxruntime\n", "a.py")
    project.write("import torch\nX = torch.UntypedStorage.from_file\nY = other.from_file\n", "b.py")
    project.write("not python", "c.py")
    found = imported_readers(project.root, ["a.py", "b.py", "c.py", "weights.bin"])
    assert found == {"onnxruntime", "torch.UntypedStorage.from_file"}


def test_a_file_that_is_gone_is_no_dependency(project):
    path = project.write("x", "scratch.txt")
    trace = FileTrace(project.files)
    with trace.active():
        path.read_text()
    path.unlink()
    assert trace.dependencies() == []


def test_modules_count_even_where_only_their_bytecode_is_read(project):
    project.write("import pkg.inner\n", "outer.py")
    project.write("", "pkg/inner.py")
    sys.path.insert(0, str(project.root))
    importlib.import_module("outer")
    assert FileTrace(project.files).dependencies() == ["outer.py", "pkg/inner.py"]


def test_a_source_may_replace_the_finders_of_modules(project, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    trace = FileTrace(project.files)
    with trace.active():
        sys.meta_path = sys.meta_path[:-1]
    assert trace.missing() == []
