"""Failures that people reported of ONNX files that came from elsewhere, each with its report."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit.errors import ExportError, ParityError

FLOAT = TensorProto.FLOAT


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(project, nodes, inputs, outputs, *, weights=(), domains=(), functions=(), inner=(), ir_version=9):
    main = helper.make_graph(nodes, "main", inputs, outputs, list(weights), value_info=list(inner))
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(*each) for each in domains)]
    model = helper.make_model(main, opset_imports=opsets, ir_version=ir_version, functions=functions)
    onnx.save(model, project.root / "net.onnx")


def run(project, **changes):
    settings = {"kind": "onnx", "source": "net.onnx", "inputs": (), "outputs": {}}
    return project.run(**(settings | {"dims": project.dims(n=(1, 4, 8))} | changes))


def identity(project, **changes):
    save(
        project, [helper.make_node("Relu", ["x"], ["y"])], [value("x", ["n"])], [value("y", ["n"])], **changes
    )


def test_reshapes_with_a_constant_batch_are_named(project):
    """NVlabs/GR00T-WholeBodyControl#111."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["a"], name="fold"),
        helper.make_node("Reshape", ["a", "shape"], ["y"], name="again"),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [1, 4])
    save(project, nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights=[shape])
    with pytest.raises(ExportError) as caught:
        run(project, batch_dim="n")
    text = caught.value.message
    assert "'n' is declared dynamic, but fails at n=2; n=4; n=5; n=8 and is right at n=1" in text
    assert (
        "The size of 'n' stands in the graph as a constant: node 'fold' (Reshape) has the constant [1, 4]; "
        "node 'again' (Reshape) has the constant [1, 4]" in text
    )


def test_weights_listed_as_inputs_are_no_inputs(project):
    """onnxsim/onnxsim#261."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    save(project, nodes, [value("x", ["n", 4]), value("w", [4])], [value("y", ["n", 4])], weights=[weight])
    assert [tensor.name for tensor in run(project).inputs] == ["x"]


def test_a_file_whose_ir_is_newer_than_the_release_names_the_first_release_that_reads_it(project):
    """microsoft/onnxruntime#20559."""
    identity(project, ir_version=10)
    with pytest.raises(ExportError, match="has ONNX IR version 10, the release reads at most 9") as caught:
        run(project, ir_version=9)
    assert 'set release: "' in caught.value.hint


@pytest.mark.parametrize(
    ("domain", "version", "message"),
    [
        pytest.param(
            "com.microsoft", 3, "has opset 3 of the domain 'com.microsoft', of which every ONNX Runtime has 1"
        ),
        pytest.param("ai.onnx.ml", 99, "has opset 99 of the domain 'ai.onnx.ml', the release runs at most 4"),
    ],
)
def test_the_opset_of_every_domain_is_checked(project, domain, version, message):
    """ELS-RD/transformer-deploy#82."""
    identity(project, domains=[(domain, version)])
    with pytest.raises(ExportError, match=message):
        run(project, opset=20, ir_version=9)


def test_operators_that_onnx_runtime_lacks_are_named(project):
    nodes = [helper.make_node("Tokenize", ["x"], ["y"], domain="acme")]
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])], domains=[("acme", 1)])
    with pytest.raises(
        ExportError, match="operators of the domain 'acme', which ONNX Runtime lacks: Tokenize"
    ):
        run(project)


def test_a_file_that_was_optimised_for_one_processor_is_refused(project):
    identity(project)
    options = onnxruntime.SessionOptions()
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    weight = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    save(project, nodes, [value("x", ["n", 8, 5, 5])], [value("y", ["n", 8, 3, 3])], weights=[weight])
    options.optimized_model_filepath = str(project.root / "tuned.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(project.root / "net.onnx", options, providers=["CPUExecutionProvider"])
    with pytest.raises(ExportError, match=r"optimised by ONNX Runtime for one kind of processor.*nchwc"):
        run(project, source="tuned.onnx", opset=25, ir_version=13)


def test_operators_of_onnx_runtimes_own_are_a_note(project):
    nodes = [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")]
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])], domains=[("com.microsoft", 1)])
    assert (
        run(project).notes[0].startswith("net.onnx has operators of ONNX Runtime's own (Gelu): TensorRT has")
    )


