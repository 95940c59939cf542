"""Properties that hold for any config: nothing is lost on any way through."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_toolkit.config.fields import fill_message
from triton_toolkit.config.message import format_config, parse_config
from triton_toolkit.config.render import render_message
from triton_toolkit.config.rules import check_config
from triton_toolkit.config.templates import quote
from triton_toolkit.config.vocabulary import is_map

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
SETTINGS = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.name for value in field.enum_type.values])
    bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32) else 64
    signed = field.type in (field.TYPE_INT32, field.TYPE_INT64)
    special = {
        field.TYPE_STRING: TEXT.filter(lambda text: not text[:1].isdigit()),
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_FLOAT: st.floats(allow_nan=False, allow_infinity=False, width=32),
        field.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    }
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return special.get(field.type, st.integers(low, high))


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if is_map(field):
        parts = field.message_type.fields_by_name
        return st.dictionaries(_scalars(parts["key"]), _values(parts["value"]), max_size=2)
    one = _scalars(field) if field.message_type is None else _blocks(field.message_type)
    return st.lists(one, max_size=2) if field.is_repeated else one


def _blocks(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    """Plain values for a message: any subset of its fields, one member of each oneof at most."""
    plain = [field for field in descriptor.fields if field.containing_oneof is None]
    choices = [
        st.one_of(st.just({}), *(st.fixed_dictionaries({f.name: _values(f)}) for f in oneof.fields))
        for oneof in descriptor.oneofs
    ]
    optional = {field.name: _values(field) for field in plain}
    return st.tuples(st.fixed_dictionaries({}, optional=optional), *choices).map(_merged)


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


CONFIGS = st.deferred(lambda: _blocks(ModelConfig.DESCRIPTOR))


def _message(values: dict[str, Any]) -> ModelConfig:
    return json_format.ParseDict(values, ModelConfig())


@SETTINGS
@given(CONFIGS)
def test_every_field_can_be_set_from_plain_values(values: dict[str, Any]) -> None:
    message = ModelConfig()
    fill_message(message, values)
    assert message == _message(values)


@SETTINGS
@given(CONFIGS)
def test_format_and_parse_lose_nothing(values: dict[str, Any]) -> None:
    message = _message(values)
    assert parse_config(format_config(message), "text") == message


@SETTINGS
@given(CONFIGS)
def test_templates_lose_nothing(values: dict[str, Any]) -> None:
    message = _message(values)
    assert parse_config(render_message(message), "text") == message


@SETTINGS
@given(CONFIGS)
def test_rules_judge_any_config(values: dict[str, Any]) -> None:
    for finding in check_config(_message(values)):
        assert finding.path
        assert finding.message


@SETTINGS
@given(TEXT)
def test_quoted_text_is_one_literal(text: str) -> None:
    config = parse_config(f"runtime: {quote(text)} name: {quote(text)}", "text")
    assert (config.runtime, config.name) == (text, text)


@SETTINGS
@given(st.integers(1, 64), st.lists(st.integers(-2, 80), max_size=4))
def test_preferred_sizes_are_faulty_outside_1_to_the_largest(largest: int, sizes: list[int]) -> None:
    message = ModelConfig(max_batch_size=largest)
    message.dynamic_batching.preferred_batch_size.extend(sizes)
    faulty = [finding.path[-1] for finding in check_config(message)]
    assert faulty == [index for index, size in enumerate(sizes) if not 1 <= size <= largest]


@SETTINGS
@given(st.lists(st.lists(st.integers(1, 5), max_size=3), min_size=1, max_size=4))
def test_reshape_within_the_dynamic_dimensions_is_right(groups: list[list[int]]) -> None:
    """Each group of sizes between two dynamic dimensions becomes one size."""
    dims = [size for group in groups for size in (*group, -1)][:-1]
    shape = [size for group in groups for size in (math.prod(group), -1)][:-1]
    message = ModelConfig(backend="python", max_batch_size=4)
    message.input.add(name="x", data_type=11, dims=dims or [1]).reshape.shape.extend(shape)
    assert check_config(message) == []
    message.input[0].reshape.shape[0] += 1 if shape[0] > 0 else 3
    assert [finding.rule for finding in check_config(message)] == ["tensor/reshape"]


@SETTINGS
@given(st.permutations(range(5)), st.data())
def test_chain_of_steps_is_right_in_any_order(order: list[int], data: st.DataObject) -> None:
    message = ModelConfig(platform="ensemble")
    message.input.add(name="t0", data_type=11, dims=[1])
    message.output.add(name="t5", data_type=11, dims=[1])
    for index in order:
        step = message.ensemble_scheduling.step.add(model_name="m", model_version=-1)
        step.input_map["x"] = f"t{index}"
        step.output_map["y"] = f"t{index + 1}"
    assert check_config(message) == []
    del message.ensemble_scheduling.step[data.draw(st.integers(0, 4))]
    assert {finding.rule for finding in check_config(message)} == {"ensemble/wiring"}
