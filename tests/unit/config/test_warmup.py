"""``warmup: auto``: samples from shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from triton_toolkit.config.describe import ConfigDescription, ServeKeyError, build_message
from triton_toolkit.config.message import parse_config
from triton_toolkit.core.tensors import DataType, TensorSpec

ENCODER = ConfigDescription(
    name="encoder",
    backend="onnxruntime",
    max_batch_size=16,
    inputs=(
        TensorSpec(name="ids", dtype=DataType.INT64, shape=("batch", "seq")),
        TensorSpec(name="pixels", dtype=DataType.FP32, shape=("batch", 3, "seq")),
    ),
    outputs=(TensorSpec(name="out", dtype=DataType.FP32, shape=("batch", 4)),),
    batch_dim="batch",
    warmup="auto",
    warmup_sizes=({"seq": 64}, {"seq": 128}),
)


def _samples(description: ConfigDescription, **serve: Any) -> list[Any]:
    return list(build_message(replace(description, serve=serve)).model_warmup)


def test_batch_1_and_the_largest_at_each_size() -> None:
    samples = _samples(ENCODER)
    assert [(s.batch_size, list(s.inputs["ids"].dims)) for s in samples] == [
        (1, [64]),
        (16, [64]),
        (1, [128]),
        (16, [128]),
    ]


def test_preferred_batch_sizes_are_warmed_as_well() -> None:
    fixed = replace(ENCODER, warmup_sizes=({"seq": 64},))
    samples = _samples(fixed, dynamic_batching={"preferred_batch_size": [4, 16, 8]})
    assert [sample.batch_size for sample in samples] == [1, 4, 8, 16]


def test_sample_has_every_input_in_its_type_and_says_what_it_is() -> None:
    sample = _samples(ENCODER)[1]
    wanted = """
        name: "batch 16, seq 64" batch_size: 16
        inputs { key: "ids" value { data_type: TYPE_INT64 dims: [64] zero_data: true } }
        inputs { key: "pixels" value { data_type: TYPE_FP32 dims: [3, 64] zero_data: true } }
    """
    assert sample == parse_config(f"model_warmup {{ {wanted} }}", "wanted").model_warmup[0]


def test_without_batching_one_sample_of_batch_size_1_with_all_dims() -> None:
    bare = replace(ENCODER, max_batch_size=0, batch_dim=None, warmup_sizes=({"batch": 2, "seq": 8},))
    [sample] = _samples(bare)
    assert sample.batch_size == 1
    assert list(sample.inputs["pixels"].dims) == [2, 3, 8]
    assert sample.name == "batch 2, seq 8"


def test_fixed_shapes_need_no_sizes() -> None:
    fixed = replace(
        ENCODER,
        inputs=(TensorSpec(name="x", dtype=DataType.BYTES, shape=("batch", 2)),),
        warmup_sizes=(),
        max_batch_size=1,
    )
    [sample] = _samples(fixed)
    assert (sample.name, sample.batch_size, list(sample.inputs["x"].dims)) == ("batch 1", 1, [2])


def test_value_a_batch_item_keeps_its_dims_of_1() -> None:
    described = replace(
        ENCODER, inputs=(TensorSpec(name="x", dtype=DataType.FP32, shape=("batch",)),), warmup_sizes=()
    )
    assert list(_samples(described)[0].inputs["x"].dims) == [1]


def test_dimension_without_size_is_an_error() -> None:
    with pytest.raises(ServeKeyError) as caught:
        build_message(replace(ENCODER, warmup_sizes=({"length": 3},)))
    assert caught.value.path == ("warmup",)
    assert "a size for dimension 'seq' of input 'ids'" in caught.value.message


def test_own_samples_are_kept() -> None:
    inputs = {
        "ids": {"data_type": "int64", "dims": [7], "zero_data": True},
        "pixels": {"data_type": "fp32", "dims": [3, 7], "random_data": True},
    }
    [sample] = _samples(ENCODER, model_warmup={"name": "mine", "batch_size": 2, "inputs": inputs})
    assert sample.name == "mine"


def test_none_makes_no_samples() -> None:
    assert _samples(replace(ENCODER, warmup="none")) == []


def test_control_tensors_are_inputs_of_the_sample() -> None:
    control = {"kind": "start", "int32_false_true": [0, 1]}
    identity = {"kind": "corrid", "data_type": "uint64"}
    samples = _samples(
        ENCODER,
        sequence_batching={
            "control_input": [{"name": "start", "control": control}, {"name": "id", "control": identity}]
        },
    )
    given = samples[0].inputs
    assert {name: (given[name].data_type, list(given[name].dims)) for name in ("start", "id")} == {
        "start": (8, [1]),
        "id": (5, [1]),
    }


def test_implicit_state_needs_samples_by_hand() -> None:
    state = {"input_name": "a", "output_name": "b", "data_type": "fp32", "dims": [1]}
    with pytest.raises(ServeKeyError, match="implicit state"):
        _samples(ENCODER, sequence_batching={"state": state})
