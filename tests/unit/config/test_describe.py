"""From a description to the ModelConfig."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_toolkit.config.describe import (
    ConfigDescription,
    EnsembleStep,
    ServeKeyError,
    build_message,
    check_serve,
)
from triton_toolkit.config.message import format_config, parse_config
from triton_toolkit.core.tensors import DataType, TensorSpec

IMAGE = TensorSpec(name="image", dtype=DataType.FP32, shape=("batch", 1, 8, 8))
LOGITS = TensorSpec(name="logits", dtype=DataType.FP32, shape=("batch", 10))
DIGITS = ConfigDescription(
    name="digits",
    backend="onnxruntime",
    max_batch_size=32,
    inputs=(IMAGE,),
    outputs=(LOGITS,),
    batch_dim="batch",
)


def _tensor(name: str, *shape: int | str, dtype: DataType = DataType.FP32) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def _serve(**values: Any) -> ModelConfig:
    return build_message(replace(DIGITS, serve=values))


def _error(description: ConfigDescription) -> ServeKeyError:
    with pytest.raises(ServeKeyError) as caught:
        build_message(description)
    return caught.value


def test_batch_dimension_is_left_to_the_server() -> None:
    assert format_config(build_message(DIGITS)) == (
        'name: "digits"\nmax_batch_size: 32\n'
        'input {\n  name: "image"\n  data_type: TYPE_FP32\n  dims: [1, 8, 8]\n}\n'
        'output {\n  name: "logits"\n  data_type: TYPE_FP32\n  dims: [10]\n}\n'
        'backend: "onnxruntime"\n'
    )


def test_without_batching_all_dimensions_are_listed() -> None:
    config = build_message(replace(DIGITS, max_batch_size=0, batch_dim=None))
    assert list(config.input[0].dims) == [-1, 1, 8, 8]
    assert not config.max_batch_size


@pytest.mark.parametrize("dtype", list(DataType))
def test_every_type_has_its_name_in_the_proto(dtype: DataType) -> None:
    tensor = _tensor("x", "batch", 2, dtype=dtype)
    config = build_message(replace(DIGITS, inputs=(tensor,)))
    assert f"data_type: {dtype.triton}\n" in format_config(config)


def test_one_value_a_batch_item_is_reshaped_away() -> None:
    config = build_message(replace(DIGITS, outputs=(_tensor("score", "batch"),)))
    assert format_config(config.output[0]) == (
        'name: "score"\ndata_type: TYPE_FP32\ndims: [1]\nreshape { }\n'
    )


def test_onnx_scalar_without_batching_has_dims_1() -> None:
    bare = replace(DIGITS, max_batch_size=0, batch_dim=None, outputs=(_tensor("score"),))
    assert format_config(build_message(bare).output[0]) == (
        'name: "score"\ndata_type: TYPE_FP32\ndims: [1]\n'
    )


def test_scalar_of_another_backend_is_refused() -> None:
    error = _error(
        replace(DIGITS, backend="python", max_batch_size=0, batch_dim=None, outputs=(_tensor("score"),))
    )
    assert "output 'score' is a scalar" in error.message
    assert error.hint == "give it a dimension of size 1"


def test_serve_fields_are_taken_over() -> None:
    config = _serve(dynamic_batching={"max_queue_delay_microseconds": "1ms"}, parameters={"a": 1})
    assert config.dynamic_batching.max_queue_delay_microseconds == 1000
    assert config.parameters["a"].string_value == "1"


@pytest.mark.parametrize("key", ["name", "backend", "platform", "default_model_filename"])
def test_what_tt_derives_cannot_be_set(key: str) -> None:
    error = _error(replace(DIGITS, serve={key: "x"}))
    assert error.path == (key,)
    assert error.message.startswith("cannot be set")
    assert error.hint


def test_serve_can_be_checked_before_a_build() -> None:
    check_serve({"dynamic_batching": {"preferred_batch_size": [64]}, "max_batch_size": 4, "input": {"x": {}}})
    with pytest.raises(ServeKeyError, match=r"serve\.dynamic_batching\.max_delay: "):
        check_serve({"dynamic_batching": {"max_delay": "1ms"}})


def test_file_of_a_python_model_can_be_set() -> None:
    python = replace(DIGITS, backend="python", serve={"default_model_filename": "main.py"})
    assert build_message(python).default_model_filename == "main.py"


def test_tensors_take_further_fields_by_name() -> None:
    config = _serve(
        input={"image": {"format": "nchw", "optional": True}}, output={"logits": {"label_filename": "l.txt"}}
    )
    assert config.input[0].format == config.input[0].FORMAT_NCHW
    assert config.input[0].optional
    assert config.output[0].label_filename == "l.txt"


def test_reshape_from_the_spec_replaces_our_own() -> None:
    described = replace(
        DIGITS, inputs=(_tensor("x", "batch"),), serve={"input": {"x": {"reshape": {"shape": [1, 1]}}}}
    )
    assert list(build_message(described).input[0].reshape.shape) == [1, 1]


@pytest.mark.parametrize(
    ("serve", "path", "message"),
    [
        pytest.param(
            {"input": {"imgae": {}}},
            ("input", "imgae"),
            "the model has no input 'imgae' (did you mean 'image'?)",
            id="unknown-tensor",
        ),
        pytest.param(
            {"output": {"logits": {"dims": [3]}}}, ("output", "logits", "dims"), "cannot be set", id="dims"
        ),
        pytest.param(
            {"input": {"image": {"data_type": "fp16"}}},
            ("input", "image", "data_type"),
            "cannot be set",
            id="type",
        ),
        pytest.param({"input": [{"name": "image"}]}, ("input",), "maps names of inputs", id="list"),
        pytest.param({"input": {"image": 3}}, ("input", "image"), "is a block of fields", id="no-block"),
        pytest.param(
            {"input": {"image": {"optonal": True}}},
            ("input", "image", "optonal"),
            "ModelInput has no field",
            id="unknown-field",
        ),
        pytest.param(
            {"ensemble_scheduling": {"step": []}},
            ("ensemble_scheduling", "step"),
            "cannot be set",
            id="steps",
        ),
        pytest.param({"max_batch_size": 64}, ("max_batch_size",), "64 is outside 1 to 32", id="batch-above"),
        pytest.param({"max_batch_size": 0}, ("max_batch_size",), "0 is outside 1 to 32", id="batch-0"),
        pytest.param(
            {"max_batch_size": "8"}, ("max_batch_size",), "is a whole number, got '8'", id="batch-text"
        ),
        pytest.param(
            {"dynamic_batching": {"preferred_batch_size": [8, 64]}},
            ("dynamic_batching", "preferred_batch_size", 1),
            "64 is above max_batch_size 32; Triton refuses to load the model",
            id="server-rule",
        ),
        pytest.param(
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}},
            ("dynamic_batching", "preferred_batch_size", 0),
            "8 is above max_batch_size 4",
            id="server-rule-with-lowered-batch",
        ),
        pytest.param(
            {"metric_tags": {"a-b": "x"}},
            ("metric_tags", "a-b"),
            "'a-b' cannot be a Prometheus label; the whole server process ends",
            id="tag-that-ends-the-server",
        ),
    ],
)
def test_error_names_the_key_below_serve(serve: dict[str, Any], path: tuple[str, ...], message: str) -> None:
    error = _error(replace(DIGITS, serve=serve))
    assert error.path == path
    assert error.message.startswith(message)


def test_batch_size_can_be_lowered() -> None:
    assert _serve(max_batch_size=8).max_batch_size == 8


def test_batch_size_needs_a_batch_dimension() -> None:
    error = _error(replace(DIGITS, max_batch_size=0, batch_dim=None, serve={"max_batch_size": 8}))
    assert error.message == "8 needs a batch dimension, and this model has none"


def test_what_only_warns_is_no_error() -> None:
    bare = replace(DIGITS, max_batch_size=0, batch_dim=None, serve={"dynamic_batching": {}})
    assert build_message(bare).HasField("dynamic_batching")


def test_tensors_that_the_batcher_makes_are_not_listed() -> None:
    names = ("x", "start", "state", "count")
    described = replace(
        DIGITS,
        inputs=tuple(_tensor(name, "batch", 1) for name in names),
        outputs=(LOGITS, _tensor("new_state", "batch", 1)),
        serve={
            "sequence_batching": {
                "control_input": {"name": "start", "control": {"kind": "start", "fp32_false_true": [0, 1]}},
                "state": {
                    "input_name": "state",
                    "output_name": "new_state",
                    "data_type": "fp32",
                    "dims": [1],
                },
            },
            "batch_input": {"target_name": ["count"], "data_type": "fp32", "source_input": ["x"]},
        },
    )
    config = build_message(described)
    assert [entry.name for entry in config.input] == ["x"]
    assert [entry.name for entry in config.output] == ["logits"]


def test_state_that_is_returned_as_well_is_listed_where_named() -> None:
    described = replace(
        DIGITS,
        outputs=(LOGITS, _tensor("new_state", "batch", 1)),
        serve={
            "sequence_batching": {
                "state": {"input_name": "s", "output_name": "new_state", "data_type": "fp32", "dims": [1]}
            },
            "output": {"new_state": {}},
        },
    )
    assert [entry.name for entry in build_message(described).output] == ["logits", "new_state"]


def test_ensemble_asks_for_the_latest_version_of_each_step() -> None:
    described = ConfigDescription(
        name="pipeline",
        backend="",
        platform="ensemble",
        max_batch_size=8,
        inputs=(_tensor("text", "batch", 1, dtype=DataType.BYTES),),
        outputs=(_tensor("out", "batch", 2),),
        batch_dim="batch",
        ensemble_steps=(
            EnsembleStep(model_name="tok", input_map={"t": "text"}, output_map={"i": "ids"}),
            EnsembleStep(model_name="enc", input_map={"i": "ids"}, output_map={"o": "out"}, model_version=3),
        ),
        warmup="auto",
        serve={"ensemble_scheduling": {"max_inflight_requests": 4}},
    )
    assert build_message(described) == parse_config(
        """
        name: "pipeline" platform: "ensemble" max_batch_size: 8
        input { name: "text" data_type: TYPE_STRING dims: 1 }
        output { name: "out" data_type: TYPE_FP32 dims: 2 }
        ensemble_scheduling {
          max_inflight_requests: 4
          step { model_name: "tok" model_version: -1
                 input_map { key: "t" value: "text" } output_map { key: "i" value: "ids" } }
          step { model_name: "enc" model_version: 3
                 input_map { key: "i" value: "ids" } output_map { key: "o" value: "out" } }
        }
        """,
        "wanted",
    )


def test_description_can_name_the_file() -> None:
    assert build_message(replace(DIGITS, default_model_filename="m.onnx")).default_model_filename == "m.onnx"
