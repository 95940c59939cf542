"""Failures that people reported of exports of PyTorch models: each must come out right, or be told."""

import numpy as np
import onnx
import onnxruntime
import pytest

from triton_toolkit.core.dims import Dim, example_sizes
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export import torch_onnx, tracer

pytestmark = pytest.mark.torch

BAKED = "The size of 'batch' stands in the graph as a constant: node '{node}"


def graph(project):
    return onnx.load(project.out / "model.onnx")


def trace(project, **changes):
    return project.run(exporter="torchscript", **changes)


def test_sizes_that_older_exporters_baked_in_stay_dynamic(project):
    """Each has its report: pytorch#77410, pytorch#26127, roboflow/rf-detr#871, pytorch#148886; no
    functions are left for older TensorRT (NVIDIA/TensorRT#3934).
    """
    project.net("""\
        y = self.linear(x)
        mask = torch.ones(x.size(0), 1).tril() == 1
        return {
            "data_size": y.reshape(x.data.size(0), 3, 1),
            "arange": y + torch.arange(x.shape[0])[:, None],
            "norm": F.gelu(F.layer_norm(x, x.size()[1:])),
            "mask": torch.where(mask, y, 0.0),
        }
        """)
    report = project.run(outputs={})
    assert report.onnx == {"opset": {"": 18}, "ir_version": 10, "exporter": "dynamo"}
    assert [(t.name, t.shape[0]) for t in report.outputs] == [
        ("data_size", "batch"), ("arange", "batch"), ("norm", "batch"), ("mask", "batch"),
    ]  # fmt: skip
    assert [entry["sizes"]["batch"] for entry in report.parity] == [4, 1, 8, 2, 5]
    assert len(graph(project).functions) == 0


@pytest.mark.parametrize(
    ("forward", "node"),
    [
        pytest.param("return self.linear(x).view(int(x.shape[0]), 3)", "/Reshape", id="pytorch#99613"),
        pytest.param("return self.linear(x).reshape(x.data.size(0), 3, 1)", "/Reshape", id="pytorch#77410"),
        pytest.param(
            "ones = torch.tensor([1.0 for _ in range(x.shape[0])])\nreturn self.linear(x) + ones[:, None]",
            "/Add",
            id="rf-detr#871",
        ),
    ],
)
def test_a_trace_that_bakes_the_batch_in_names_the_node_and_its_line(project, forward, node):
    project.net(forward)
    with pytest.raises(ParityError) as caught:
        trace(project)
    assert "and is right at batch=2" in caught.value.message
    assert BAKED.format(node=node) in caught.value.message
    assert "made from nets.py:1" in caught.value.message.partition("stands in the graph")[2]


def test_a_size_read_as_a_number_is_refused_by_both_exporters_with_both_reasons(project):
    project.net("return self.linear(x).repeat(int(x.shape[0]), 1)[: x.shape[0]] * int(x.shape[0])")
    with pytest.raises(ExportError) as caught:
        project.run()
    text = caught.value.message
    assert text.startswith(
        "dimension 'batch' is declared dynamic, but the model fixes it at 2, the size of the example "
        "(nets.py:13, in forward). The TorchScript-based exporter, tried next: at batch="
    )


def test_an_example_never_has_a_size_of_one_where_another_is_legal():
    """pytorch/pytorch#148629."""
    ranges = {"batch": (1, 1, 8), "seq": (1, 1, 9), "one": (1, 1, 1)}
    dims = {n: Dim(name=n, min=low, opt=opt, max=high) for n, (low, opt, high) in ranges.items()}
    assert example_sizes(dims) == {"batch": 2, "seq": 3, "one": 1}


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_names_are_the_specs_whatever_forward_calls_them_and_duplicates_are_told_apart(project, exporter):
    """pytorch#166001 (names of inputs), pytorch#135134 (dynamic outputs), pytorch#64190 (one tensor
    twice), triton-inference-server/tutorials#137 (counted names).
    """
    project.net("y = self.linear(x)\nreturn y, y, x")
    project.run(
        exporter=exporter,
        inputs=(project.tensor("image", "batch", 4),),
        outputs={"a": (None, None), "b": (None, ["batch", 3]), "c": (None, None)},
        batch_dim="batch",
    )
    written = graph(project).graph
    assert [value.name for value in written.input] == ["image"]
    assert [value.name for value in written.output] == ["a", "b", "c"]
    assert not any(value.name.isdigit() for value in [*written.input, *written.output])
    for value in [*written.input, *written.output]:
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_the_ir_version_is_that_of_the_release_and_is_read_back(project, exporter):
    """microsoft/onnxruntime#15874."""
    project.net()
    report = project.run(exporter=exporter, opset=17, ir_version=8)
    written = graph(project)
    assert (written.ir_version, written.opset_import[0].version) == (8, 17)
    assert report.onnx == {"opset": {"": 17}, "ir_version": 8, "exporter": exporter}


