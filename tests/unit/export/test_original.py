import numpy as np
import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.original import Original
from triton_toolkit.export.source import load_module

pytestmark = pytest.mark.torch

ONE, TWO = np.float32([[1.0, 1, 1, 1]]), np.float32([[2.0, 2, 2, 2]])


def original(project, inputs=("x",), outputs=("y",)):
    return Original(load_module(project.files, "nets:model"), inputs, outputs, project.files)


@pytest.mark.parametrize(
    ("parameters", "forward", "inputs"),
    [
        pytest.param("a, b", "return a - b", ("b", "a"), id="names-in-another-order"),
        pytest.param("first, second", "return first - second", ("a", "b"), id="no-names-by-position"),
        pytest.param("a, other", "return a - other", ("a", "b"), id="some-names-in-place"),
        pytest.param("*given", "return given[0] - given[1]", ("a", "b"), id="any-positions"),
        pytest.param("*, b, a", "return a - b", ("a", "b"), id="keyword-only"),
        pytest.param("**named", "return named['a'] - named['b']", ("a", "b"), id="any-keywords"),
        pytest.param("a, b, scale=1", "return a - b * scale", ("a", "b"), id="default-left-out"),
    ],
)
def test_inputs_reach_their_parameters(project, parameters, forward, inputs):
    project.net(forward, parameters=parameters)
    result = original(project, inputs).predict({"a": ONE, "b": TWO})["y"]
    assert (result == -1).all()


@pytest.mark.parametrize(
    ("parameters", "inputs", "message"),
    [
        pytest.param("a, b", ("b", "c"), "input 'b' is number 1 of the spec but number 2", id="swapped"),
        pytest.param("a", ("a", "b"), "do not fit Net.forward(a): too many", id="too-many"),
        pytest.param("a, b", ("a",), "missing a required argument: 'b'", id="too-few"),
    ],
)
def test_inputs_that_do_not_fit_forward_are_refused(project, parameters, inputs, message):
    project.net("return a", parameters=parameters)
    with pytest.raises(ExportError) as caught:
        original(project, inputs)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("forward", "message", "hint"),
    [
        pytest.param("return x.bfloat16()", "'y' has type bfloat16", "y.float()", id="bfloat16"),
        pytest.param("return torch.fft.fft(x)", "'y' has type complex64", "real", id="complex"),
        pytest.param("return x.to_sparse()", "'y' is a sparse", "to_dense", id="sparse"),
    ],
)
def test_outputs_that_triton_lacks_are_refused(project, forward, message, hint):
    project.net(forward)
    with pytest.raises(ExportError) as caught:
        original(project).predict({"x": ONE})
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_predict_leaves_its_inputs_alone(project):
    project.net("return x.add_(1)")
    x = ONE.copy()
    assert (original(project).predict({"x": x})["y"] == 2).all()
    assert (x == 1).all()


def test_predict_names_the_line_that_failed(project):
    project.net("x = x * 2\nreturn x.view(3, 7)")
    with pytest.raises(ExportError) as caught:
        original(project).predict({"x": ONE}, "fails at batch=1")
    assert caught.value.message.startswith(
        "forward fails at batch=1: RuntimeError: shape '[3, 7]' is invalid"
    )
    assert "nets.py:14, in forward)" in caught.value.message


def test_predict_knows_unsigned_types(project):
    project.net("return x.to(torch.uint8)")
    assert original(project).predict({"x": TWO})["y"].dtype == np.uint8