def test_functions_are_written_out_as_nodes(project):
    """NVIDIA/TensorRT#3934."""
    twice = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 18)],
    )
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="own")]
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])], domains=[("own", 1)], functions=[twice])
    report = run(project)
    written = onnx.load(project.out / "model.onnx")
    assert (len(written.functions), [node.op_type for node in written.graph.node]) == (0, ["Add"])
    assert report.onnx["opset"] == {"": 18}
    assert report.notes[0].startswith("its 1 functions were written out")


def test_a_wrong_optimization_of_onnx_runtime_is_told_with_its_first_node(project):
    """microsoft/onnxruntime#20951."""
    # The file claims a shape of an inner value that it does not have; the optimizer believes it.
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"], name="find"),
        helper.make_node("Shape", ["found"], ["shape"], name="measure"),
        helper.make_node("Cast", ["shape"], ["size"], to=FLOAT, name="cast"),
        helper.make_node("ReduceMax", ["size"], ["largest"], keepdims=0, name="largest"),
        helper.make_node("Add", ["x", "largest"], ["y"], name="add"),
    ]
    wrong = value("found", [1, 2], TensorProto.INT64)
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])], inner=[wrong])
    with pytest.raises(ParityError) as caught:
        run(project)
    text = caught.value.message
    assert (
        "Without ONNX Runtime's graph optimizations it is right, so one of those is at fault, first in"
        in text
    )
    assert "first in node 'measure' (Shape): gives 2 at [1], expected" in text
    assert "optimization: {graph: {level: 2}}" in text


def test_a_batch_that_the_file_fixes_is_not_declared_away(project):
    """triton-inference-server/server#1889."""
    save(project, [helper.make_node("Relu", ["x"], ["y"])], [value("x", [1, 4])], [value("y", [1, 4])])
    with pytest.raises(ExportError, match=r"is fp32 \[1, 4\], the spec says fp32 \['n', 4\]") as caught:
        run(project, inputs=(project.tensor("x", "n", 4),), batch_dim="n")
    assert caught.value.hint == "a dimension that the file fixes cannot be declared dynamic"


def test_an_output_that_does_not_start_with_the_batch_is_named(project):
    """triton-inference-server/server#7462."""
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0)]
    save(project, nodes, [value("x", ["n", 4])], [value("y", ["n", 4]), value("s", [])])
    with pytest.raises(ExportError, match=r"output 's' has shape \[\], which does not start with the batch"):
        run(project, batch_dim="n")


def test_counted_names_are_a_note(project):
    """triton-inference-server/tutorials#137."""
    save(project, [helper.make_node("Relu", ["x"], ["307"])], [value("x", ["n"])], [value("307", ["n"])])
    assert run(project).notes == (
        "output '307' is a name that an exporter counted up, and another export may count otherwise: give "
        "output_names when exporting",
    )


def test_a_file_exported_in_training_mode_is_refused(project):
    nodes = [helper.make_node("Dropout", ["x", "", "train"], ["y"], name="drop")]
    train = numpy_helper.from_array(np.array(True), "train")
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])], weights=[train])
    with pytest.raises(ExportError, match=r"exported in training mode: node 'drop' \(Dropout\)"):
        run(project)


def test_slight_noise_is_refused_too(project):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], scale=1e-6, name="draw"),
        helper.make_node("Add", ["x", "noise"], ["y"]),
    ]
    save(project, nodes, [value("x", ["n"])], [value("y", ["n"])])
    with pytest.raises(ExportError, match=r"random numbers are drawn by node 'draw' \(RandomNormalLike\)"):
        run(project)
