"""Hugging Face model folders made from configurations with random weights: nothing is downloaded."""

import json
import sys

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.errors import ExportError, MissingDependencyError
from triton_toolkit.export.context import Context
from triton_toolkit.export.load import load_model
from triton_toolkit.export.outputs import named_outputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """Give a folder as BertForSequenceClassification.save_pretrained writes it."""
    folder = tmp_path_factory.mktemp("hf") / "bert"
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=37,
        max_position_embeddings=32,
        num_labels=3,
    )
    transformers.logging.disable_progress_bar()
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def copied(project, bert, **changes):
    """Copy the folder into the project, with another config."""
    target = project.root / "hf" / "bert"
    target.mkdir(parents=True)
    for path in bert.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


def load_bert(project, **changes):
    """Load it without exporting it; return the module and the notes."""
    context = Context(project.job(source="hf/bert", **changes), project.out, Silent(), project.files)
    return load_model(context), context


def test_a_hugging_face_folder_is_exported_by_its_architecture(project, bert):
    folder = copied(project, bert, dtype="bfloat16")
    (folder / "tf_model.h5").write_bytes(b"of another framework")
    (folder / "pytorch_model.bin").write_bytes(b"safetensors go first")
    outputs = {"logits": (None, None), "hidden_states.1": (None, None)}
    inputs = tuple(project.tensor(n, "batch", "seq", dtype="int64") for n in ("input_ids", "attention_mask"))
    dims = project.dims(batch=(1, 2, 4), seq=(2, 8, 16))
    report = project.run(source="hf/bert", inputs=inputs, outputs=outputs, dims=dims, batch_dim="batch")
    assert [(t.name, t.dtype.spec, t.shape) for t in report.outputs] == [
        ("logits", "fp32", ("batch", 3)),
        ("hidden_states.1", "fp32", ("batch", "seq", 32)),
    ]
    assert report.dependencies == ["hf/bert/config.json", "hf/bert/model.safetensors"]
    assert report.notes == ()


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        (
            {"architectures": ["BertForMultipleChoice"], "num_labels": 2},
            "lacks weights of BertForMultipleChoice: ",
            "architectures",
        ),
        ({"architectures": []}, "config.json names no architectures", "BertModel"),
        ({"architectures": ["BertForNothing"]}, "has no BertForNothing", "version of transformers"),
        (
            {"architectures": ["Own"], "auto_map": {"AutoModel": "modeling_own.Own"}},
            "Own is code of the folder itself",
            "trust: true",
        ),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_told(project, bert, changes, message, hint):
    copied(project, bert, **changes)
    with pytest.raises(ExportError) as caught:
        load_bert(project)
    assert message in caught.value.message
    assert hint in caught.value.hint


OWN_CODE = """
import transformers

class Own(transformers.BertForSequenceClassification):
    pass
"""


def test_code_in_a_folder_runs_only_where_it_is_trusted(project, bert, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    auto = {"AutoModelForSequenceClassification": "modeling_own.Own"}
    folder = copied(project, bert, auto_map=auto)
    (folder / "modeling_own.py").write_text(OWN_CODE)
    module, context = load_bert(project)
    assert type(module).__name__ == "BertForSequenceClassification"
    assert context.notes == [
        "hf/bert brings code of its own, which is not run; the class of transformers is used instead"
    ]
    module, context = load_bert(project, trust=True)
    assert type(module).__name__ == "Own"
    assert not module.training
    assert context.notes == []
    assert "hf/bert/modeling_own.py" in context.dependencies


def test_costly_outputs_are_computed_where_they_are_declared(project, bert):
    copied(project, bert)
    ids = torch.ones(1, 3, dtype=torch.int64)
    for declared, names in (
        ((), ["logits"]),
        (("attentions.0",), ["logits", "attentions.0", "attentions.1"]),
        (("hidden_states.0",), ["logits", "hidden_states.0", "hidden_states.1", "hidden_states.2"]),
    ):
        module, _ = load_bert(project, outputs={name: (None, None) for name in declared})
        assert list(named_outputs(module(ids), [])) == names


def test_a_sentence_transformers_folder_is_noted(project, bert):
    (copied(project, bert) / "modules.json").write_text("[]")
    _, context = load_bert(project)
    assert "only its transformer is exported, without pooling" in context.notes[0]


def test_a_missing_transformers_is_told_with_where_to_put_it(project, bert, monkeypatch):
    copied(project, bert)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError) as caught:
        load_bert(project)
    assert caught.value.message == "transformers is not installed; it is needed to load hf/bert"
    assert "env:" in caught.value.hint
