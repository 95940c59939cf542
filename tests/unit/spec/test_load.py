"""Loading a spec: what it means."""

from __future__ import annotations

import pytest

from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import SpecError

DIGITS = """\
spec: 1
models:
  digits:
    source: examples.digits:model
    inputs: {image: {dtype: fp32, shape: [batch, 1, 8, 8]}}
    outputs: {logits: {shape: [batch, 10]}}
    dims: {batch: {min: 1, opt: 8, max: 32}}
    batch_dim: batch
"""


def test_a_model_is_torch_where_no_kind_is_given(load):
    model = load(DIGITS).model("digits")
    assert (model.kind, model.source, model.batch_dim, model.variant) == (
        "torch", "examples.digits:model", "batch", "fp32",
    )  # fmt: skip
    assert model.inputs["image"].tensor("image") == TensorSpec(
        name="image", dtype=DataType.FP32, shape=("batch", 1, 8, 8)
    )


def test_a_range_may_be_a_list(load):
    project = load(DIGITS.replace("{min: 1, opt: 8, max: 32}", "[1, 8, 32]"))
    dim = project.model("digits").dims["batch"].dim("batch")
    assert (dim.name, dim.min, dim.opt, dim.max) == ("batch", 1, 8, 32)


def test_a_range_without_opt_is_usually_at_max(load):
    dim = load(DIGITS.replace(", opt: 8", "")).model("digits").dims["batch"].dim("batch")
    assert dim.opt == 32


def test_models_inputs_and_outputs_keep_their_order(load):
    text = "spec: 1\nmodels:\n"
    inputs = "{y: {shape: [1]}, x: {shape: [2]}, b: {shape: [3]}}"
    for name in ("z", "a", "m"):
        text += f"  {name}: {{source: 'a:b', inputs: {inputs}}}\n"
    spec = load(text).spec
    assert list(spec.models) == ["z", "a", "m"]
    assert list(spec.models["z"].inputs) == ["y", "x", "b"]


def test_paths_start_at_the_specs_folder(load, tmp_path):
    project = load(DIGITS + "repository: build/models\n")
    assert project.root == tmp_path
    assert project.repository == tmp_path / "build/models"


KINDS = """\
spec: 1
models:
  detector: {kind: onnx, source: det.onnx, dims: {n: [1, 2, 4]}}
  tokenizer:
    kind: python
    files: nlp/tokenizer
    requirements: [tokenizers]
    inputs: {text: {dtype: bytes, shape: [batch, 1]}}
    outputs: {ids: {dtype: int64, shape: [batch, seq]}}
    dims: {batch: [1, 2, 4]}
  old: {kind: prebuilt, path: old/model}
  pipeline: {kind: ensemble, steps: [tokenizer, {model: detector, inputs: {x: ids}}]}
"""


def test_the_five_kinds(load):
    models = load(KINDS).spec.models
    assert [model.kind for model in models.values()] == ["onnx", "python", "prebuilt", "ensemble"]
    assert [step.model for step in models["pipeline"].steps] == ["tokenizer", "detector"]
    assert models["pipeline"].steps[1].inputs == {"x": "ids"}


FAMILY = """\
spec: 1
families:
  base: {tolerance: {absolute: 1e-3}, serve: {warmup: none, priority: 1}}
  text:
    extends: base
    inputs: {ids: {dtype: int64, shape: [batch, seq]}}
    dims: {batch: [1, 2, 4], seq: [1, 128, 512]}
    serve: {warmup: auto}
models:
  intent: {extends: text, source: "nlp:intent", dims: {seq: [1, 16, 32]}}
  topic: {extends: text, source: "nlp:topic"}
"""


def test_a_family_gives_keys_and_the_models_own_win(load):
    intent = load(FAMILY).model("intent")
    assert intent.dims["seq"].max == 32
    assert intent.dims["batch"].max == 4
    assert intent.inputs["ids"].dtype == "int64"


def test_a_family_may_extend_another(load):
    topic = load(FAMILY).model("topic")
    assert topic.tolerance.absolute == 0.001
    assert topic.serve == {"warmup": "auto", "priority": 1}


def test_models_of_a_family_share_nothing_that_changes(load):
    models = load(FAMILY).spec.models
    models["intent"].serve["priority"] = 9
    assert models["topic"].serve["priority"] == 1


def test_a_family_may_give_the_kind(load):
    project = load("spec: 1\nfamilies: {o: {kind: onnx}}\nmodels: {m: {extends: o, source: m.onnx}}\n")
    assert project.model("m").kind == "onnx"


def test_a_merge_key_takes_an_anchors_keys_and_the_own_win(load):
    project = load(
        "spec: 1\nfamilies: {f: &f {source: 'a:b', inputs: {x: {shape: [3]}}}}\n"
        "models: {m: {<<: *f}, n: {<<: [*f], source: 'c:d'}}\n"
    )
    assert [model.source for model in project.spec.models.values()] == ["a:b", "c:d"]


