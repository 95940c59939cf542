import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.repository.passport import read_samples

FLOAT = TensorProto.FLOAT


def value(name, shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def save(project, nodes, inputs, outputs, *, weights=(), opset=18, ir_version=9, external=None):
    graph = helper.make_graph(nodes, "main", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    path = project.root / "net.onnx"
    kind = (
        {} if external is None else {"save_as_external_data": True, "location": external, "size_threshold": 0}
    )
    onnx.save(model, path, **kind)
    return path


def scaled(project, **changes):
    """y = 3 x, with x of shape [n, 4]."""
    nodes = [helper.make_node("Mul", ["x", "three"], ["y"])]
    weights = [numpy_helper.from_array(np.full(4, 3, np.float32), "three")]
    return save(project, nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights=weights, **changes)


def run(project, **changes):
    settings = {"kind": "onnx", "source": "net.onnx", "inputs": (), "outputs": {}, "dims": {}}
    return project.run(**(settings | changes))


def test_a_file_is_taken_unchanged_with_golden_outputs(project):
    path = scaled(project)
    report = run(project, dims=project.dims(n=(1, 4, 8)), batch_dim="n")
    assert (project.out / "model.onnx").read_bytes() == path.read_bytes()
    assert [tensor.shape for tensor in (*report.inputs, *report.outputs)] == [("n", 4), ("n", 4)]
    assert report.onnx == {"opset": {"": 18}, "ir_version": 9}
    assert [entry["sizes"]["n"] for entry in report.parity] == [4, 1, 8, 2, 5]
    assert report.dependencies == ["net.onnx"]
    samples = read_samples(project.out)
    assert np.array_equal(samples.outputs["y"], samples.inputs["x"] * 3)


def test_external_data_is_taken_along(project):
    (project.root / "weights").mkdir()
    scaled(project, external="weights/w.bin")
    report = run(project, dims=project.dims(n=(1, 4, 8)))
    assert (project.out / "weights/w.bin").read_bytes() == (project.root / "weights/w.bin").read_bytes()
    assert report.dependencies == ["net.onnx", "weights/w.bin"]


def test_external_data_that_is_missing_is_named(project):
    scaled(project, external="w.bin")
    (project.root / "w.bin").unlink()
    with pytest.raises(ExportError, match=r"external data 'w.bin' is missing"):
        run(project)


@pytest.mark.parametrize("location", ["../w.bin", "/etc/w.bin", "passport.json"])
def test_external_data_outside_of_the_folder_is_refused(project, location):
    path = scaled(project, external="w.bin")
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match="cannot be taken along"):
        run(project)


def test_a_file_outside_of_the_project_is_a_dependency_too(project, tmp_path_factory):
    path = scaled(project)
    moved = path.rename(tmp_path_factory.mktemp("store") / "net.onnx")
    report = run(project, source=str(moved), dims=project.dims(n=(1, 4, 8)))
    assert len(report.dependencies) == 1
    assert (project.root / report.dependencies[0]).resolve() == moved


def test_dimensions_take_the_names_of_the_spec(project):
    scaled(project)
    report = run(
        project,
        inputs=(project.tensor("x", "batch", 4),),
        outputs={"y": (None, ["batch", 4])},
        dims=project.dims(batch=(1, 4, 8)),
        batch_dim="batch",
    )
    assert report.outputs[0].shape == ("batch", 4)


def test_a_dimension_without_a_range_is_refused_with_what_to_add(project):
    scaled(project)
    with pytest.raises(ExportError, match="dimension 'n' of input 'x' is dynamic and has no range") as caught:
        run(project)
    assert "dims: {n: [1, 8, 32]}" in caught.value.hint


def test_a_dimension_without_a_range_takes_the_size_of_the_sample(project):
    scaled(project)
    project.write("import numpy as np\ndef sample(): return {'x': np.ones((3, 4), np.float32)}\n")
    report = run(project, sample="nets:sample")
    assert [entry["sizes"] for entry in report.parity] == [{"n": 3}]
    assert report.dims == project.dims(n=(3, 3, 3))


def test_strings_are_served_as_bytes(project):
    nodes = [helper.make_node("StringConcat", ["t", "t"], ["y"])]
    string = TensorProto.STRING
    save(project, nodes, [value("t", ["n"], string)], [value("y", ["n"], string)], opset=20)
    project.write("def sample(): return {'t': ['ż', 'b']}\n")
    run(project, dims=project.dims(n=(1, 2, 4)), sample="nets:sample", opset=20)
    samples = read_samples(project.out)
    assert samples.inputs["t"].tolist() == ["ż".encode(), b"b"]
    assert samples.outputs["y"].tolist() == ["żż".encode(), b"bb"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"source": "none.onnx"}, "none.onnx: no such file", id="missing"),
        pytest.param({"opset": 17}, "has opset 18, the release runs at most 17", id="opset"),
        pytest.param({"ir_version": 8}, "IR version 9, the release reads at most 8", id="ir-version"),
        pytest.param({"inputs": ("x1", "n", 4)}, "has no input 'x1'; did you mean 'x'?", id="near-input"),
        pytest.param(
            {"inputs": ("x", "n", "m")}, "is fp32 ['n', 4], the spec says fp32 ['n', 'm']", id="fixed"
        ),
        pytest.param({"inputs": ("x", "n")}, "is fp32 ['n', 4], the spec says fp32 ['n']", id="rank"),
        pytest.param({"outputs": {"z": (None, None)}}, "has no output 'z'", id="output"),
        pytest.param({"outputs": {"y": ("int64", None)}}, "the spec says int64 ['n', 4]", id="output-dtype"),
    ],
)
def test_a_file_that_is_not_what_the_spec_says_is_refused(project, changes, message):
    scaled(project)
    if "inputs" in changes:
        changes = changes | {"inputs": (project.tensor(*changes["inputs"]),)}
    with pytest.raises(ExportError) as caught:
        run(project, **({"dims": project.dims(n=(1, 4, 8), m=(1, 2, 4))} | changes))
    assert message in caught.value.message