def test_the_trace_is_written_to_the_highest_opset_that_its_exporter_knows(project):
    """pytorch/pytorch#107829."""
    project.net()
    assert trace(project, opset=22).onnx["opset"] == {"": 20}


def test_an_operator_that_is_newer_than_the_release_says_which_release_has_it(project):
    """pytorch/pytorch#97262."""
    project.net("return F.scaled_dot_product_attention(x, x, x)")
    with pytest.raises(ExportError, match="attention can be written from opset 14 on, and the export is to"):
        trace(project, opset=13, inputs=(project.tensor("x", "batch", 2, 3, 4),))


def test_a_model_that_cannot_go_down_to_the_opset_is_traced_instead(project):
    project.net("return F.layer_norm(x, (4,)).mean(1)")
    report = project.run(opset=15, ir_version=8)
    assert (report.onnx["opset"], report.onnx["exporter"]) == ({"": 15}, "torchscript")
    assert report.notes[0].startswith("the TorchScript-based exporter wrote it, because the other refused: ")


def test_what_torch_export_refuses_is_traced_with_its_reason_as_a_note(project):
    project.net("return F.scaled_dot_product_attention(x, x, x)")
    report = project.run(inputs=(project.tensor("x", "batch", 3, 4),), batch_dim="batch")
    assert report.onnx["exporter"] == "torchscript"
    assert "only 4D query" in report.notes[0]


def test_a_declared_exporter_is_not_replaced(project):
    project.net("return F.scaled_dot_product_attention(x, x, x)")
    with pytest.raises(ExportError, match="only 4D query") as caught:
        project.run(exporter="dynamo", inputs=(project.tensor("x", "batch", 3, 4),))
    assert "TorchScript" not in caught.value.message


def test_a_branch_by_values_is_traced_by_no_exporter(project):
    project.net("return self.linear(x) if x.sum() > 0 else x[:, :3]")
    with pytest.raises(ExportError, match=r"decides by the values of a tensor.* \(nets.py:13, in forward\)"):
        trace(project)


def test_values_that_left_torch_are_missed_in_a_trace_of_fixed_sizes_too(project):
    project.net("return x * torch.tensor(float(x.numpy().max()))")
    with pytest.raises(ParityError, match="the trace holds values of the run that it recorded"):
        trace(project, inputs=(project.tensor("x", 2, 4),), dims={})


def test_large_weights_lie_beside_the_model(project):
    """microsoft/onnxruntime#4424, ELS-RD/transformer-deploy#183."""
    project.net("return self.big(x)", init="self.big = nn.Linear(4, 4096)")
    trace(project, external_data_bytes=10_000)
    assert sorted(path.name for path in project.out.iterdir()) == [
        "model.onnx",
        "model.onnx.data",
        "samples.npz",
    ]
    assert (project.out / "model.onnx").stat().st_size < 10_000
    assert (project.out / "model.onnx.data").stat().st_size >= 4 * 4 * 4096


@pytest.mark.parametrize(
    ("forward", "drawn"),
    [
        pytest.param("return F.dropout(self.linear(x))", "bernoulli_", id="pytorch#24824"),
        pytest.param("return self.linear(x) + 1e-7 * torch.rand(3)", "rand", id="tiny-noise"),
        pytest.param("import random\nreturn x * random.random()", "random or numpy.random", id="python"),
    ],
)
def test_random_numbers_are_refused_with_their_line(project, forward, drawn):
    project.net(forward)
    with pytest.raises(ExportError, match=f"not deterministic: forward draws random numbers: {drawn}"):
        project.run()


