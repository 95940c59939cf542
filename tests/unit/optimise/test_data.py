import numpy as np
import pytest

from triton_toolkit.core.compare import default_tolerances
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.user_code import functions_of
from triton_toolkit.optimise.data import load_data, split
from triton_toolkit.optimise.job import OptimiseJob

INPUT = TensorSpec.from_dict({"name": "x", "dtype": "fp32", "shape": ["batch", 2]})


def batches(count, rows=2):
    return [{"x": np.full((rows, 2), index, np.float32)} for index in range(count)]


@pytest.fixture
def load(tmp_path, request):
    """Return a function that loads data with a project's module of the given text."""

    def load(text="", precision="int8", **changes):
        module = f"data_{abs(hash(request.node.name)) % 10**8}"
        (tmp_path / f"{module}.py").write_text("import numpy as np\n" + text)
        names = {key: f"{module}:{value}" for key, value in changes.items()}
        job = OptimiseJob(
            root=tmp_path,
            name="m",
            variant="v",
            precision=precision,
            exported=tmp_path,
            inputs=(INPUT,),
            outputs=(INPUT,),
            dims={"batch": Dim(name="batch", min=1, opt=2, max=4)},
            batch_dim="batch",
            tolerances=default_tolerances("int8"),
            state=tmp_path / "state",
            **names,
        )
        files = ProjectFiles(tmp_path)
        with functions_of(files, python=None, trust=False) as functions:
            return load_data(job, files, functions)

    return load


def test_every_fourth_batch_is_held_out():
    fit, held_out = split(batches(8), batched=True)
    assert [batch["x"][0, 0] for batch in held_out] == [3, 7]
    assert [batch["x"][0, 0] for batch in fit] == [0, 1, 2, 4, 5, 6]


def test_a_few_batches_are_split_by_rows():
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    fit, held_out = split([{"x": rows}], batched=True)
    assert held_out[0]["x"][:, 0].tolist() == [6, 14]
    assert fit[0]["x"][:, 0].tolist() == [0, 2, 4, 8, 10, 12]


@pytest.mark.parametrize(("rows", "batched"), [(3, True), (8, False)])
def test_what_cannot_be_split_serves_for_both(rows, batched):
    fit, held_out = split(batches(2, rows), batched=batched)
    assert len(fit) == len(held_out) == 2


def test_calibration_may_be_a_generator(load):
    text = "def give():\n    for n in range(4):\n        yield {'x': np.random.randn(16, 2).astype('f4')}\n"
    data = load(text, calibration="give")
    assert data.origin == "calibration"
    assert [len(data.fit), len(data.held_out), data.samples] == [3, 1, 64]


def test_32_samples_are_enough_a_quarter_of_them_is_held_out(load):
    text = "def give():\n    return [{'x': np.random.randn(8, 2).astype('f4')} for _ in range(4)]\n"
    data = load(text, calibration="give")
    assert [sum(len(batch["x"]) for batch in part) for part in (data.fit, data.held_out)] == [24, 8]


def test_31_samples_are_not(load):
    text = "def give():\n    return [{'x': np.random.randn(31, 2).astype('f4')}]\n"
    with pytest.raises(ExportError, match="calibration has 31 samples; INT8 needs at least 32"):
        load(text, calibration="give")


def test_a_generator_without_an_end_is_read_as_far_as_it_helps(load):
    text = "def give():\n    while True:\n        yield {'x': np.random.randn(1024, 2).astype('f4')}\n"
    data = load(text, calibration="give")
    assert data.cut
    assert data.samples == 4096


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_nan_is_refused_before_anything_is_made_whatever_the_precision(load, precision):
    text = "def give():\n    x = np.random.randn(64, 2).astype('f4'); x[3, 1] = np.nan; return [{'x': x}]\n"
    with pytest.raises(ExportError, match=r"batch 0 of .*:give: x holds nan at \[3, 1\]"):
        load(text, precision, calibration="give")


def test_without_functions_inputs_are_random_at_every_size_of_the_proof(load):
    data = load()
    assert data.origin == "random"
    assert sorted({len(batch["x"]) for batch in data.fit}) == [1, 2, 3, 4]


def test_without_calibration_the_sample_serves(load):
    data = load("def sample():\n    return {'x': np.full((2, 2), 7, np.float32)}\n", sample="sample")
    assert data.origin == "sample"
    assert {float(batch["x"].max()) for batch in data.fit} == {7.0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "gives an object of type int, not batches"),
        ("return []", "gives no batch"),
        ("return [3]", "gives an object of type int, not a mapping"),
        ("return [{'y': np.ones((2, 2), np.float32)}]", "batch 0 of .* has 'y', which is no input"),
        ("return [{'x': np.ones((2, 2))}]", "x has type float64, the spec says fp32"),
        ("yield {'x': np.ones((2, 2), np.float32)}\n    1 / 0", "raised: ZeroDivisionError"),
    ],
)
def test_data_that_does_not_fit_is_refused(load, body, message):
    with pytest.raises(ExportError, match=message):
        load(f"def give():\n    {body}\n", calibration="give")


@pytest.fixture
def of_lengths(tmp_path):
    """Return a function that loads data of a model with a second dimension, ``seq``; it may have a sample."""
    (tmp_path / "lengths.py").write_text(
        "import numpy as np\ndef give():\n"
        "    return [{'x': np.random.randn(8, 5).astype('f4')} for _ in range(8)]\n"
        "def sized(batch, seq):\n    return {'x': np.full((batch, seq), 7, np.float32)}\n"
        "def fixed(batch):\n    return {'x': np.full((batch, 5), 7, np.float32)}\n"
    )
    x = TensorSpec.from_dict({"name": "x", "dtype": "fp32", "shape": ["batch", "seq"]})

    def load(sample=None):
        job = OptimiseJob(
            root=tmp_path,
            name="m",
            variant="v",
            precision="int8",
            exported=tmp_path,
            inputs=(x,),
            outputs=(x,),
            dims={name: Dim(name=name, min=1, opt=5, max=64) for name in ("batch", "seq")},
            batch_dim="batch",
            tolerances=default_tolerances("int8"),
            sample=sample,
            calibration="lengths:give",
            state=tmp_path / "state",
        )
        files = ProjectFiles(tmp_path)
        with functions_of(files, python=None, trust=False) as functions:
            return load_data(job, files, functions)

    return load


@pytest.mark.parametrize("sample", [None, "lengths:fixed"])
def test_real_rows_are_also_taken_at_the_ends_of_the_other_dimensions(of_lengths, sample):
    """What is measured and judged at one length is accepted for all lengths that are declared."""
    data = of_lengths(sample)
    for part in (data.fit, data.held_out):
        assert [batch["x"].shape for batch in part[-2:]] == [(4, 1), (4, 64)]
        np.testing.assert_array_equal(part[-1]["x"][:, 60:], part[0]["x"][:4, :4])


def test_a_sample_that_takes_the_sizes_makes_those_inputs(of_lengths):
    """Cut rows may not be legal, such as edges of nodes that are cut away."""
    data = of_lengths("lengths:sized")
    for part in (data.fit, data.held_out):
        assert [batch["x"].shape for batch in part[-2:]] == [(4, 1), (4, 64)]
        assert {float(value) for batch in part[-2:] for value in batch["x"].flat} == {7.0}
