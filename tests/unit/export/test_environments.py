"""A model's own interpreter: found, made from a lock, checked, and used by the export."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import triton_toolkit
from tests.unit.export.environments import link_packages, make_environment, make_wheel, site_packages
from triton_toolkit._progress import Silent
from triton_toolkit.errors import EnvironmentProblem, MissingDependencyError
from triton_toolkit.export import environments
from triton_toolkit.export.environments import Environment, environment_key, prepare_environment
from triton_toolkit.export.interpreters import OLDEST_PYTHON, find_interpreter, inspect_interpreter
from triton_toolkit.export.locks import local_packages
from triton_toolkit.export.run import run_export
from triton_toolkit.export.trace_files import split_missing

OWN = {"environment": "its own"}
NOT_THERE = ("pydantic", "onnxruntime", "click", "tritonclient", "yaml", "rich", "jinja2")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Give the interpreter of an environment that has numpy and nothing else."""
    return make_environment(tmp_path_factory.mktemp("env") / "numpy", "numpy")


@pytest.fixture(autouse=True)
def forget():
    yield
    inspect_interpreter.cache_clear()


class Recorder(Silent):
    def __init__(self):
        self.lines = []

    def step(self, subject, text):
        self.lines.append(text)


def prepare(root, kind="sample", progress=None, **entry):
    return prepare_environment(root, Environment(**entry), kind, progress or Silent(), "m")


def test_without_an_entry_it_is_the_interpreter_of_tt(tmp_path):
    assert prepare_environment(tmp_path, None, "torch", Silent()) is None
    assert environment_key(tmp_path, None) == {}


def test_a_path_is_relative_to_the_project_and_links_stay(tmp_path, python):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "nlp").symlink_to(python.parents[1])
    found = prepare(tmp_path, python="envs/nlp/bin/python")
    assert found == tmp_path / "envs" / "nlp" / "bin" / "python"
    assert inspect_interpreter(found).packages.keys() == {"numpy"}


def test_a_command_is_found_on_the_path(tmp_path, monkeypatch, python):
    monkeypatch.setenv("PATH", str(python.parent))
    assert find_interpreter(tmp_path, "python3") == python.with_name("python3")


@pytest.mark.parametrize(
    ("named", "message", "hint"),
    [
        (
            "envs/nlp/bin/python",
            "interpreter envs/nlp/bin/python does not exist",
            "python -m venv envs/nlp && ",
        ),
        ("plain", "interpreter plain cannot be run", "env: {lock: FILE}"),
        ("folder", "folder is a folder, not a Python interpreter", "name the interpreter"),
        ("venv/", "venv/ is a folder, not a Python interpreter", "write venv/bin/python"),
        ("broken", "broken does not run as a Python interpreter (exit code 3)", "name the interpreter"),
        ("old", "is Python 3.9.18; the export needs 3.11 or newer", "python3.11 -m venv"),
        ("garbage", "garbage cannot be run: Exec format error", ""),
    ],
)
def test_an_interpreter_that_is_none_is_one_clear_error(tmp_path, named, message, hint):
    def program(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    (tmp_path / "plain").write_text("")
    (tmp_path / "folder").mkdir()
    program("venv/bin/python", "")
    program("broken", "#!/bin/sh\necho sorry\nexit 3\n")
    program("old", '#!/bin/sh\necho \'tt:{"version": [3, 9, 18], "packages": {}}\'\n')
    program("garbage", "garbage")
    with pytest.raises(EnvironmentProblem) as caught:
        prepare(tmp_path, python=named)
    assert caught.value.exit_code == 3
    assert caught.value.message.startswith("m: env: ")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_interpreter_without_torch_says_what_to_install(tmp_path, python):
    with pytest.raises(MissingDependencyError) as caught:
        prepare(tmp_path, "torch", python=str(python))
    assert caught.value.exit_code == 3
    assert caught.value.message.endswith("lacks torch, onnxscript, onnx, which the export needs")
    assert caught.value.hint.startswith(f'{python} -m pip install "torch>=2.6" "onnxscript>=0.5"')


def test_a_package_that_is_too_old_is_told_with_both_versions(tmp_path, python, monkeypatch):
    monkeypatch.setitem(environments.NEEDED, "numpy", (99, 1))
    with pytest.raises(MissingDependencyError, match=r"lacks numpy>=99\.1 \(it has \d+\."):
        prepare(tmp_path, python=str(python))


def test_the_oldest_versions_are_those_of_the_extras():
    import tomllib

    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    known = dict(
        line.split(">=")
        for lines in (project["dependencies"], project["optional-dependencies"]["torch"])
        for line in lines
        if ">=" in line
    )
    assert {
        name: tuple(map(int, known[name].split("."))) for name in environments.NEEDED
    } == environments.NEEDED
    assert project["requires-python"].startswith(f">={'.'.join(map(str, OLDEST_PYTHON))},")


def test_the_key_follows_the_packages_of_an_interpreter(tmp_path):
    python = make_environment(tmp_path / "env")
    before = environment_key(tmp_path, Environment(python="env/bin/python"))
    link_packages(site_packages(tmp_path / "env"), "typing_extensions")
    inspect_interpreter.cache_clear()
    after = environment_key(tmp_path, Environment(python="env/bin/python"))
    assert before.keys() == after.keys() == {"environment", "tool environment"}
    assert before != after
    python.unlink()
    inspect_interpreter.cache_clear()
    assert environment_key(tmp_path, Environment(python="env/bin/python")) == OWN


def test_the_key_follows_a_lock_and_what_it_includes(tmp_path):
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "a.lock").write_text("-c base.txt\n--requirement=more.txt\nx==1\n")
    (tmp_path / "locks" / "base.txt").write_text("y==1\n")
    (tmp_path / "locks" / "more.txt").write_text("z==1\n")
    entry = Environment(lock="locks/a.lock")
    keys = [environment_key(tmp_path, entry)]
    for name in ("a.lock", "base.txt", "more.txt"):
        with (tmp_path / "locks" / name).open("a") as file:
            file.write("w==1\n")
        keys.append(environment_key(tmp_path, entry))
    assert len({key["tool environment"] for key in keys}) == 4
    assert not (tmp_path / ".tt").exists()
    assert environment_key(tmp_path, Environment(lock="locks/b.lock")) == OWN