@pytest.mark.parametrize(
    ("forward", "init", "changes"),
    [
        pytest.param("return self.train().norm(x)", "self.norm = nn.BatchNorm1d(4)", {}, id="train"),
        pytest.param(
            "return self.norm(x)",
            "self.norm = nn.BatchNorm1d(4, track_running_stats=False)",
            {"batch_dim": "batch"},
            id="no-running-statistics",
        ),
    ],
)
def test_batch_statistics_are_refused(project, forward, init, changes):
    project.net(forward, init=init)
    with pytest.raises(ExportError, match=r"statistics of the batch at hand.*: nets.py:13, in forward"):
        project.run(dims=project.dims(batch=(2, 4, 8)), **changes)


def test_what_only_looks_random_or_stateful_is_fine(project):
    project.net(
        "torch.rand(3)  # without effect\n"
        "if self.scale is None:\n    self.scale = torch.full((8,), 2.0)\n"
        "return F.dropout(self.norm(x), 0.5, self.training) * self.scale",
        init="self.norm = nn.InstanceNorm1d(3)\nself.scale = None",
    )
    assert project.run(inputs=(project.tensor("x", "batch", 3, 8),), batch_dim="batch").notes == ()


def test_state_from_the_first_input_is_refused_and_named(project):
    project.net(
        "if not self.ready:\n    self.loc.data = -x.mean(0)\n    self.ready.fill_(True)\nreturn x + self.loc",
        init="self.loc = nn.Parameter(torch.zeros(4))\nself.register_buffer('ready', torch.tensor(False))",
    )
    with pytest.raises(ExportError, match=r"keeps something of the inputs that it saw first.* is in loc$"):
        project.run()


def test_a_branch_on_one_size_is_proven_there(project):
    project.net("return self.linear(x) * 2 if x.shape[0] == 7 else self.linear(x)")
    with pytest.raises(ParityError) as caught:
        project.run()
    text = caught.value.message
    assert "fails at batch=7 and is right at batch=1; batch=2; batch=4; batch=5; batch=8" in text
    assert "what was exported needs batch != 7 (nets.py:13, in forward)" in text


def test_a_branch_on_one_size_that_changes_nothing_is_fine_and_told(project):
    project.net("y = self.linear(x)\nif x.shape[0] == 7:\n    y = y.clone()\nreturn y")
    (note,) = project.run().notes
    assert note.startswith("the export follows the path for batch != 7 (nets.py:14, in forward); it is")


def test_a_branch_on_sizes_that_only_a_trace_can_write_is_tried_at_all_of_them(project):
    project.net(
        "y = x * 3 if x.shape[0] == 7 else x * 2\nreturn y + torch.tensor(np.asarray(self.w))",
        init="self.w = torch.ones(4)",
        more="import numpy as np\nimport os\n",
    )
    with pytest.raises(ParityError, match="fails at batch=7 and is right at"):
        trace(project)


def test_a_branch_that_multiples_rule_out_is_no_branch(project):
    project.net(
        "n, c, h, w = x.shape\nif h % 8:\n    return x[:, :, :1] * 0\n"
        "return x.reshape(n, c, h // 8, 8, w).mean(3)"
    )
    report = project.run(
        inputs=(project.tensor("x", "batch", 3, "h", 4),),
        dims={**project.dims(batch=(1, 2, 4)), "h": Dim(name="h", min=8, opt=16, max=64, multiple_of=8)},
        batch_dim="batch",
    )
    assert report.notes == ()
    assert sorted({entry["sizes"]["h"] for entry in report.parity}) == [8, 16, 40, 64]
    assert graph(project).graph.input[0].type.tensor_type.shape.dim[2].dim_param == "h"


AUTOCAST = "with torch.autocast('cpu', dtype=torch.bfloat16):\n    y = self.linear(x)\nreturn y.float()"


