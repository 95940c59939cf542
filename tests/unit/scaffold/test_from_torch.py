"""What is read off a PyTorch factory, in a child process."""

from __future__ import annotations

import textwrap

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.errors import ExportError
from triton_toolkit.scaffold.files import write_project
from triton_toolkit.scaffold.from_torch import torch_project
from triton_toolkit.spec.load import load_project

pytestmark = pytest.mark.torch

NETS = """
    import torch

    class Net(torch.nn.Module):
        def forward(self, ids, mask, bias=None, *, scale=1.0):
            return {"scores": (ids * mask).float() * scale, "length": mask.sum(-1)}

    def build():
        print("user code may print")
        return Net()

    def not_a_module():
        return 3
"""
SAMPLE = """
    def sample(batch=2, seq=5):
        return {name: torch.ones(batch, seq, dtype=torch.int64) for name in ("ids", "mask")}
"""


@pytest.fixture
def project(tmp_path):
    """Return a function that writes a module and the spec read off it, and loads the spec."""

    def make(module: str, factory: str = "build"):
        (tmp_path / "nets.py").write_text(textwrap.dedent(module))
        write_project(tmp_path, torch_project(f"nets:{factory}", tmp_path, Silent()))
        return load_project(tmp_path / "tt.yaml").model("nets"), (tmp_path / "tt.yaml").read_text()

    return make


def test_without_a_sample_parameters_become_placeholders(project):
    model, text = project(NETS)
    assert list(model.inputs) == ["ids", "mask"]
    assert text.count("CHANGE: its real type and shape") == 2
    assert "# optional parameter of forward, not an input: bias" in text


def test_a_sample_gives_types_shapes_and_outputs(project):
    model, text = project(NETS + SAMPLE)
    assert model.sample == "nets:sample"
    assert {name: (i.dtype, i.shape) for name, i in model.inputs.items()} == {
        "ids": ("int64", ["batch", "seq"]),
        "mask": ("int64", ["batch", "seq"]),
    }
    assert {name: (o.dtype, o.shape) for name, o in model.outputs.items()} == {
        "scores": ("fp32", ["batch", "seq"]),
        "length": ("int64", ["batch"]),
    }
    assert model.batch_dim == "batch"
    assert "CHANGE: its real type" not in text


def test_a_sample_of_one_size_gives_a_batch_where_all_first_sizes_agree(project):
    model, _ = project(NETS + SAMPLE.replace("batch=2, seq=5", "").replace("batch, seq", "2, 5"))
    assert model.inputs["ids"].shape == ["batch", 5]
    assert model.batch_dim == "batch"


def test_sizes_without_a_default_are_guessed(project):
    model, text = project(NETS + SAMPLE.replace("batch=2, seq=5", "batch, seq"))
    assert {name: tensor.shape for name, tensor in (model.inputs | model.outputs).items()} == {
        "ids": ["batch", "seq"],
        "mask": ["batch", "seq"],
        "scores": ["batch", "seq"],
        "length": ["batch"],
    }
    assert (model.batch_dim, list(model.dims)) == ("batch", ["batch", "seq"])
    assert "fixed" not in text


@pytest.mark.parametrize("parameters", ["batch, seq, weights", "**sizes"])
def test_a_sample_that_does_not_run_at_guessed_sizes_leaves_placeholders(project, parameters):
    weighted = SAMPLE.replace("torch.ones(", "len(weights) * torch.ones(")
    module = weighted if "weights" in parameters else SAMPLE
    model, text = project(NETS + module.replace("batch=2, seq=5", parameters))
    assert model.sample == "nets:sample"
    assert list(model.inputs) == ["ids", "mask"]
    assert "# tt init could not run it: nets:sample raised" in text
    assert text.count("CHANGE: its real type and shape") == 2


def test_without_a_sample_the_file_says_what_to_call_it(project):
    _, text = project(NETS)
    assert "# sample: nets:sample " in text


def test_sizes_that_the_sample_fixes_are_marked(project):
    _, text = project(NETS + SAMPLE.replace("seq=5", "").replace("batch, seq", "batch, 5"))
    assert "ids: {dtype: int64, shape: [batch, 5]}  # fixed as in the sample: 5" in text
    assert "write a name for it, and its range in dims" in text


@pytest.mark.parametrize(
    ("module", "factory", "message"),
    [
        (NETS, "not_a_module", "nets:not_a_module gives"),
        ("import os; os.abort()", "build", "nets:build: reading it ended with killed by SIGABRT"),
        (NETS + SAMPLE.replace('"ids", "mask"', '"mask", "x"'), "build", "input 'mask' is number 1"),
    ],
    ids=["no-module", "crash", "sample-does-not-fit"],
)
def test_what_goes_wrong_is_told(project, module, factory, message):
    with pytest.raises(ExportError) as caught:
        project(module, factory)
    assert message in caught.value.message