def test_a_size_that_the_file_cannot_take_names_node_and_size(project):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="fix")]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2, 4])
    save(project, nodes, [value("x", ["n", 4])], [value("y", [2, 4])], weights=[shape])
    with pytest.raises(ExportError) as caught:
        run(project, dims=project.dims(n=(1, 2, 3)))
    assert "net.onnx fails at n=1 in node 'fix' (Reshape)" in caught.value.message
    assert "'n' is declared dynamic, but fails at n=1; n=3 and is right at n=2" in caught.value.message


@pytest.mark.parametrize("name", ["batch", "m"])
def test_a_batch_dimension_that_no_input_starts_with_is_refused(project, name):
    scaled(project)
    with pytest.raises(ExportError, match=rf"'x' has shape \['n', 4\], which does not start .* '{name}'"):
        run(project, dims=project.dims(n=(1, 4, 8), m=(1, 2, 3)), batch_dim=name)


def test_an_undeclared_input_is_named(project):
    nodes = [helper.make_node("Add", ["x", "bias"], ["y"])]
    save(project, nodes, [value("x", [4]), value("bias", [4])], [value("y", [4])])
    with pytest.raises(ExportError, match="has an input 'bias' that the spec does not declare"):
        run(project, inputs=(project.tensor("x", 4),))


def test_rows_that_depend_on_each_other_are_refused(project):
    nodes = [helper.make_node("CumSum", ["x", "zero"], ["y"])]
    zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
    save(project, nodes, [value("x", ["n", 4])], [value("y", ["n", 4])], weights=[zero])
    with pytest.raises(ParityError, match="depends on the order of the rows"):
        run(project, dims=project.dims(n=(1, 4, 8)), batch_dim="n")


def test_an_invalid_graph_is_refused(project):
    save(project, [helper.make_node("Relu", ["nowhere"], ["y"])], [value("x", ["n"])], [value("y", ["n"])])
    with pytest.raises(ExportError, match=r"model.onnx is not valid ONNX: ValidationError: .*nowhere"):
        run(project)


def test_a_file_with_random_numbers_is_not_deterministic(project):
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"])]
    save(project, nodes, [value("x", ["n", 4])], [value("y", ["n", 4])])
    with pytest.raises(ExportError, match="not deterministic"):
        run(project, dims=project.dims(n=(1, 4, 8)))
