import numpy as np
import pytest

from triton_toolkit.core.compare import Tolerance, Tolerances, default_tolerances
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import ParityError
from triton_toolkit.export.independence import check_independence, distinct_rows, independence_sizes

X = np.float32([[1, 2, 3], [4, 5, 7], [8, 8, 1]])
TOLERANCES = Tolerances(default=Tolerance(absolute=1e-5, relative=1e-5))


def check(project, function, batch=(1, 2, 8)):
    check_independence(
        lambda arrays: {"y": function(arrays["x"])},
        {"x": X},
        {"n": 3},
        project.dims(n=batch)["n"],
        TOLERANCES,
    )


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: x * 2, id="elementwise"),
        pytest.param(lambda x: x.mean(axis=1), id="over-a-row"),
        pytest.param(lambda x: x + np.float32(1e-7) * len(x), id="within-the-tolerance"),
    ],
)
def test_independent_rows_pass(project, function):
    check(project, function)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(lambda x: x - x.mean(axis=0), "depends on the other rows of the batch", id="mean"),
        pytest.param(
            lambda x: x / np.exp(x).sum(axis=0), "depends on the other rows of the batch", id="softmax"
        ),
        pytest.param(
            lambda x: np.cumsum(x, axis=0), "depends on the order of the rows of the batch", id="cumsum"
        ),
        pytest.param(
            lambda x: np.sort(x, axis=0), "depends on the order of the rows of the batch", id="sort"
        ),
        pytest.param(lambda x: x + len(x), "depends on the other rows of the batch", id="batch-size"),
        pytest.param(
            lambda x: x * np.arange(len(x))[:, None], "depends on the order of the rows", id="position"
        ),
    ],
)
def test_dependent_rows_are_refused(project, function, message):
    with pytest.raises(ParityError) as caught:
        check(project, function)
    assert message in caught.value.message
    assert "would mix requests of different callers" in caught.value.message
    assert "batch_dim" in caught.value.hint


def mix_late_rows(x):
    return np.concatenate([x[:20], x[20:] - x[20:].mean(axis=0)])


def swap_two_late_rows_in_part(x):
    y = x.copy()
    if len(x) > 22:
        y[21, 0], y[22, 0] = x[22, 0], x[21, 0]
    return y


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(mix_late_rows, id="mixed-from-row-20-on"),
        pytest.param(swap_two_late_rows_in_part, id="two-rows-swapped"),
        pytest.param(lambda x: np.float32(1e-7) * (x - x.mean(axis=0)), id="far-below-the-tolerance"),
        pytest.param(
            lambda x: np.concatenate([x * 640, 1e-6 * (x - x.mean(axis=0))], axis=1), id="one-small-channel"
        ),
        pytest.param(lambda x: (x > x.mean(axis=0)).astype(np.int64), id="whole-numbers"),
    ],
)
def test_rows_mixed_late_or_slightly_are_refused(project, function):
    x = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    with pytest.raises(ParityError, match="of the batch"):
        check_independence(
            lambda arrays: {"y": function(arrays["x"])},
            {"x": x},
            {"n": 32},
            project.dims(n=(1, 8, 32))["n"],
            default_tolerances("fp32"),
        )


@pytest.mark.parametrize("function", [lambda x: x.mean(), lambda x: x[:2], lambda x: x.T[:2]])
def test_an_output_without_a_row_each_is_refused(project, function):
    with pytest.raises(ParityError, match="for a batch of 3"):
        check(project, function)


def test_a_batch_is_never_smaller_than_its_minimum(project):
    sizes = []
    check(project, lambda x: (sizes.append(len(x)), x)[1], batch=(2, 4, 8))
    assert sizes == [3, 3, 3, 3, 2, 2]


@pytest.mark.parametrize(
    ("batch", "rows"), [((1, 8, 32), 32), ((1, 1, 2), 2), ((6, 8, 9), 9), ((1, 1, 1), None)]
)
def test_rows_to_test_with(project, batch, rows):
    sizes = independence_sizes({"n": 8, "m": 5}, project.dims(n=batch)["n"])
    assert sizes == (None if rows is None else {"n": rows, "m": 5})


def test_tiled_rows_become_distinct_with_values_of_the_sample(project):
    ids = np.int64([[5, 6, 7]] * 3)
    floats = np.float32([2.0] * 3)
    inputs = (project.tensor("ids", "n", 3, dtype="int64"), project.tensor("x", "n"))
    rows = distinct_rows({"ids": ids, "x": floats}, inputs)
    assert rows["ids"].tolist() == [[5, 6, 7], [7, 5, 6], [6, 7, 5]]
    assert len(set(rows["x"].tolist())) == 3
    assert (ids == [5, 6, 7]).all()


def test_rows_that_differ_are_left_alone(project):
    x = np.float32([[1, 2], [3, 4], [1, 2]])
    rows = distinct_rows({"x": x}, (project.tensor("x", "n", 2),))["x"]
    assert rows[:2].tolist() == x[:2].tolist()
    assert rows[2].tolist() == [2.25, 1.125]


@pytest.mark.torch
@pytest.mark.parametrize(
    "forward",
    [
        pytest.param("return x - x.mean(0, keepdim=True)", id="mean-over-the-batch"),
        pytest.param("return 1e-7 * (x - x.mean(0, keepdim=True))", id="below-the-tolerance"),
    ],
)
def test_an_export_with_a_batch_dimension_is_checked(project, forward):
    project.net(forward)
    with pytest.raises(ParityError, match="output 'y' depends on the other rows of the batch"):
        project.run(batch_dim="batch")


@pytest.mark.torch
def test_an_export_without_a_batch_dimension_may_mix_rows(project):
    project.net("return x - x.mean(0, keepdim=True)")
    assert project.run().outputs[0].shape == ("batch", 4)


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        pytest.param("fp32", np.zeros((4, 3), np.float32), id="zeros"),
        pytest.param("int64", np.ones((4, 3), np.int64), id="equal-ids"),
        pytest.param("int64", np.full((4,), 7, np.int64), id="one-number-a-row"),
        pytest.param("bool", np.ones((4, 3), bool), id="all-true"),
    ],
)
def test_rows_of_equal_values_become_distinct_too(dtype, rows):
    shape = ("batch", 3) if rows.ndim > 1 else ("batch",)
    tensor = TensorSpec(name="x", dtype=DataType.parse(dtype), shape=shape)
    made = distinct_rows({"x": rows}, (tensor,))["x"]
    assert made.dtype == rows.dtype
    assert not (made == made[0]).all()
    if made.dtype.kind == "i":
        assert made.min() >= 0
        assert made.max() == rows.max()
