"""Dimensions that are declared dynamic and are not: the ways in which that comes out."""

import numpy as np
import onnx
import pytest

from triton_toolkit.core.compare import Tolerance, Tolerances
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.parity import blame

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("failed", "right", "blamed"),
    [
        pytest.param([{"b": 1, "s": 4}], [{"b": 2, "s": 4}], ["b"], id="one"),
        pytest.param([{"b": 1, "s": 4}], [{"b": 2, "s": 8}], [], id="a-combination"),
        pytest.param([{"b": 1, "s": 4}], [{"b": 2, "s": 4}, {"b": 1, "s": 8}], ["b", "s"], id="both"),
    ],
)
def test_blame_is_on_dimensions_that_alone_make_the_difference(failed, right, blamed):
    assert blame(failed, right) == blamed


def test_a_forward_that_fails_at_some_sizes_names_them(project):
    project.net("return self.linear(x).view(4, 3)")
    with pytest.raises(ExportError) as caught:
        project.run()
    text = caught.value.message
    assert text.startswith("forward fails at batch=2: RuntimeError: shape '[4, 3]' is invalid")
    assert "(nets.py:13, in forward)" in text
    assert (
        "'batch' is declared dynamic, but fails at batch=1; batch=2; batch=5; batch=8 and is right at batch=4"
        in text
    )


def test_a_forward_that_fails_at_every_size_is_just_broken(project):
    project.net("return self.lniear(x)")
    with pytest.raises(ExportError) as caught:
        project.run()
    assert "has no attribute 'lniear' (nets.py:13" in caught.value.message
    assert "declared dynamic" not in caught.value.message


def test_a_constant_that_only_shows_in_onnx_runtime_names_the_node_and_its_line(project):
    project.net("rows = 2 if torch.compiler.is_exporting() else x.shape[0]\nreturn x[torch.arange(rows)]")
    with pytest.raises(ParityError) as caught:
        project.run(dims=project.dims(batch=(1, 1, 8)))
    text = caught.value.message
    assert text.startswith("at batch=1 ONNX Runtime fails in node '/GatherND' ")
    assert "(GatherND, made from nets.py:14, in forward): " in text
    assert (
        "'batch' is declared dynamic, but fails at batch=1; batch=5; batch=8 and is right at batch=2" in text
    )


def test_a_branch_on_a_size_differs_at_the_other_side(project):
    project.net("return self.linear(x) if x.shape[0] < 5 else self.linear(x) * 2")
    with pytest.raises(ParityError) as caught:
        project.run()
    text = caught.value.message
    assert "at batch=8 the export differs from the model: output 'y' differs in 24 of 24 elements" in text
    assert "(tolerance 0.0001 + 0.001 x |expected|)" in text
    assert "fails at batch=5; batch=7; batch=8 and is right at batch=1; batch=2; batch=4" in text
    assert "what was exported needs batch < 5 (nets.py:13, in forward)" in text


def test_a_table_that_is_too_short_for_the_range_is_the_models_own_failure(project):
    project.net("return self.places(torch.arange(x.shape[0]))", init="self.places = nn.Embedding(6, 4)")
    with pytest.raises(ExportError) as caught:
        project.run()
    assert type(caught.value) is ExportError
    text = caught.value.message
    assert text.startswith(
        "forward fails at batch=8: IndexError: index out of range in self (nets.py:13, in forward)"
    )
    assert "fails at batch=8 and is right at batch=1; batch=2; batch=4; batch=5" in text


def test_only_the_dimension_at_fault_is_blamed(project):
    project.net("return x[:, :4].sum(1) if x.shape[1] <= 4 else x.sum(1) * 3")
    with pytest.raises(ParityError) as caught:
        project.run(
            inputs=(project.tensor("x", "batch", "seq"),),
            dims=project.dims(batch=(1, 3, 5), seq=(2, 4, 6)),
        )
    assert ". 'seq' is declared dynamic" in caught.value.message


def test_a_size_that_the_exporter_wrongly_writes_into_the_file_is_corrected(project):
    # The loop that a GRU becomes gives every length, but its output is annotated with the example's.
    project.net("return self.gru(x)[0]", init="self.gru = nn.GRU(4, 3, batch_first=True)")
    report = project.run(
        inputs=(project.tensor("x", "batch", "seq", 4),),
        dims=project.dims(batch=(1, 2, 3), seq=(1, 4, 6)),
        outputs={"y": ("fp32", ["batch", "seq", 3])},
        batch_dim="batch",
    )
    assert report.outputs[0].shape == ("batch", "seq", 3)
    written = onnx.load(project.out / "model.onnx").graph.output[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in written] == ["batch", "seq", 3]


def test_rounding_is_told_from_a_wrong_size(project):
    project.net("return self.linear(x.half())", init="self.linear = nn.Linear(4, 64).half()")
    with pytest.raises(ParityError, match="of the output's largest value") as caught:
        project.run(tolerances=Tolerances(default=Tolerance(absolute=0, relative=0)))
    assert "is declared dynamic" not in caught.value.message
    assert "raise the model's tolerance" in caught.value.hint


def test_every_size_is_in_the_report_with_its_figures(project):
    project.net()
    parity = project.run().parity
    assert [entry["sizes"]["batch"] for entry in parity] == [4, 1, 8, 2, 5]
    for entry in parity:
        assert entry["outputs"][0]["output"] == "y"
        assert 0 <= entry["outputs"][0]["max_absolute"] < 1e-5


def test_the_golden_outputs_are_the_originals(project):
    from triton_toolkit.repository.passport import read_samples

    project.net("return x * 3")
    project.run(batch_dim="batch")
    samples = read_samples(project.out)
    assert samples.inputs["x"].shape == (2, 4)
    assert np.array_equal(samples.outputs["y"], samples.inputs["x"] * 3)


def test_a_squeeze_that_takes_a_batch_of_one_away_is_told(project):
    project.net("return self.linear(x).sum(1, keepdim=True).squeeze()")
    with pytest.raises(ExportError) as caught:
        project.run()
    assert "batch=1" in caught.value.message
