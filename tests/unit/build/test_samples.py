"""Whether a recorded answer is what the model declares."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.build.helpers import ProjectOf, put_passport
from triton_toolkit.build.samples import served_shape, wrong_answer
from triton_toolkit.core.tensors import DataType, TensorSpec

GOOD = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({"y": GOOD}, ""),
        ({"z": GOOD}, "it gives no output 'y'"),
        ({"y": GOOD.astype(np.float64)}, "output 'y' is float64, declared float32"),
        ({"y": np.ones((2, 4), np.float32)}, "output 'y' has shape [2, 4], declared [batch=2, 3]"),
        ({"y": np.ones((1, 3), np.float32)}, "output 'y' has shape [1, 3], declared [batch=2, 3]"),
        ({"y": np.ones(2, np.float32)}, "output 'y' has shape [2], declared [batch=2, 3]"),
        ({"y": GOOD * np.float32("nan")}, "output 'y' has NaN in 6 of 6 elements"),
        ({"y": GOOD * np.float32("inf")}, ""),
    ],
)
def test_an_answer_is_held_against_the_declaration(
    project_of: ProjectOf, outputs: dict[str, np.ndarray], problem: str
) -> None:
    context = project_of("m: {kind: onnx, source: a.onnx}")
    made = put_passport(context, "m", inputs=["x:fp32[batch,2]"], outputs=["y:fp32[batch,3]"], batch=8)
    assert wrong_answer(made, {"x": np.zeros((2, 2), np.float32)}, outputs) == problem


def test_a_dimension_has_one_size_in_all_outputs(project_of: ProjectOf) -> None:
    context = project_of("m: {kind: onnx, source: a.onnx}")
    made = put_passport(
        context, "m", inputs=["x:fp32[batch,2]"], outputs=["a:fp32[batch,n]", "b:fp32[batch,n]"], batch=8
    )
    outputs = {"a": np.ones((2, 5), np.float32), "b": np.ones((2, 6), np.float32)}
    problem = wrong_answer(made, {"x": np.zeros((2, 2), np.float32)}, outputs)
    assert problem == "output 'b' has shape [2, 6], declared [batch=2, n=5]"


@pytest.mark.parametrize(
    ("shape", "batch_dim", "served"),
    [
        (("batch", 3), "batch", ("batch", 3)),
        (("batch",), "batch", ("batch", 1)),
        ((), None, (1,)),
        (("n",), None, ("n",)),
    ],
)
def test_a_scalar_has_a_dimension_of_one_where_it_is_served(
    shape: tuple[str | int, ...], batch_dim: str | None, served: tuple[str | int, ...]
) -> None:
    assert served_shape(TensorSpec(name="y", dtype=DataType.FP32, shape=shape), batch_dim) == served
