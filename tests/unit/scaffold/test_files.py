"""The text of a new project."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import EnvironmentProblem, UsageError
from triton_toolkit.scaffold.files import (
    ModelText,
    TensorLine,
    example_project,
    model_name,
    quoted,
    spec_text,
    write_project,
)
from triton_toolkit.spec.load import load_project
from triton_toolkit.spec.source import read_yaml


def test_the_example_loads(tmp_path):
    write_project(tmp_path, example_project())
    project = load_project(tmp_path / "tt.yaml")
    model = project.model("example")
    assert (model.source, model.sample) == ("example_model:model", "example_model:sample")
    assert project.target("local").servers == ["grpc://127.0.0.1:8001"]


def test_the_examples_module_is_python():
    compile(example_project()["example_model.py"], "example_model.py", "exec")


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path):
    (tmp_path / "example_model.py").write_text("mine")
    with pytest.raises(UsageError, match=r"example_model\.py exists, and tt init overwrites nothing"):
        write_project(tmp_path, example_project())
    assert [path.name for path in tmp_path.iterdir()] == ["example_model.py"]
    assert (tmp_path / "example_model.py").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_the_hosts_fault(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"cannot write into .*file/deep: Not a directory"):
        write_project(tmp_path / "file" / "deep", {"tt.yaml": ""})


@pytest.mark.parametrize(
    ("text", "name"),
    [("unet", "unet"), ("my model.v2", "my_model_v2"), ("résnet", "r_snet"), ("..", "model"), ("", "model")],
)
def test_names_for_the_server(text, name):
    assert model_name(text) == name


@pytest.mark.parametrize("text", ["batch", "seq_len", "../m.onnx", "examples.digits:model", "a-b"])
def test_plain_words_need_no_quotes(text):
    assert quoted(text) == text


TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=10)


@given(
    TEXTS
    | st.sampled_from(["no", "true", "null", "1", "1.5", "a: b", "# x", "- a", "'", '"', "{}", "~", "", "a:"])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_back(tmp_path, text):
    path = tmp_path / "f.yaml"
    path.write_text(f"{quoted(text)}: [{quoted(text)}, 1]\n")
    assert read_yaml(path, "f.yaml").value == {text: [text, 1]}


EXTENTS = st.integers(1, 9) | st.sampled_from(["batch", "seq len", "n_0", "images:0_2"])
TENSORS = st.lists(
    st.tuples(TEXTS, st.sampled_from(DataType), st.lists(EXTENTS, max_size=3)),
    min_size=1,
    max_size=3,
    unique_by=lambda tensor: tensor[0],
)


@given(TENSORS, st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
def test_whatever_is_described_loads(tmp_path, tensors, batched):
    lines = [
        TensorLine(name=name, dtype=dtype, shape=["batch", *shape] if batched else shape)
        for name, dtype, shape in tensors
    ]
    batch = "batch" if batched else None
    head = ("kind: onnx", "source: m.onnx")
    text = spec_text(ModelText(name="m", head=head, inputs=lines, outputs=(), batch_dim=batch))
    (tmp_path / "tt.yaml").write_text(text)
    loaded = load_project(tmp_path / "tt.yaml").model("m")
    assert loaded.batch_dim == batch
    assert {name: (entry.dtype, entry.shape) for name, entry in loaded.inputs.items()} == {
        line.name: (line.dtype.spec, line.shape) for line in lines
    }