def test_included_files_bring_models(load, tmp_path):
    (tmp_path / "models").mkdir()
    for name in ("b", "a"):
        (tmp_path / "models" / f"{name}.yaml").write_text(f"{name}: {{kind: onnx, source: {name}.onnx}}\n")
    project = load("spec: 1\ninclude: [models/*.yaml]\n")
    assert list(project.spec.models) == ["a", "b"]


def test_an_error_in_an_included_file_names_that_file(refuse, tmp_path):
    (tmp_path / "more.yaml").write_text("\nm:\n  kind: onnx\n  sorce: a.onnx\n")
    assert refuse("spec: 1\ninclude: [more.yaml]\n").message.startswith(
        "more.yaml:4:3: models.m.sorce: unknown key"
    )


def test_a_model_defined_twice_names_both_places(refuse, tmp_path):
    (tmp_path / "more.yaml").write_text("digits: {kind: onnx, source: a.onnx}\n")
    message = refuse(DIGITS + "include: [more.yaml]\n").message
    assert message == "more.yaml:1:1: digits: model 'digits' is already defined at tt.yaml:3:3"


@pytest.mark.parametrize("method", ["model", "target"])
def test_an_unknown_name_offers_a_near_one(load, method):
    project = load(DIGITS + "targets: {digits: {store: s, servers: ['grpc://h:1']}}\n")
    with pytest.raises(SpecError, match=f"no {method} 'digts'; did you mean 'digits'") as caught:
        getattr(project, method)("digts")
    assert caught.value.hint == f"{method}s of this spec: digits"


@pytest.mark.parametrize("name", ["no", "on", "1", "2024-01-01", "1.0", "y"])
def test_names_that_yaml_1_1_would_read_as_something_else(load, name):
    inputs = f"inputs: {{x: {{shape: [{name}x, 3]}}}}, dims: {{{name}x: [1, 2, 3]}}"
    model = f"{{kind: onnx, source: a.onnx, {inputs}}}"
    assert list(load(f"spec: 1\nmodels:\n  {name}: {model}\n").spec.models) == [name]


def test_a_dimension_may_be_called_no(load):
    project = load(DIGITS.replace("batch", "no").replace("no_dim", "batch_dim"))
    assert list(project.model("digits").inputs["image"].shape) == ["no", 1, 8, 8]


def test_small_numbers_in_exponents_are_numbers(load):
    assert (
        load(DIGITS + "    tolerance: {absolute: 1e-5, relative: 0}\n").model("digits").tolerance.absolute
        == 1e-5
    )


def test_a_release_newer_than_the_table_is_accepted(load):
    assert load(DIGITS + "release: '27.01'\n").spec.release == "27.01"


@pytest.mark.parametrize("name", ["batch-size", "2x", "a.b"])
def test_a_dimension_of_a_pytorch_model_is_an_identifier(load, name):
    model = f"{{source: 'a:b', inputs: {{x: {{shape: [{name}, 3]}}}}, dims: {{{name}: [1, 2, 3]}}}}"
    with pytest.raises(SpecError, match="cannot name a dimension of a PyTorch model"):
        load(f"spec: 1\nmodels:\n  m: {model}\n")


VARIANTS = DIGITS + "    variants: {fp32: {}, fp16: {precision: fp16}, cpu: {precision: int8-dynamic}}\n"


def test_each_variant_under_also_is_a_model_of_its_own_after_its_model(load):
    project = load(VARIANTS + "    also: [fp16, cpu]\n")
    assert list(project.spec.models) == ["digits", "digits_fp16", "digits_cpu"]
    assert [project.model(name).variant for name in project.spec.models] == ["fp32", "fp16", "cpu"]
    assert project.with_variants(["digits"]) == ["digits", "digits_fp16", "digits_cpu"]
    assert project.with_variants(["digits_cpu"]) == ["digits_cpu"]


def test_a_fault_of_a_variants_model_points_at_the_model_that_lists_it(load):
    project = load(VARIANTS + "    also: [fp16]\n")
    error = project.error(("models", "digits_fp16", "also"), "wrong")
    assert str(error).endswith(": models.digits.also: wrong")
    assert error.message == project.error(("models", "digits", "also"), "wrong").message


def test_a_variants_name_may_not_be_taken(load):
    other = "  digits_fp16: {kind: onnx, source: a.onnx}\n"
    with pytest.raises(SpecError, match=r"models.digits.also\[0\]: would be served as 'digits_fp16'"):
        load(VARIANTS + "    also: [fp16]\n" + other)


def test_a_store_that_leads_to_the_repository_through_a_link_is_refused(load, tmp_path):
    (tmp_path / "model_repository").mkdir()
    (tmp_path / "served").symlink_to("model_repository")
    with pytest.raises(SpecError, match=r"targets\.t\.store: 'served' is the folder that tt build writes"):
        load(DIGITS + "targets: {t: {store: served, servers: ['grpc://h:1']}}\n")
