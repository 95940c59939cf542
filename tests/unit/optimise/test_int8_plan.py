"""Which layers and additions become INT8, by graph and by range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.optimise.int8_models import node, normal, save
from triton_toolkit.errors import ExportError
from triton_toolkit.optimise.int8_plan import Int8Plan, plan_int8, tensors_to_calibrate
from triton_toolkit.optimise.layers import Graph, find_layers
from triton_toolkit.optimise.model_file import read_model
from triton_toolkit.optimise.surroundings import Residual, first_and_last

CONV = normal(1, 4, 4, 1, 1)
IMAGE = {"x": ["N", 4, 6, 6]}
OUT = {"y": ["N", 4, 6, 6]}


def graph(tmp_path: Path, nodes: list[Any], weights: dict[str, Any], outputs: dict[str, Any] = OUT) -> Graph:
    return Graph(read_model(save(tmp_path / "m.onnx", IMAGE, nodes, weights, outputs)))


def planned(view: Graph, **ranges: float) -> Int8Plan:
    """Plan with a range of (-1, 1), or (-r, r), for each tensor."""
    names = {name: 1.0 for name in tensors_to_calibrate(view)} | ranges
    return plan_int8(view, {name: (-size, size) for name, size in names.items()})


def test_the_deeper_of_two_convolutions_takes_the_addition_in(tmp_path):
    """The body of a block beside the projection of its skip branch."""
    view = graph(
        tmp_path,
        [
            node("Conv", "x w", "projected"),
            node("Conv", "x w", "a"),
            node("Relu", "a", "r"),
            node("Conv", "r w", "b"),
            node("Add", "projected b", "y"),
        ],
        {"w": CONV},
    )
    assert planned(view).residuals == (Residual(name="y", layer="b", skip="projected"),)


def test_a_batch_norm_between_convolution_and_addition_is_passed_over(tmp_path):
    vector = np.ones(4, np.float32)
    view = graph(
        tmp_path,
        [
            node("Conv", "x w", "a"),
            node("BatchNormalization", "a v v v v", "n"),
            node("Add", "x n", "y"),
        ],
        {"w": CONV, "v": vector},
    )
    assert planned(view).residuals == (Residual(name="y", layer="a", skip="x"),)


NO_RESIDUAL = {
    "a bias": [node("Conv", "x w", "a"), node("Add", "a bias", "y")],
    "a convolution that is read twice": [
        node("Conv", "x w", "a"),
        node("Add", "x a", "s"),
        node("Mul", "s a", "y"),
    ],
    "no convolution": [node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Add", "r x", "y")],
    "itself": [node("Conv", "x w", "a"), node("Add", "a a", "y")],
    "another rank": [
        node("Conv", "x w", "a"),
        node("ReduceMean", "x axes", "m", keepdims=0),
        node("Add", "a m", "y"),
    ],
}


@pytest.mark.parametrize("nodes", NO_RESIDUAL.values(), ids=NO_RESIDUAL.keys())
def test_other_additions_are_left_alone(tmp_path, nodes):
    used = {name for one in nodes for name in one.input}
    weights = {"w": CONV, "bias": normal(1, 4, 1, 1), "axes": np.array([0, 1])}
    view = graph(tmp_path, nodes, {name: value for name, value in weights.items() if name in used})
    assert planned(view).residuals == ()


@pytest.mark.parametrize("size", [0.0, float("inf")])
def test_a_skip_branch_without_a_scale_is_left_alone(tmp_path, size):
    view = graph(
        tmp_path,
        [node("Relu", "x", "skip"), node("Conv", "x w", "a"), node("Add", "skip a", "y")],
        {"w": CONV},
    )
    assert len(planned(view).residuals) == 1
    assert planned(view, skip=size).residuals == ()


def joined(tmp_path: Path, between: str = "Relu") -> Graph:
    """Two branches, joined and then read by a convolution."""
    return graph(
        tmp_path,
        [
            node("Relu", "x", "large"),
            node("Sigmoid", "x", "small"),
            node("Concat", "large small", "both", "join", axis=1),
            node(between, "both", "through"),
            node("Conv", "through w", "y", "after"),
        ],
        {"w": normal(1, 4, 8, 1, 1)},
    )


def test_tensors_of_different_ranges_share_no_scale(tmp_path):
    plan = planned(joined(tmp_path), large=640.0)
    assert plan.layers == ()
    assert plan.kept == {
        "after": "its input comes from Concat 'join', which joins 'large' (up to 640) and 'small' (up to 1); "
        "one INT8 scale would leave the latter 0.2 of 127 steps"
    }


def test_tensors_of_similar_ranges_do(tmp_path):
    assert [layer.name for layer in planned(joined(tmp_path), large=16.0).layers] == ["after"]


def test_a_part_of_zeros_needs_no_steps(tmp_path):
    assert planned(joined(tmp_path), large=640.0, small=0.0).kept == {}


def test_an_operator_that_changes_the_range_ends_the_search(tmp_path):
    """After a normalization the parts are of one size again."""
    assert planned(joined(tmp_path, "Tanh"), large=640.0).kept == {}


def test_parts_of_a_joint_within_a_joint_are_compared(tmp_path):
    view = graph(
        tmp_path,
        [
            node("Relu", "x", "large"),
            node("Sigmoid", "x", "small"),
            node("Concat", "large small", "inner", axis=1),
            node("Abs", "x", "other"),
            node("Concat", "inner other", "outer", "outer", axis=1),
            node("Conv", "outer w", "y", "after"),
        ],
        {"w": normal(1, 4, 12, 1, 1)},
    )
    kept = planned(view, large=640.0, inner=640.0, other=640.0).kept
    assert kept["after"].startswith(
        "its input comes from Concat 'outer', which joins 'other' (up to 640) and 'small'"
    )


def test_a_tensor_beyond_the_largest_is_left_in_float(tmp_path):
    view = graph(tmp_path, [node("Conv", "x w", "y")], {"w": CONV})
    plan = plan_int8(view, {"x": (-9.0, 1e5)}, largest=16376)
    assert plan.kept == {"y": "its input reaches 1e+05, more than 1.638e+04"}


def test_a_range_of_a_joined_part_that_is_missing_is_refused(tmp_path):
    view = joined(tmp_path)
    ranges = {name: (-1.0, 1.0) for name in tensors_to_calibrate(view) if name != "small"}
    with pytest.raises(ExportError, match="no range for tensor 'small', which Concat 'join' reads"):
        plan_int8(view, ranges)


def test_all_tensors_that_are_needed_are_calibrated(tmp_path):
    assert tensors_to_calibrate(joined(tmp_path)) == ("large", "small", "through")


def test_first_and_last_layers_reach_through_everything_but_layers(tmp_path):
    view = graph(
        tmp_path,
        [
            node("Transpose", "x", "t", perm=[0, 1, 3, 2]),
            node("Conv", "t w", "first"),
            node("Conv", "first w", "inner"),
            node("Conv", "inner w", "last"),
            node("Sigmoid", "last", "s"),
            node("Mul", "s last", "y"),
        ],
        {"w": CONV},
    )
    assert first_and_last(view, find_layers(view)) == ("first", "last")
