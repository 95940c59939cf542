import contextlib

import numpy as np
import onnx
import onnxruntime
import pytest

from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export import torch_onnx

pytestmark = pytest.mark.torch


def serve(project, **feeds):
    session = onnxruntime.InferenceSession(project.out / "model.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


@pytest.mark.parametrize(
    ("opset", "ir_version", "written"),
    [
        pytest.param(17, 8, (17, 8), id="converted-down"),
        pytest.param(18, 8, (18, 8), id="18"),
        pytest.param(19, 9, (19, 9), id="19"),
        pytest.param(20, 9, (20, 9), id="20"),
        pytest.param(21, 10, (21, 10), id="21"),
        pytest.param(25, 13, (21, 10), id="not-above-21"),
    ],
)
def test_opset_and_ir_version_fit_the_release(project, opset, ir_version, written):
    project.net("return F.layer_norm(self.linear(x), (3,))")
    report = project.run(opset=opset, ir_version=ir_version)
    model = onnx.load(project.out / "model.onnx")
    assert ({o.domain: o.version for o in model.opset_import}, model.ir_version) == (
        {"": written[0]},
        written[1],
    )
    assert report.onnx == {"opset": {"": written[0]}, "ir_version": written[1], "exporter": "dynamo"}


def test_a_model_that_cannot_go_down_to_the_opset_is_refused(project):
    project.net("return F.layer_norm(x, (4,)).mean(1)")
    with pytest.raises(ExportError, match="wrote opset 18, but the release runs at most 15") as caught:
        project.run(opset=15, ir_version=8, exporter="dynamo")
    assert "23.03" in caught.value.hint


def test_names_and_dimensions_are_those_of_the_spec(project):
    project.net("return {'relu': F.relu(x).sum(1), 'y': F.relu(image)}", parameters="image, x")
    report = project.run(
        inputs=(project.tensor("x", "batch", "seq"), project.tensor("image", "batch", 4)),
        outputs={"y": (None, None), "relu": (None, None)},
        dims=project.dims(batch=(1, 4, 8), seq=(1, 5, 9)),
    )
    model = onnx.load(project.out / "model.onnx")
    assert [v.name for v in model.graph.input] == ["x", "image"]
    assert [v.name for v in model.graph.output] == ["y", "relu"]
    assert [t.shape for t in report.outputs] == [("batch", 4), ("batch",)]
    y, relu = serve(project, x=np.float32([[1, 2, -3]]), image=np.float32([[-1, 0, 1, 2]]))
    assert y.tolist() == [[0, 0, 1, 2]]
    assert relu.tolist() == [3]


def test_no_path_and_no_stack_trace_is_left_in_the_file(project):
    project.net()
    project.run()
    data = (project.out / "model.onnx").read_bytes()
    for trace in (str(project.root).encode(), b"nets.py", b"forward", b"site-packages", b"pkg.torch"):
        assert trace not in data


def test_large_weights_go_beside_the_model(project):
    project.net("return self.big(x)", init="self.big = nn.Linear(4, 4096)")
    project.run(external_data_bytes=10_000)
    assert (project.out / "model.onnx.data").stat().st_size >= 4 * 4096 * 4
    assert (project.out / "model.onnx").stat().st_size < 10_000
    assert serve(project, x=np.ones((2, 4), np.float32))[0].shape == (2, 4096)


def test_small_weights_stay_in_the_model(project):
    project.net()
    project.run()
    assert sorted(path.name for path in project.out.iterdir()) == ["model.onnx", "samples.npz"]


def test_a_dimension_of_one_size_keeps_its_name(project):
    project.net("return self.linear(x).view(1, 3)")
    report = project.run(dims=project.dims(batch=(1, 1, 1)), batch_dim="batch")
    model = onnx.load(project.out / "model.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert report.outputs[0].shape == ("batch", 3)
    assert [entry["sizes"] for entry in report.parity] == [{"batch": 1}]


def test_outputs_may_be_inputs_and_each_other(project):
    project.net("y = x * 2\nreturn x, y, y")
    report = project.run(outputs={"a": (None, None), "b": (None, None), "c": (None, None)})
    assert [tensor.shape for tensor in report.outputs] == [("batch", 4)] * 3
    a, b, c = serve(project, x=np.ones((1, 4), np.float32))
    assert (a == 1).all() and (b == 2).all() and (c == 2).all()  # noqa: PT018 - one statement about three


def test_dropout_is_off_though_the_factory_left_training_on(project):
    project.net(
        "return F.dropout(self.linear(x), 0.5, self.training)", more="def model(): return Net().train()"
    )
    project.run()
    assert "Dropout" not in {node.op_type for node in onnx.load(project.out / "model.onnx").graph.node}


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        pytest.param(
            "n = int(x.shape[0])\nreturn self.linear(x) + n if n == 2 else self.linear(x)",
            "dimension 'batch' is declared dynamic, but the model fixes it at 2",
            id="size-read-as-a-number",
        ),
        pytest.param(
            "return self.linear(x) if x.sum() > 0 else x[:, :3]",
            "forward decides by the values of a tensor, which an export cannot follow (nets.py:13",
            id="branch-on-values",
        ),
        pytest.param(
            "return torch.linalg.eigvals(x.T @ x).real[None].expand(x.shape[0], 4)",
            "the exporter has no ONNX form of aten.linalg_eig",
            id="operator-without-onnx",
        ),
    ],
)
def test_a_refusal_of_the_exporter_is_short_with_the_whole_text_as_detail(project, forward, message):
    project.net(forward)
    with pytest.raises(ExportError) as caught:
        project.run()
    assert caught.value.message.startswith(message)
    assert len(caught.value.message) < 700
    assert caught.value.hint


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (("first", "second"), ()),
        (("second", "first"), ()),
        (
            ("image", "scale"),
            ("inputs go to forward's parameters by their order: image -> first, scale -> second",),
        ),
    ],
)
def test_names_that_forward_does_not_have_are_told_with_their_parameters(project, names, notes):
    """pytorch/pytorch#166001: which argument of forward an input name means was nowhere to see."""
    project.net("return first - second", parameters="first, second")
    report = project.run(inputs=tuple(project.tensor(name, "batch", 4) for name in names))
    assert report.notes == notes


NORM = "return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-12)"


def test_an_epsilon_of_1e_12_is_kept(project):
    project.net(NORM)
    project.run(exporter="dynamo")
    (y,) = serve(project, x=np.zeros((2, 4), np.float32))
    assert (y == 0).all()


def test_a_factor_of_almost_one_is_kept(project):
    project.net("return x * 1.000004")
    project.run(exporter="dynamo")
    (y,) = serve(project, x=np.ones((1, 4), np.float32))
    assert y[0, 0] == np.float32(1.000004)


def test_an_epsilon_that_an_exporter_drops_is_refused(project, monkeypatch):
    monkeypatch.setattr(torch_onnx, "_small_numbers_kept", contextlib.nullcontext)
    project.net(NORM)
    with pytest.raises(ParityError, match="for inputs of zeros output 'y' is not finite") as caught:
        project.run(exporter="dynamo")
    assert "first in node '/Div' (Div, made from nets.py:13, in forward): gives NaN" in caught.value.message
    assert caught.value.hint.startswith("the exporter dropped a small number")


def test_zeros_that_the_model_makes_nan_of_are_no_mistake(project):
    project.net("return x / x.abs().sum(-1, keepdim=True)")
    assert project.run().parity
