"""Through the real child process."""

import hashlib
import signal
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit._progress import Silent
from triton_toolkit.errors import ExportError, MissingDependencyError, ParityError
from triton_toolkit.export.run import run_export
from triton_toolkit.repository.passport import read_samples

SAMPLE = """
    import numpy as np

    def sample(batch):
        print("making a sample", flush=True)
        return {"x": np.full((batch, 4), 2, np.float32)}
"""


class Recorder:
    def __init__(self):
        self.lines = []

    def step(self, subject, text):
        self.lines.append(("step", subject, text))

    def note(self, subject, text):
        self.lines.append(("note", subject, text))


@pytest.fixture
def scratch(tmp_path_factory, monkeypatch):
    """Give the folder where job files lie while a child runs, and stay after a crash."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.mark.torch
def test_an_export_gives_the_same_bytes_from_anywhere(project, tmp_path_factory, scratch):
    def export(root):
        out = root / "out"
        report = run_export(project.job(root=root, name="net", batch_dim="batch"), out, recorder)
        return report, [
            hashlib.sha256((out / n).read_bytes()).hexdigest() for n in ("model.onnx", "samples.npz")
        ]

    recorder = Recorder()
    source = project.net("return F.gelu(self.linear(x))").read_text()
    elsewhere = tmp_path_factory.mktemp("else") / "deeper" / "down"
    elsewhere.mkdir(parents=True)
    (elsewhere / "nets.py").write_text(source)
    report, digests = export(project.root)
    assert export(elsewhere)[1] == digests
    assert report.dependencies == ["nets.py"]
    assert {"torch", "onnx", "onnxruntime", "onnxscript"} <= report.tools.keys()
    assert ("step", "net", "export to ONNX") in recorder.lines
    assert list(scratch.iterdir()) == []


def test_a_sample_job_writes_golden_inputs_only(project):
    project.write(SAMPLE)
    recorder = Recorder()
    report = run_export(project.job(kind="sample", source="", sample="nets:sample"), project.out, recorder)
    samples = read_samples(project.out)
    assert samples.inputs["x"].tolist() == [[2.0] * 4] * 4
    assert samples.outputs == {}
    assert report.dependencies == ["nets.py"]
    assert "torch" not in report.tools
    assert report.log == "making a sample\n"
    assert recorder.lines == [("step", "", "make the sample")]


def test_a_sample_job_without_declared_inputs_takes_what_it_gets(project):
    project.write("def sample(): return {'text': [['a'], ['b']]}\n")
    run_export(project.job(kind="sample", sample="nets:sample", inputs=(), dims={}), project.out, Silent())
    assert read_samples(project.out).inputs["text"].tolist() == [[b"a"], [b"b"]]


def test_a_sample_job_without_a_function_makes_random_inputs(project):
    run_export(project.job(kind="sample", batch_dim="batch"), project.out, Silent())
    assert read_samples(project.out).inputs["x"].shape == (2, 4)


def test_the_childs_error_comes_with_its_class_name_and_output(project, scratch):
    project.write("print('before the fall')\nraise ValueError('no weights')\n")
    with pytest.raises(ExportError) as caught:
        run_export(project.job(kind="sample", sample="nets:sample", name="net"), project.out, Silent())
    error = caught.value
    assert type(error) is ExportError
    assert (
        error.message
        == "net: nets:sample: cannot import nets: ValueError: no weights (nets.py:2, in <module>)"
    )
    assert "before the fall" in error.detail
    assert "Traceback" in error.detail
    assert list(scratch.iterdir()) == []


def test_a_parity_error_stays_one(project):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    graph = helper.make_graph([helper.make_node("CumSum", ["x", "axis"], ["y"])], "main", [x], [y], [axis])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), project.root / "net.onnx")
    job = project.job(kind="onnx", source="net.onnx", batch_dim="batch", name="net")
    with pytest.raises(ParityError, match=r"^net: output 'y' depends on the order of the rows"):
        run_export(job, project.out, Silent())


@pytest.mark.parametrize(
    ("code", "end"),
    [
        pytest.param("import os; os.abort()", "killed by SIGABRT", id="abort"),
        pytest.param("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV", id="segfault"),
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "killed by SIGKILL (the system may have run out of memory)",
            id="out-of-memory",
        ),
        *(
            pytest.param(
                f"import os; os._exit({code})",
                f"exit code {code} and no report: does the source, or what it imports, "
                "end the process itself (os._exit)?",
                id=f"exit-{code}",
            )
            for code in (0, 1, 3, 70)
        ),
    ],
)
def test_a_crash_is_an_error_that_says_how_to_see_it_again(project, scratch, code, end):
    project.write(f"print('last words', flush=True)\n{code}\n")
    with pytest.raises(ExportError) as caught:
        run_export(project.job(kind="sample", sample="nets:sample", name="net"), project.out, Silent())
    error = caught.value
    assert error.message == f"net: the sample process ended with {end}"
    assert "last words" in error.detail
    (folder,) = (project.root / ".tt/crashes").iterdir()
    assert error.hint == f"run it again with: {folder}/reproduce.sh"
    assert "last words" in (folder / "log.txt").read_text()
    assert list(scratch.iterdir()) == []


def test_the_script_of_a_crash_crashes_again_and_holds_no_secret(project, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_MINE", "s3cr3t")
    project.write("import os\nprint('token', os.environ.get('TOKEN_OF_MINE'), flush=True)\nos.abort()\n")
    with pytest.raises(ExportError) as caught:
        run_export(project.job(kind="sample", sample="nets:sample", name="net"), project.out, Silent())
    script = Path(caught.value.hint.removeprefix("run it again with: "))
    assert "s3cr3t" not in script.read_text() + (script.parent / "job.json").read_text()
    monkeypatch.delenv("TOKEN_OF_MINE")
    done = subprocess.run([script], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert "token None" in done.stdout


def test_the_log_of_a_step_is_kept_and_named_on_failure(project):
    project.write("print('before the fall')\nraise ValueError('no weights')\n")
    with pytest.raises(ExportError) as caught:
        run_export(project.job(kind="sample", sample="nets:sample", name="net"), project.out, Silent())
    log = project.root / ".tt/logs/net/sample.log"
    assert caught.value.hint.endswith(f"its log: {log}")
    assert "before the fall\n" in log.read_text()
    assert "ValueError: no weights" in log.read_text()
    assert (project.root / ".tt/.gitignore").read_text().endswith("\n*\n")


def test_a_project_that_cannot_be_written_has_no_log_and_is_built(project):
    (project.root / ".tt").write_text("in the way")
    project.write("def sample(): return {'text': [['a']]}\n")
    job = project.job(kind="sample", sample="nets:sample", inputs=(), dims={}, name="net")
    run_export(job, project.out, Silent())
    assert read_samples(project.out).inputs["text"].tolist() == [[b"a"]]
    project.write("import os; os.abort()\n")
    with pytest.raises(ExportError) as caught:
        run_export(job, project.out, Silent())
    assert caught.value.hint.startswith("nothing could be kept to run it again: ")


class Impatient(Recorder):
    def step(self, subject, text):
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_child_and_leaves_nothing(project, scratch):
    # The step is told while the child sleeps, so this also shows that progress arrives as it is made.
    started = project.root / "started"
    project.write(f"import os, time\nopen({str(started)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    with pytest.raises(KeyboardInterrupt):
        run_export(project.job(kind="sample", sample="nets:sample"), project.out, Impatient())
    assert list(scratch.iterdir()) == []
    if started.exists():
        assert not Path(f"/proc/{started.read_text() or 0}").exists()


def test_a_bug_in_the_worker_keeps_its_traceback(project, scratch):
    with pytest.raises(RuntimeError, match="has a bug; run it again with") as caught:
        run_export(project.job(kind="no such kind"), project.out, Silent())
    assert "Traceback (most recent call last)" in str(caught.value)
    assert list(scratch.iterdir()) == []
    assert len(list((project.root / ".tt/crashes").iterdir())) == 1


@pytest.mark.parametrize("kind", ["threading.Thread", "multiprocessing.get_context('fork').Process"])
def test_what_user_code_left_running_is_ended(project, kind):
    """It would leave a file at the end of a long life."""
    project.write(
        f"import multiprocessing, threading, time\nimport numpy as np\n"
        "def late():\n    time.sleep(20)\n    open('late', 'w').close()\n"
        f"def sample(batch):\n    {kind}(target=late).start()\n"
        "    return {'x': np.zeros((batch, 4), np.float32)}\n"
    )
    run_export(project.job(kind="sample", sample="nets:sample"), project.out, Silent())
    assert read_samples(project.out).inputs["x"].shape == (4, 4)
    assert not (project.root / "late").exists()


def test_a_missing_package_is_not_the_users_fault(project, monkeypatch):
    stub = project.root / "path" / "torch"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(stub.parent))
    with pytest.raises(MissingDependencyError) as caught:
        run_export(project.job(), project.out, Silent())
    assert caught.value.hint == "pip install 'triton-toolkit[torch]'"


def test_a_project_may_have_modules_named_like_ours(project):
    project.write("raise RuntimeError('shadowed')\n", "numpy.py")
    project.write("raise RuntimeError('shadowed')\n", "json.py")
    run_export(project.job(kind="sample"), project.out, Silent())
    assert read_samples(project.out).inputs["x"].shape == (4, 4)


@pytest.mark.parametrize(("hashed", "notes"), [((), 1), (("vocabulary.json",), 0)])
def test_a_package_that_reads_unseen_is_a_note_unless_files_are_hashed(project, hashed, notes):
    project.write("import tokenizers\ndef sample(): return {'x': [b'']}\n")
    job = project.job(kind="sample", sample="nets:sample", inputs=(), dims={}, hashed=hashed)
    report = run_export(job, project.out, Silent())
    assert len(report.notes) == notes
    assert all(note.startswith("tokenizers reads files unseen by tt") for note in report.notes)


def test_a_program_that_the_source_runs_is_a_note(project):
    project.write(
        "import subprocess, sys\nimport numpy as np\n"
        "def sample(batch):\n    subprocess.run([sys.executable, '-c', ''])\n"
        "    return {'x': np.zeros((batch, 4), np.float32)}\n"
    )
    report = run_export(project.job(kind="sample", sample="nets:sample"), project.out, Silent())
    (note,) = report.notes
    assert note.startswith("programs that the source runs read files unseen by tt")


def test_the_child_works_in_the_projects_root(project):
    project.write("2", "factor.txt")
    project.write(
        "def sample():\n    import numpy as np\n"
        "    return {'x': np.full((2, 4), float(open('factor.txt').read()), np.float32)}\n"
    )
    report = run_export(project.job(kind="sample", sample="nets:sample"), project.out, Silent())
    assert report.dependencies == ["factor.txt", "nets.py"]
