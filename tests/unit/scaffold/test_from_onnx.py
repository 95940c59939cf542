"""What is read off an ONNX file."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit.errors import ExportError
from triton_toolkit.scaffold.files import write_project
from triton_toolkit.scaffold.from_onnx import onnx_project
from triton_toolkit.spec.load import load_project


@pytest.fixture
def describe(tmp_path):
    """Return a function that writes an ONNX file with one Identity an input, and loads its spec."""

    def load(*pairs):
        inputs = [
            helper.make_tensor_value_info(f"in{i}", dtype, shape) for i, (dtype, shape, _) in enumerate(pairs)
        ]
        outputs = [
            helper.make_tensor_value_info(f"out{i}", dtype, shape)
            for i, (dtype, _, shape) in enumerate(pairs)
        ]
        nodes = [helper.make_node("Identity", [f"in{i}"], [f"out{i}"]) for i in range(len(pairs))]
        graph = helper.make_graph(nodes, "g", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / "net v1.onnx")
        write_project(tmp_path / "project", onnx_project(tmp_path / "net v1.onnx", tmp_path / "project"))
        return load_project(tmp_path / "project" / "tt.yaml").model("net_v1")

    return load


FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


def test_the_file_is_named_from_the_projects_folder(describe):
    assert describe((FLOAT, ["n", 3], ["n", 3])).source == "../net v1.onnx"


def test_named_dimensions_keep_their_names(describe):
    model = describe((FLOAT, ["batch_size", "seq len", 4], ["batch_size", "seq len", 4]))
    assert model.inputs["in0"].shape == ["batch_size", "seq len", 4]
    assert list(model.dims) == ["batch_size", "seq len"]
    assert model.batch_dim == "batch_size"


def test_unnamed_dimensions_are_called_after_tensor_and_axis_and_the_first_is_the_batch(describe):
    model = describe((FLOAT, [None, 3, None], [None, 3, None]), (INT64, [None], [None]))
    assert [tensor.shape for tensor in model.inputs.values()] == [["batch", 3, "in0_2"], ["batch"]]
    assert model.outputs["out0"].shape == ["batch", 3, "out0_2"]
    assert list(model.dims) == ["batch", "in0_2"]


def test_an_unnamed_output_takes_the_batchs_name(describe):
    assert describe((FLOAT, ["n", 3], [None, 3])).outputs["out0"].shape == ["n", 3]


def test_types_are_read(describe):
    model = describe((STRING, ["n"], ["n"]), (INT64, ["n"], ["n"]))
    assert [tensor.dtype for tensor in model.inputs.values()] == ["bytes", "int64"]


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(FLOAT, [1, 3], [1, 3])], "the file fixes the first dimension of input in0 at 1"),
        ([(FLOAT, ["n", 3], ["m", 3])], "the file calls its first dimensions by several names"),
        (
            [(FLOAT, ["n", 3], ["n", 3]), (FLOAT, ["m"], ["n"])],
            "the file calls its first dimensions by several names",
        ),
        (
            [(FLOAT, ["n", 3], ["n", 3]), (FLOAT, [4], [4])],
            "the file fixes the first dimension of input in1 at 4",
        ),
        ([(FLOAT, ["n", 3], ["n", 3]), (FLOAT, [], [])], "input in1 is a scalar, without a dimension for"),
        ([(FLOAT, ["n", 3], [1, 3])], "the file fixes the first dimension of output out0 at 1"),
    ],
    ids=["fixed", "another-output", "another-input", "a-fixed-input", "a-scalar", "a-fixed-output"],
)
def test_without_a_common_first_dimension_there_is_no_batch_and_the_file_says_why(
    describe, tmp_path, pairs, reason
):
    assert describe(*pairs).batch_dim is None
    text = (tmp_path / "project" / "tt.yaml").read_text()
    assert f"# Triton will not batch this model (max_batch_size 0): {reason}" in text


def test_a_model_that_is_batched_has_no_such_comment(describe, tmp_path):
    describe((FLOAT, ["n", 3], ["n", 3]))
    assert "will not batch" not in (tmp_path / "project" / "tt.yaml").read_text()


def test_output_shapes_that_the_file_lacks_are_inferred(describe):
    model = describe((FLOAT, ["n", 3], None), (INT64, ["n", "seq"], None))
    assert [tensor.shape for tensor in model.outputs.values()] == [["n", 3], ["n", "seq"]]
    assert model.batch_dim == "n"


def test_what_is_no_onnx_file_is_told(tmp_path):
    (tmp_path / "x.onnx").write_bytes(b"not a model")
    with pytest.raises(ExportError, match="not an ONNX file"):
        onnx_project(tmp_path / "x.onnx", tmp_path)