def test_bfloat16_inside_is_exported_in_float32_within_the_tolerance(project):
    from triton_toolkit.core.compare import Tolerance, Tolerances

    project.net(AUTOCAST)
    report = project.run(tolerances=Tolerances(default=Tolerance(absolute=0.02, relative=0.03)))
    assert report.notes == ("the model computes in bfloat16, the export in float32",)
    kinds = {weight.data_type for weight in graph(project).graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in kinds


def test_bfloat16_inside_that_misses_the_tolerance_says_what_to_do(project):
    project.net(AUTOCAST)
    with pytest.raises(ParityError, match="computes in bfloat16, which has 8 bits, the export in") as caught:
        project.run()
    assert "module.float()" in caught.value.hint


def test_weights_of_another_type_than_the_inputs_say_what_to_do(project):
    project.net(init="self.linear = nn.Linear(4, 3).bfloat16()")
    with pytest.raises(ExportError, match="must have the same dtype") as caught:
        project.run()
    assert caught.value.hint.startswith("the weights are bfloat16: return module.float() from the source")


def test_nan_is_located_at_its_first_node_with_its_line(project):
    project.net(
        "y = self.linear(x)\nreturn y.log() * 0 + y",
        more="def sample(): return {'x': torch.ones(2, 4)}",
    )
    with pytest.raises(ExportError, match=r"first in node '/Log' \(Log, made from nets.py:14.*gives NaN"):
        project.run(sample="nets:sample")


@pytest.mark.parametrize(
    ("exporter", "node"),
    [
        pytest.param("dynamo", "'/linear/Gemm' (Gemm, made from nets.py:13, in forward)"),
        pytest.param("torchscript", "'/linear/Gemm' (Gemm, made from nets.py:13, in forward)"),
    ],
)
def test_a_wrong_node_is_named_with_its_line_and_figures(project, monkeypatch, exporter, node):
    def damage(path, *arguments):
        finished = finish(path, *arguments)
        model = onnx.load(path)
        (bias,) = (weight for weight in model.graph.initializer if list(weight.dims) == [3])
        wrong = onnx.numpy_helper.to_array(bias) + np.float32(1)
        bias.CopyFrom(onnx.numpy_helper.from_array(wrong, bias.name))
        onnx.save(model, path)
        return finished

    finish = torch_onnx.finish
    monkeypatch.setattr(torch_onnx, "finish", damage)
    monkeypatch.setattr(tracer, "finish", damage)
    project.net("return F.relu(self.linear(x)).exp()")
    with pytest.raises(ParityError) as caught:
        project.run(exporter=exporter)
    assert f"The first node that is not what PyTorch has: node {node}: gives " in caught.value.message
    assert caught.value.hint.endswith("--bisect` tries every exporter and opset")


def test_a_batch_of_one_keeps_a_variable_first_dimension(project):
    """triton-inference-server/server#1889."""
    project.net("return self.conv(x).flatten(1)", init="self.conv = nn.Conv2d(3, 2, 3)")
    report = project.run(
        inputs=(project.tensor("x", "batch", 3, 5, 5),), dims=project.dims(batch=(1, 1, 1)), batch_dim="batch"
    )
    assert [tensor.shape[0] for tensor in (*report.inputs, *report.outputs)] == ["batch", "batch"]


def test_an_output_without_the_batch_is_named(project):
    """triton-inference-server/server#7462."""
    project.net("return self.linear(x), x.mean()")
    with pytest.raises(ExportError, match=r"output 'b' has shape \[\], which does not start with the batch"):
        project.run(outputs={"a": (None, None), "b": (None, None)}, batch_dim="batch")


def test_a_trace_keeps_the_control_flow_of_scripted_parts(project):
    project.net(
        "return self.step(x)",
        init="self.step = scripted",
    )
    text = (project.root / "nets.py").read_text()
    scripted = (
        "import warnings\nwarnings.simplefilter('ignore')\n\n\n"
        "@torch.jit.script\ndef scripted(x: torch.Tensor):\n"
        "    if x.shape[0] > 4:\n        return x * 2\n    return x\n\n\n"
    )
    project.write(text.replace("class Net", scripted + "class Net"))
    assert trace(project).notes[0].startswith("the module cannot be copied")
    rows = np.ones((8, 4), np.float32)
    session = onnxruntime.InferenceSession(project.out / "model.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": rows})[0].max() == 2
    assert session.run(None, {"x": rows[:3]})[0].max() == 1