def test_the_key_follows_an_option_without_a_space(tmp_path):
    (tmp_path / "a.lock").write_text("-rbase.txt\n-cmore.txt\n")
    entry = Environment(lock="a.lock")
    keys = set()
    for name in ("base.txt", "more.txt", "base.txt"):
        for needed in ("base.txt", "more.txt"):
            (tmp_path / needed).touch()
        (tmp_path / name).write_text(f"y=={len(keys)}\n")
        keys.add(environment_key(tmp_path, entry)["tool environment"])
    assert len(keys) == 3


@pytest.mark.parametrize(
    "line",
    [
        "./pkg",
        "./pkg[fast] ; python_version > '3'",
        "-e ./pkg",
        "-e./pkg  # ours",
        "--editable=pkg/",
        "pkg @ file:pkg",
    ],
)
def test_the_key_follows_a_local_package(tmp_path, line):
    (tmp_path / "pkg" / "src").mkdir(parents=True)
    (tmp_path / "pkg" / "pyproject.toml").write_text("")
    (tmp_path / "a.lock").write_text(f"x==1\n{line}\n")
    entry = Environment(lock="a.lock")
    keys = [environment_key(tmp_path, entry)]
    (tmp_path / "pkg" / "src" / "code.py").write_text("SIZE = 1\n")
    keys.append(environment_key(tmp_path, entry))
    (tmp_path / "pkg" / "src" / "pkg.egg-info").mkdir()  # as its installation leaves it
    (tmp_path / "pkg" / "src" / "pkg.egg-info" / "PKG-INFO").write_text("")
    (tmp_path / "pkg" / "build").mkdir()
    (tmp_path / "pkg" / "build" / "code.py").write_text("")
    keys.append(environment_key(tmp_path, entry))
    assert keys[0] != keys[1] == keys[2]


def test_the_key_follows_a_wheel_of_the_project(tmp_path):
    (tmp_path / "a.lock").write_text("tinylib-1.0-py3-none-any.whl\n")
    keys = []
    for text in ("one", "other"):
        (tmp_path / "tinylib-1.0-py3-none-any.whl").write_text(text)
        keys.append(environment_key(tmp_path, Environment(lock="a.lock")))
    assert keys[0] != keys[1]


def test_what_only_looks_like_a_path_is_none(tmp_path):
    plain = "x==1\n--index-url https://example.com/simple\ny @ https://example.com/y.whl\n-f ./wheels\n"
    (tmp_path / "a.lock").write_text(plain)
    (tmp_path / "b.lock").write_text(plain + "git+https://example.com/z.git@main\n")
    assert list(local_packages(tmp_path, (tmp_path / "b.lock").read_text())) == []


def test_a_copy_of_the_project_itself_is_refused(tmp_path):
    (tmp_path / "a.lock").write_text(".\n")
    with pytest.raises(EnvironmentProblem) as caught:
        prepare(tmp_path, lock="a.lock")
    assert "'.' installs a copy of the project's own folder" in caught.value.message
    assert "-e" in caught.value.hint


