"""The project's functions give the same here and in an interpreter of their own."""

import inspect
import os
import sys

import numpy as np
import pytest

from tests.unit.export.environments import make_environment
from triton_toolkit.errors import ExportError
from triton_toolkit.export.user_code import functions_of

CODE = """
    import os, sys
    import numpy as np

    def sample(batch, seq=3):
        text = np.array([["a", b"b"]], object)
        return {"past": [{"key": np.zeros((batch, seq), np.float32)}], "text": text}

    def calibration():
        for row in range(3):
            yield {"x": np.full((1, 2), row, np.float32)}

    def listed():
        return [{"x": [1, 2]}]

    def metric(predict):
        first = predict({"x": np.ones((1, 2), np.float32)})["y"]
        return float(predict({"x": first})["y"].sum())

    def brave(predict):
        try:
            predict({"x": np.ones(1)})
        except Exception as exc:
            return -1.0

    def word():
        return "good"

    def raises():
        return {}["x"]

    def reads():
        with open("figure.txt") as file:
            return float(file.read())

    def interpreter():
        return {"prefix": [sys.prefix], "pid": [os.getpid()]}

    def dies():
        os._exit(7)

    def pickled():
        return float(os.environ.get("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0"))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return str(make_environment(tmp_path_factory.mktemp("env") / "numpy", "numpy"))


@pytest.fixture(params=["here", "elsewhere"])
def code(request, project):
    """Give the functions of CODE, imported in this process and in another one."""
    project.write(CODE)
    python = request.getfixturevalue("python") if request.param == "elsewhere" else None
    with functions_of(project.files, python=python, trust=False) as code:
        yield code


def test_a_sample_takes_sizes_and_keeps_its_signature(code):
    sample = code.load("nets:sample", ["past.0.key", "text"])
    assert [(p.name, p.default is p.empty) for p in inspect.signature(sample).parameters.values()] == [
        ("batch", True),
        ("seq", False),
    ]
    from triton_toolkit.export.samples import named_arrays

    arrays = named_arrays("sample", sample(batch=2, seq=4), ["past.0.key", "text"])
    assert arrays["past.0.key"].shape == (2, 4)
    assert arrays["text"].tolist() == [[b"a", b"b"]]


def test_calibration_gives_batches_one_by_one(code):
    batches = code.load("nets:calibration")()
    assert next(batches)["x"].tolist() == [[0, 0]]
    assert [batch["x"][0, 0] for batch in batches] == [1, 2]
    assert [np.asarray(batch["x"]).tolist() for batch in code.load("nets:listed")()] == [[1, 2]]


def test_a_metric_predicts_on_this_side(code):
    pids = []

    def predict(arrays):
        pids.append(os.getpid())
        return {"y": arrays["x"] * 3}

    assert code.load("nets:metric")(predict) == 18.0
    assert pids == [os.getpid()] * 2


def test_what_predict_raises_is_raised_here(code):
    class Broken(Exception):
        pass

    def predict(arrays):
        raise Broken("no")

    with pytest.raises((Broken, ExportError)) as caught:
        code.load("nets:metric")(predict)
    assert isinstance(caught.value, Broken)
    assert code.load("nets:brave")(predict) == -1.0


def test_what_was_read_becomes_a_dependency(code, project, monkeypatch):
    monkeypatch.chdir(project.root)
    project.write("2", "figure.txt")
    assert code.load("nets:reads")() == 2.0
    assert code.dependencies() == ["figure.txt", "nets.py"]


def test_files_are_not_trusted(code):
    assert code.load("nets:pickled")() == 1.0


def test_a_function_that_is_not_there_is_told_with_near_names(code):
    with pytest.raises(ExportError, match=r"nets:metrik: nets has no 'metrik'; did you mean 'metric'\?"):
        code.load("nets:metrik")


@pytest.fixture
def elsewhere(project, python):
    project.write(CODE)
    with functions_of(project.files, python=python, trust=False) as code:
        yield code


def test_the_other_side_is_the_named_interpreter(elsewhere, python):
    given = elsewhere.load("nets:interpreter")()
    assert given["prefix"].tolist() == [os.path.dirname(os.path.dirname(python)).encode()]
    assert given["pid"].tolist() != [os.getpid()]
    assert given["prefix"].tolist() != [sys.prefix.encode()]


def test_errors_of_the_other_side_say_where(elsewhere):
    with pytest.raises(
        ExportError, match=r"^nets:raises raised: KeyError: 'x' \(nets\.py:30, in raises\)"
    ) as caught:
        elsewhere.load("nets:raises")()
    assert "Traceback" in caught.value.detail
    with pytest.raises(
        ExportError, match="nets:word gives an object of type str, neither a number nor arrays"
    ):
        elsewhere.load("nets:word")()
    assert elsewhere.load("nets:pickled")() == 1.0  # it goes on


def test_a_process_that_ends_is_told(elsewhere):
    with pytest.raises(ExportError, match="the process of the model's own code ended with exit code 7"):
        elsewhere.load("nets:dies")()
