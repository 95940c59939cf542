import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit.errors import ExportError
from triton_toolkit.export.clean import lower_ir_version, strip_traces
from triton_toolkit.export.graph import (
    free_output_sizes,
    graph_inputs,
    graph_outputs,
    load_graph,
    node_sources,
    rename_values,
    unused_inputs,
)

FLOAT = TensorProto.FLOAT


def value(name, shape=("n",), kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def branching_model(opset=18):
    """y = x + 1 where any element is positive, else x; the branches see x from outside."""
    one = helper.make_tensor("one", FLOAT, [1], [1.0])
    then = helper.make_graph([helper.make_node("Add", ["x", "one"], ["y"])], "then", [], [value("y")], [one])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "else", [], [value("z")])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["out"], name="branch", then_branch=then, else_branch=other),
    ]
    zero = helper.make_tensor("zero", FLOAT, [], [0.0])
    graph = helper.make_graph(nodes, "main", [value("x"), value("spare")], [value("out")], [zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def branch(model, name):
    return next(attribute.g for attribute in model.graph.node[2].attribute if attribute.name == name)


def run(model, **feeds):
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(model).run(None, feeds)


def test_renaming_reaches_subgraphs_and_moves_what_is_in_the_way():
    model = branching_model()
    x = np.float32([1, -1])
    before = run(model, x=x, spare=x)
    rename_values(model, {"x": "image", "out": "y"})
    onnx.checker.check_model(model, full_check=True)
    assert [v.name for v in model.graph.input] == ["image", "spare"]
    assert [v.name for v in model.graph.output] == ["y"]
    assert np.array_equal(run(model, image=x, spare=x)[0], before[0])
    assert branch(model, "then_branch").output[0].name == "y_1"


def test_renaming_may_swap_names():
    model = branching_model()
    rename_values(model, {"x": "spare", "spare": "x"})
    onnx.checker.check_model(model, full_check=True)
    assert run(model, spare=np.float32([1]), x=np.float32([5]))[0].tolist() == [2.0]


def test_stripping_leaves_no_trace_anywhere():
    model = branching_model()
    secret = "/home/somebody/model.py"
    inner = branch(model, "then_branch")
    for message in (model, model.graph, inner, inner.node[0], model.graph.node[0], model.graph.input[0]):
        message.doc_string = secret
        message.metadata_props.add(key="trace", value=secret)
    for tensor in (inner.initializer[0], model.graph.initializer[0]):
        tensor.doc_string = secret
        tensor.metadata_props.add(key="trace", value=secret)
    model.graph.node[0].attribute[0].doc_string = secret
    model.functions.add(name="f", domain="d", doc_string=secret).metadata_props.add(key="t", value=secret)
    assert secret.encode() in model.SerializeToString()
    strip_traces(model)
    assert secret.encode() not in model.SerializeToString()
    assert model.graph.node[2].name == "branch"


def test_stack_traces_are_read_before_they_are_stripped():
    model = branching_model()
    model.graph.node[2].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File ...")
    assert node_sources(model) == {"branch": "File ..."}


def test_output_sizes_that_are_wrong_are_freed_and_inner_ones_dropped():
    model = branching_model()
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 3
    model.graph.value_info.append(value("top", []))
    fixed, free = graph_outputs(model)[0], graph_outputs(branching_model())[0]
    assert not free_output_sizes(model, [fixed])
    assert len(model.graph.value_info) == 1
    assert free_output_sizes(model, [free])
    assert graph_outputs(model)[0].shape == ("n",)
    assert len(model.graph.value_info) == 0


def test_unused_inputs_are_found():
    assert unused_inputs(branching_model()) == ["spare"]


@pytest.mark.parametrize(("highest", "written"), [(8, 8), (9, 9), (10, 10), (13, 10)])
def test_ir_version_is_lowered_and_never_raised(highest, written):
    model = branching_model()
    lower_ir_version(model, highest)
    assert model.ir_version == written


def test_an_opset_that_needs_a_newer_ir_version_is_refused():
    with pytest.raises(ExportError, match="opset 21 needs ONNX IR version 10, the release reads at most 9"):
        lower_ir_version(branching_model(opset=21), 9)


def test_tensors_are_read_with_names_for_all_dynamic_dimensions():
    model = branching_model()
    model.graph.output.append(value("extra", [None, 3, "seq"], TensorProto.INT64))
    extra = graph_outputs(model)[1]
    assert extra.shape == ("extra_0", 3, "seq")
    assert extra.dtype.spec == "int64"


def test_inputs_with_an_initializer_are_weights():
    model = branching_model()
    model.graph.input.append(value("zero", []))
    assert [tensor.name for tensor in graph_inputs(model)] == ["x", "spare"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        pytest.param(
            value("e", ["n"], TensorProto.BFLOAT16), "ONNX element type 16 cannot be", id="bfloat16"
        ),
        pytest.param(
            helper.make_tensor_sequence_value_info("e", FLOAT, None), "sequence_type", id="sequence"
        ),
        pytest.param(
            helper.make_tensor_value_info("e", FLOAT, None), "has no shape in the file", id="no-rank"
        ),
    ],
)
def test_outputs_that_triton_cannot_serve_are_refused(output, message):
    model = branching_model()
    model.graph.output.append(output)
    with pytest.raises(ExportError) as caught:
        graph_outputs(model)
    assert "output 'e'" in caught.value.message
    assert message in caught.value.message


@pytest.mark.parametrize("content", [b"not protobuf at all \xff\xff", b""])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ExportError, match="not an ONNX file"):
        load_graph(path)
