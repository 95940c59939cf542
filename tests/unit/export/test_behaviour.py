"""What an export finds out about a model beyond its sizes."""

import numpy as np
import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.run import run_export

pytestmark = pytest.mark.torch


def test_a_forward_that_is_not_deterministic_is_refused(project):
    project.net("return F.dropout(self.linear(x))")
    with pytest.raises(
        ExportError, match=r"not deterministic: forward draws random numbers: bernoulli_ \(nets.py:13"
    ) as caught:
        project.run()
    assert "training=self.training" in caught.value.hint


COND = "return torch.cond(x.sum() > 0, self.up, lambda v: v - 1, (x,))"


def test_two_ways_by_torch_cond_become_an_if(project):
    """In a process of its own, as every export is: dynamo remembers what other models made of torch.cond."""
    project.net(COND, init="self.up = nn.Linear(4, 4)")
    project.out.mkdir()
    report = run_export(project.job(batch_dim=None), project.out, Silent())
    assert report.notes == ()
    assert "If" in {node.op_type for node in load_graph(project.out / "model.onnx").graph.node}


def test_random_numbers_of_one_of_two_ways_are_seen(project):
    project.net(
        COND,
        init="self.up = lambda v: v + torch.rand_like(v)",
        more="def sample(): return {'x': torch.ones(2, 4)}",
    )
    with pytest.raises(ExportError, match="draws random numbers: rand_like"):
        project.run(batch_dim=None, sample="nets:sample")


def test_nan_for_the_users_own_sample_is_refused(project):
    project.net("return torch.log(x)", more="def sample(): return {'x': -torch.ones(2, 4)}")
    with pytest.raises(ExportError, match="output 'y' holds NaN for the sample inputs"):
        project.run(sample="nets:sample")


def test_nan_for_random_inputs_is_a_note(project):
    project.net("return torch.log(x)")
    assert project.run().notes == (
        "output 'y' holds NaN for random inputs; a sample function gives a better proof",
    )


def test_an_input_without_effect_is_a_note(project):
    project.net("return a * 2", parameters="a, b")
    report = project.run(inputs=(project.tensor("a", "batch", 4), project.tensor("b", "batch", 4)))
    assert report.notes == ("input 'b' has no effect on any output",)
    assert [tensor.name for tensor in report.inputs] == ["a", "b"]


def test_an_input_of_text_is_refused(project):
    project.net()
    with pytest.raises(ExportError, match="input 'x' is bytes") as caught:
        project.run(inputs=(project.tensor("x", "batch", 4, dtype="bytes"),))
    assert "ensemble" in caught.value.hint


def test_an_output_named_like_an_input_is_refused(project):
    project.net()
    with pytest.raises(ExportError, match="an input and an output are both called 'x'"):
        project.run(outputs={"x": (None, None)})


def test_outputs_come_by_name_from_a_dict(project):
    project.net("return {'extra': x, 'y': x.argmax(1)}")
    outputs = project.run(outputs={"y": ("int64", ["batch"])}).outputs
    assert [(tensor.name, tensor.dtype.spec, tensor.shape) for tensor in outputs] == [
        ("y", "int64", ("batch",))
    ]


def test_outputs_need_not_be_declared(project):
    project.net("return {'scores': x, 'best': x.argmax(1)}")
    assert [tensor.name for tensor in project.run(outputs={}).outputs] == ["scores", "best"]


def test_a_declared_shape_that_is_wrong_is_refused(project):
    project.net()
    with pytest.raises(ExportError, match=r"'y' has shape \['batch', 3\], the spec says \['batch', 10\]"):
        project.run(outputs={"y": (None, ["batch", 10])})


def test_token_ids_stay_legal_because_the_sample_is_tiled(project):
    project.net(
        "return self.table(x)",
        init="self.table = nn.Embedding(40, 3)\nself.table.weight.data[:30] = float('nan')",
        more="def sample(): return {'x': torch.arange(30, 40).reshape(2, 5)}",
    )
    project.run(
        sample="nets:sample",
        inputs=(project.tensor("x", "batch", "seq", dtype="int64"),),
        dims=project.dims(batch=(1, 4, 8), seq=(1, 5, 16)),
        batch_dim="batch",
    )


def test_accuracy_is_measured_with_both(project):
    project.net(
        "return x * 2",
        more="def metric(predict): return predict({'x': torch.ones(40, 4).numpy()})['y'].mean()",
    )
    accuracy = project.run(metric="nets:metric").accuracy
    assert accuracy == {"metric": "nets:metric", "original": 2.0, "exported": 2.0, "drop": 0.0}


def test_all_project_files_that_were_read_are_dependencies(project):
    project.write("scale = 2\n", "pkg/settings.py")
    project.write("hello", "data/labels.txt")
    project.write("unread", "data/other.txt")
    np.save(project.root / "rows.npy", np.ones((2, 4), np.float32))
    project.net(
        "return x * scale",
        more="""
        from pathlib import Path
        from pkg.settings import scale
        HERE = Path(__file__).parent
        (HERE / "data/labels.txt").read_text()

        def sample():
            import numpy as np
            return {"x": np.load(HERE / "rows.npy")}
        """,
    )
    assert project.run(sample="nets:sample").dependencies == [
        "data/labels.txt", "nets.py", "pkg/settings.py", "rows.npy",
    ]  # fmt: skip
