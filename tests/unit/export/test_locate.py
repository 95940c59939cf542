"""The first node of a graph that goes wrong."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit.export.baked import differing, holding, listed
from triton_toolkit.export.locate import first_diverging, first_nonfinite

FLOAT = TensorProto.FLOAT
X = {"x": np.float32([-1, 0, 4])}


@pytest.fixture
def chain(tmp_path):
    """y = exp(log(x) + 1), with node names of its operators."""
    one = numpy_helper.from_array(np.float32([1]), "one")
    nodes = [
        helper.make_node("Log", ["x"], ["a"], name="log"),
        helper.make_node("Add", ["a", "one"], ["b"], name="add"),
        helper.make_node("Exp", ["b"], ["y"], name="exp"),
    ]
    ends = [helper.make_tensor_value_info(name, FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:], [one])
    path = tmp_path / "chain.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_the_first_node_that_gives_nan_is_named_with_what_it_took(chain):
    found = first_nonfinite(chain, X, sources={"log": "nets.py:3, in forward"})
    assert str(found) == (
        "node 'log' (Log, made from nets.py:3, in forward): gives NaN where x is from -1 to 4"
    )


def test_infinities_are_looked_for_when_asked(chain):
    assert first_nonfinite(chain, {"x": np.float32([0, 1])}) is None
    found = first_nonfinite(chain, {"x": np.float32([0, 1])}, infinite=True)
    assert (found.node, found.figures) == ("log", "gives an infinity where x is from 0 to 1")


def test_nothing_is_named_where_all_is_finite(chain):
    assert first_nonfinite(chain, {"x": np.float32([1, 2])}, infinite=True) is None


def test_a_node_that_takes_nan_already_is_not_blamed(chain):
    assert first_nonfinite(chain, {"x": np.float32([np.nan])}) is None


def test_the_first_node_that_differs_is_named_with_figures(chain):
    x = {"x": np.float32([1, 2])}
    expected = {"a": np.log(x["x"]), "b": np.log(x["x"]) + 2, "y": np.exp(np.log(x["x"]) + 1)}
    found = first_diverging(chain, x, expected)
    assert (found.node, found.operator, found.tensor) == ("add", "Add", "b")
    assert found.figures == "gives 1 at [0], expected 2"


def test_a_tensor_of_another_shape_is_wrong_unless_it_may_be_another_one(chain):
    x = {"x": np.float32([1, 2])}
    expected = {"a": np.zeros((2, 2), np.float32)}
    assert first_diverging(chain, x, expected).figures == "gives shape [2], expected [2, 2]"
    assert first_diverging(chain, x, expected, exact=False) is None


def test_rounding_is_no_divergence(chain):
    x = {"x": np.float32([1, 1000])}
    assert first_diverging(chain, x, {"a": np.log(x["x"]) + np.float32(1e-3)}) is None


def shaped(rows, more=()):
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [rows, 4])
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="fold"), *more]
    return helper.make_model(helper.make_graph(nodes, "main", [], [], [shape]))


def test_nodes_that_differ_between_two_examples_hold_the_size():
    places = {"fold": "nets.py:3, in forward"}
    assert differing(shaped(2), shaped(3), places) == [
        "node 'fold' (Reshape, made from nets.py:3, in forward) has the constant [2, 4]"
    ]
    assert differing(shaped(2), shaped(2), places) == []


def test_a_loop_in_python_gives_another_number_of_nodes():
    more = [helper.make_node("Relu", ["y"], ["z"], name="step")]
    assert differing(shaped(2, more), shaped(2), {}) == ["node 'step' (Relu) is there for some sizes only"]


def test_a_size_of_one_counts_only_as_the_batch():
    assert holding(shaped(1), [1], {}) == ["node 'fold' (Reshape) has the constant [1, 4]"]
    assert holding(shaped(3), [4], {}) == ["node 'fold' (Reshape) has the constant [3, 4]"]
    assert holding(shaped(-1), [1], {}) == []


def test_many_nodes_are_counted():
    assert listed(["a", "b"]) == "a; b"
    assert listed([str(n) for n in range(486)]) == "0; 1; 2; 3; and 482 more"