def test_the_project_itself_in_place_counts_by_how_it_installs(tmp_path):
    (tmp_path / "a.lock").write_text("-e .\n")
    entry = Environment(lock="a.lock")
    keys = [environment_key(tmp_path, entry)]
    (tmp_path / "nets.py").write_text("")  # seen when it is read
    keys.append(environment_key(tmp_path, entry))
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    keys.append(environment_key(tmp_path, entry))
    assert keys[0] == keys[1] != keys[2]


def test_a_missing_lock_is_one_clear_error(tmp_path):
    with pytest.raises(EnvironmentProblem) as caught:
        prepare(tmp_path, lock="envs/nlp.lock")
    assert "the lock envs/nlp.lock cannot be read: No such file or directory" in caught.value.message
    assert "pip freeze" in caught.value.hint


def test_a_lock_becomes_an_environment_once(tmp_path, python, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    make_wheel(tmp_path, "tinylib", "1.0", {"tinylib.py": "VERSION = 1\n"})
    lock = tmp_path / "nlp.lock"
    lock.write_text("./tinylib-9.9-py3-none-any.whl\n")
    with pytest.raises(EnvironmentProblem) as caught:
        prepare(tmp_path, lock="nlp.lock")
    assert caught.value.exit_code == 3
    assert caught.value.message.startswith("m: env: nlp.lock does not install: ")
    assert "tinylib-9.9" in caught.value.detail
    assert list((tmp_path / ".tt" / "envs").iterdir()) == []

    path = f"import sys; sys.path.append({str(site_packages(python.parents[1]))!r})\n"
    make_wheel(tmp_path, "link", "1.0", {"link.pth": path})
    lock.write_text("./tinylib-1.0-py3-none-any.whl\n./link-1.0-py3-none-any.whl\n")
    recorder = Recorder()
    found = prepare(tmp_path, progress=recorder, lock="nlp.lock")
    assert recorder.lines[0] == "make an environment from nlp.lock"
    assert any(line.startswith("nlp.lock: Successfully installed") for line in recorder.lines)
    answer = subprocess.run(
        [found, "-c", "import tinylib; print(tinylib.VERSION)"], capture_output=True, check=True
    )
    assert answer.stdout == b"1\n"
    assert (tmp_path / ".tt" / ".gitignore").read_text().endswith("*\n")
    recorder.lines.clear()
    assert prepare(tmp_path, progress=recorder, lock="nlp.lock") == found
    assert recorder.lines == []
    with pytest.raises(MissingDependencyError) as missing:
        prepare(tmp_path, "onnx", lock="nlp.lock")
    assert missing.value.hint.startswith("add to nlp.lock what is missing, of ")


def test_an_environment_that_was_not_finished_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "a.lock").write_text("")
    calls = []

    def interrupted(root, folder, source, progress, name):
        (folder / "half").write_text("")
        calls.append(name)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_make", interrupted)
    monkeypatch.setattr(environments, "_check_packages", lambda *_: None)
    monkeypatch.setattr(
        environments, "inspect_interpreter", lambda path: inspect_interpreter(Path(sys.executable))
    )
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path, lock="a.lock")
    assert list((tmp_path / ".tt" / "envs").iterdir()) == []
    prepare(tmp_path, lock="a.lock")
    (folder,) = (tmp_path / ".tt" / "envs").iterdir()
    (folder / ".tt-complete").unlink()
    (folder / "left by a kill").mkdir()
    prepare(tmp_path, lock="a.lock")
    assert sorted(path.name for path in folder.iterdir()) == [".tt-complete", "half"]
    assert len(calls) == 3


def test_the_worker_meets_none_of_the_packages_of_tt(project, python):
    """A sample is made by an interpreter that has numpy alone; ours would not even be found there."""
    project.write(f"""
        import importlib.util, sys

        def sample(batch):
            import numpy as np
            print(sys.prefix)
            print([name for name in {NOT_THERE} if importlib.util.find_spec(name)])
            print({str(Path(triton_toolkit.__file__).parents[1])!r} in sys.path)
            return {{"x": np.full((batch, 4), 2, np.float32)}}
    """)
    job = project.job(kind="sample", source="", sample="nets:sample", python=str(python))
    report = run_export(job, project.out, Silent())
    prefix, found, paths = report.log.splitlines()
    assert prefix == str(python.parents[1])
    assert found == "[]"
    assert paths == "False"
    assert split_missing(report.dependencies)[0] == {"nets.py"}
    assert report.tools["numpy"]


def test_python_variables_do_not_reach_a_models_interpreter(project, python, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    project.write("""
        import os

        def sample(batch):
            import numpy as np
            print(sorted(set(os.environ) & {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}))
            return {"x": np.zeros((batch, 4), np.float32)}
    """)
    job = project.job(kind="sample", source="", sample="nets:sample", python=str(python))
    assert run_export(job, project.out, Silent()).log == "[]\n"
