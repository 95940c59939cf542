import importlib
import os
import sys

import pytest

from triton_toolkit.export.trace_files import FileTrace, ProjectFiles


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
