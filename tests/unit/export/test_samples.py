import numpy as np
import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.samples import InputMaker, SampleFunction, random_arrays


def maker(project, inputs, function=None, **dims):
    ranges = project.dims(**dims)
    sample = None if function is None else SampleFunction("nets:sample", function, ranges, project.files)
    return InputMaker(inputs, ranges, sample)


def test_random_arrays_depend_on_name_and_sizes_only(project):
    inputs = (project.tensor("a", "n", 3), project.tensor("b", "n", 3))
    once, again = random_arrays(inputs, {"n": 2}), random_arrays(inputs[::-1], {"n": 2})
    assert np.array_equal(once["a"], again["a"])
    assert not np.array_equal(once["a"], once["b"])
    assert once["a"].shape == (2, 3)
    assert once["a"].dtype == np.float32


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64", "uint16"])
def test_random_integers_are_legal_indices_of_any_table(project, dtype):
    array = random_arrays((project.tensor("a", 100, dtype=dtype),), {})["a"]
    assert str(array.dtype) == dtype
    assert set(array.tolist()) == {0, 1}


def test_random_bytes_are_bytes(project):
    array = random_arrays((project.tensor("a", 50, dtype="bytes"),), {})["a"]
    assert set(array.tolist()) == {b"0", b"1"}


def test_a_sample_is_tiled_and_cropped_along_dynamic_dimensions(project):
    x = np.arange(6, dtype=np.int64).reshape(2, 3)
    make = maker(
        project, (project.tensor("x", "n", "m", dtype="int64"),), lambda: {"x": x}, n=(1, 2, 9), m=(1, 3, 9)
    )
    assert make.at({"n": 3, "m": 2})["x"].tolist() == [[0, 1], [3, 4], [0, 1]]
    assert make.at({"n": 1, "m": 5})["x"].tolist() == [[0, 1, 2, 0, 1]]


def test_a_sample_that_takes_sizes_is_called_for_each(project):
    make = maker(
        project,
        (project.tensor("x", "n", "m"),),
        lambda n: {"x": np.full((n, 2), n, np.float32)},
        n=(1, 2, 9),
        m=(1, 2, 9),
    )
    assert make.at({"n": 4, "m": 3})["x"].tolist() == [[4.0] * 3] * 4


def test_a_sample_that_takes_any_sizes_gets_all(project):
    def sample(**sizes):
        return {"x": np.ones((sizes["n"], sizes["m"]), np.float32)}

    make = maker(project, (project.tensor("x", "n", "m"),), sample, n=(1, 2, 9), m=(1, 2, 9))
    assert make.at({"n": 4, "m": 3})["x"].shape == (4, 3)


@pytest.mark.parametrize(
    ("rows", "golden"), [pytest.param(3, 3, id="its-own"), pytest.param(12, 9, id="cropped-to-the-range")]
)
def test_golden_sizes_are_those_of_the_sample(project, rows, golden):
    x = np.zeros((rows, 1), np.float32)
    make = maker(project, (project.tensor("x", "n", 1),), lambda: {"x": x}, n=(1, 4, 9))
    assert make.golden_sizes("n") == {"n": golden}


def test_golden_sizes_without_a_sample_are_two_rows_at_the_commonest_sizes(project):
    make = maker(project, (project.tensor("x", "n", "m"),), n=(1, 8, 9), m=(1, 4, 9))
    assert make.golden_sizes("n") == {"n": 2, "m": 4}
    assert make.golden_sizes(None) == {"n": 8, "m": 4}


def test_text_and_lists_become_bytes(project):
    make = maker(project, (project.tensor("t", "n", dtype="bytes"),), lambda: {"t": ["a", "ż"]}, n=(1, 2, 4))
    array = make.at({"n": 2})["t"]
    assert array.dtype == object
    assert array.tolist() == [b"a", "ż".encode()]


GOOD = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        pytest.param(lambda: GOOD, "gives an object of type ndarray, not a mapping", id="no-mapping"),
        pytest.param(lambda: {}, "the sample lacks input 'x'", id="missing"),
        pytest.param(lambda: {"x": GOOD, "mask": GOOD}, "has 'mask', which is no input", id="unknown"),
        pytest.param(lambda: {"x": GOOD, "x1": GOOD}, "did you mean 'x'?", id="near"),
        pytest.param(lambda: {"x": GOOD.astype("f8")}, "x has type float64, the spec says fp32", id="dtype"),
        pytest.param(lambda: {"x": GOOD[0]}, "x has shape [3], the spec says ['n', 3]", id="rank"),
        pytest.param(
            lambda: {"x": GOOD[:, :2]}, "x has shape [2, 2], the spec says ['n', 3]", id="fixed-size"
        ),
        pytest.param(lambda: {"x": GOOD[:0]}, "x has shape [0, 3]", id="empty"),
        pytest.param(lambda: {"x": [[1.0], [1.0, 2.0]]}, "nets:sample: x is not an array", id="ragged"),
        pytest.param(lambda: {"x": [object()]}, "holds values of type object", id="objects"),
        pytest.param(
            lambda size: {"x": GOOD}, "needs a parameter 'size', which is no dimension", id="parameter"
        ),
        pytest.param(lambda: 1 / 0, "nets:sample raised: ZeroDivisionError", id="raises"),
    ],
)
def test_a_wrong_sample_is_refused(project, sample, message):
    with pytest.raises(ExportError) as caught:
        maker(project, (project.tensor("x", "n", 3),), sample, n=(1, 2, 4))
    assert message in caught.value.message


def test_one_dimension_with_two_sizes_is_refused(project):
    inputs = (project.tensor("a", "n"), project.tensor("b", "n"))
    with pytest.raises(ExportError, match="'n' is 2 in a but 3 in b"):
        maker(project, inputs, lambda: {"a": GOOD[:, 0], "b": GOOD[0]}, n=(1, 2, 4))


@pytest.mark.parametrize(
    ("value", "names", "flat"),
    [
        pytest.param({"past": [{"key": 1}]}, (), {"past.0.key": 1}, id="list-of-dicts"),
        pytest.param({"x": [[1, 2], [3, 4]]}, (), {"x": [[1, 2], [3, 4]]}, id="lists-are-an-array"),
        pytest.param(
            {"x": [np.int64([1]), np.int64([2])]}, ["x"], {"x": [[1], [2]]}, id="stacked-as-declared"
        ),
        pytest.param(
            {"x": [[1], [2, 3]]}, ["x.0", "x.1"], {"x.0": [1], "x.1": [2, 3]}, id="parts-as-declared"
        ),
        pytest.param(
            {"x": ([1], ([2], [3]))}, ["x.1.0"], {"x.0": [1], "x.1.0": [2], "x.1.1": [3]}, id="deeper"
        ),
        pytest.param({"x": [1], "mask": None, "past": {"a": None}}, (), {"x": [1]}, id="optional-left-out"),
    ],
)
def test_nested_samples_are_flattened_to_the_names_of_the_inputs(project, value, names, flat):
    sample = SampleFunction("nets:sample", lambda: value, {}, project.files, names)
    assert {name: array.tolist() for name, array in sample.call({}).items()} == flat
