"""Plain values of ``serve:`` -> protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from triton_toolkit.config.fields import fill_message
from triton_toolkit.config.message import parse_config
from triton_toolkit.config.scalars import ServeKeyError
from triton_toolkit.errors import SpecError


def _filled(values: Any) -> ModelConfig:
    message = ModelConfig()
    fill_message(message, values)
    return message


def _error(values: Any) -> ServeKeyError:
    with pytest.raises(ServeKeyError) as caught:
        _filled(values)
    return caught.value


@pytest.mark.parametrize(
    ("values", "text"),
    [
        pytest.param({"runtime": "a.so"}, 'runtime: "a.so"', id="text"),
        pytest.param(
            {"dynamic_batching": {"preferred_batch_size": [4, 8], "preserve_ordering": True}},
            "dynamic_batching { preferred_batch_size: [4, 8] preserve_ordering: true }",
            id="block",
        ),
        pytest.param({"dynamic_batching": {}}, "dynamic_batching { }", id="empty-block"),
        pytest.param({"dynamic_batching": True}, "dynamic_batching { }", id="block-on"),
        pytest.param({"dynamic_batching": False}, "", id="block-off"),
        pytest.param({"response_cache": True}, "response_cache { enable: true }", id="switch-on"),
        pytest.param(
            {"optimization": {"input_pinned_memory": False}},
            "optimization { input_pinned_memory { enable: false } }",
            id="switch-off",
        ),
        pytest.param(
            {"optimization": {"cuda": {"graphs": True}}}, "optimization { cuda { graphs: true } }", id="deep"
        ),
        pytest.param(
            {"instance_group": [{"count": 1}, {"count": 2}]},
            "instance_group [{ count: 1 }, { count: 2 }]",
            id="blocks",
        ),
        pytest.param({"instance_group": {"count": 2}}, "instance_group { count: 2 }", id="one-block"),
        pytest.param(
            {"dynamic_batching": {"preferred_batch_size": 8}},
            "dynamic_batching { preferred_batch_size: 8 }",
            id="one-number",
        ),
        pytest.param(
            {"instance_group": {"profile": [0, "1"]}},
            'instance_group { profile: ["0", "1"] }',
            id="numbers-as-text",
        ),
        pytest.param(
            {"instance_group": {"kind": "KIND_CPU"}}, "instance_group { kind: KIND_CPU }", id="enum"
        ),
        pytest.param(
            {"instance_group": {"kind": "cpu"}}, "instance_group { kind: KIND_CPU }", id="enum-short"
        ),
        pytest.param(
            {"dynamic_batching": {"default_queue_policy": {"timeout_action": "delay"}}},
            "dynamic_batching { default_queue_policy { timeout_action: DELAY } }",
            id="enum-without-prefix",
        ),
        pytest.param(
            {"batch_input": {"data_type": "float32"}, "input": {"data_type": "bytes"}},
            "batch_input { data_type: TYPE_FP32 } input { data_type: TYPE_STRING }",
            id="types-by-other-names",
        ),
        pytest.param(
            {"parameters": {"a": "x", "b": 2, "c": 0.5, "d": {"string_value": "y"}}},
            'parameters [{ key: "a" value { string_value: "x" } }, { key: "b" value { string_value: "2" } },'
            '{ key: "c" value { string_value: "0.5" } }, { key: "d" value { string_value: "y" } }]',
            id="parameters",
        ),
        pytest.param(
            {"metric_tags": {"team": "a", "n": 1}},
            'metric_tags [{ key: "team" value: "a" }, { key: "n" value: "1" }]',
            id="map",
        ),
        pytest.param(
            {"dynamic_batching": {"priority_queue_policy": {"1": {"max_queue_size": 5}}}},
            "dynamic_batching { priority_queue_policy { key: 1 value { max_queue_size: 5 } } }",
            id="map-of-levels",
        ),
        pytest.param(
            {"dynamic_batching": {"priority_queue_policy": {"1": {}}}},
            "dynamic_batching { priority_queue_policy { key: 1 value { } } }",
            id="map-of-empty-blocks",
        ),
        pytest.param({"version_policy": {"all": True}}, "version_policy { all { } }", id="choice"),
        pytest.param(
            {"dynamic_batching": True, "sequence_batching": False}, "dynamic_batching { }", id="choice-off"
        ),
        pytest.param(
            {"sequence_batching": {"direct": {"minimum_slot_utilization": 1}}},
            "sequence_batching { direct { minimum_slot_utilization: 1.0 } }",
            id="whole-number-as-float",
        ),
    ],
)
def test_values_become_fields(values: dict[str, Any], text: str) -> None:
    assert _filled(values) == parse_config(text, "wanted")


@pytest.mark.parametrize(
    ("delay", "microseconds"),
    [("1ms", 1000), ("1.5ms", 1500), ("500us", 500), ("2s", 2_000_000), (250, 250), ("250", 250), (0, 0)],
)
def test_duration_is_in_microseconds(delay: object, microseconds: int) -> None:
    config = _filled({"dynamic_batching": {"max_queue_delay_microseconds": delay}})
    assert config.dynamic_batching.max_queue_delay_microseconds == microseconds


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("max_workspace_size_bytes", "1GiB", "1073741824"),
        ("gpu_mem_limit", "64MiB", "67108864"),
        ("max_workspace_size_bytes", "4096", "4096"),
        ("max_workspace_size_bytes", 4096, "4096"),
        ("cache_dir", "1GiB", "1GiB"),
    ],
)
def test_size_is_in_bytes(key: str, value: object, text: str) -> None:
    accelerator = {"name": "tensorrt", "parameters": {key: value}}
    config = _filled({"optimization": {"execution_accelerators": {"gpu_execution_accelerator": accelerator}}})
    [written] = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert dict(written.parameters) == {key: text}
    assert _filled({"parameters": {key: value}}).parameters[key].string_value == text


@pytest.mark.parametrize(
    ("values", "path", "message", "hint"),
    [
        pytest.param(
            {"dynamic_batchin": {}},
            ("dynamic_batchin",),
            "ModelConfig has no field 'dynamic_batchin' (did you mean 'dynamic_batching'?)",
            "its fields: name,",
            id="unknown-near",
        ),
        pytest.param(
            {"optimization": {"max_queue_delay_microseconds": 1}},
            ("optimization", "max_queue_delay_microseconds"),
            "ModelOptimizationPolicy has no field 'max_queue_delay_microseconds'",
            "it is a field of dynamic_batching, sequence_batching.direct",
            id="unknown-here",
        ),
        pytest.param(
            {"instance_group": [{"count": 1}, {"cuont": 1}]},
            ("instance_group", 1, "cuont"),
            "ModelInstanceGroup has no field 'cuont' (did you mean 'count'?)",
            "",
            id="unknown-in-a-list",
        ),
        pytest.param(
            {"dynamic_batching": 3}, ("dynamic_batching",), "is a block of fields", "", id="no-block"
        ),
        pytest.param(
            {"instance_group": [3]}, ("instance_group", 0), "is a block of fields", "", id="no-blocks"
        ),
        pytest.param(
            {"dynamic_batching": None},
            ("dynamic_batching",),
            "has no value",
            "write {} for an empty block, or false",
            id="empty",
        ),
        pytest.param({"parameters": [1]}, ("parameters",), "maps names to values", "", id="no-map"),
        pytest.param(
            {"instance_group": {"count": "2"}},
            ("instance_group", "count"),
            "is a whole number, got '2'",
            "without quotes",
            id="text-for-number",
        ),
        pytest.param(
            {"instance_group": {"count": True}},
            ("instance_group", "count"),
            "is a whole number, got true",
            "",
            id="bool-for-number",
        ),
        pytest.param(
            {"instance_group": {"count": 1.5}},
            ("instance_group", "count"),
            "is a whole number, got 1.5",
            "",
            id="fraction",
        ),
        pytest.param(
            {"instance_group": {"count": 2**31}},
            ("instance_group", "count"),
            "2147483648 is outside -2147483648 to",
            "",
            id="int32",
        ),
        pytest.param(
            {"ensemble_scheduling": {"max_inflight_requests": -1}},
            ("ensemble_scheduling", "max_inflight_requests"),
            "-1 is outside 0 to 4294967295",
            "",
            id="uint32",
        ),
        pytest.param(
            {"optimization": {"cuda": {"graphs": "yes"}}},
            ("optimization", "cuda", "graphs"),
            "is true or false, got 'yes'",
            "",
            id="text-for-bool",
        ),
        pytest.param(
            {"sequence_batching": {"direct": {"minimum_slot_utilization": "all"}}},
            ("sequence_batching", "direct", "minimum_slot_utilization"),
            "is a number, got 'all'",
            "",
            id="text-for-float",
        ),
        pytest.param(
            {"sequence_batching": {"direct": {"minimum_slot_utilization": float("nan")}}},
            ("sequence_batching", "direct", "minimum_slot_utilization"),
            "nan is not a number",
            "",
            id="nan",
        ),
        pytest.param({"runtime": 1.5}, ("runtime",), "is text, got 1.5", "in quotes", id="float-for-text"),
        pytest.param({"runtime": None}, ("runtime",), "is text, got nothing", "", id="nothing-for-text"),
        pytest.param({"runtime": ["a"]}, ("runtime",), "is text, got a list", "", id="list-for-text"),
        pytest.param(
            {"runtime": "\ud800"}, ("runtime",), "'\\ud800' is not Unicode text", "", id="surrogate"
        ),
        pytest.param(
            {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": False}},
            ("parameters", "FORCE_CPU_ONLY_INPUT_TENSORS"),
            "is text, got false, which YAML takes for a boolean",
            "in quotes",
            id="yaml-no",
        ),
        pytest.param(
            {"instance_group": {"kind": "cpus"}},
            ("instance_group", "kind"),
            "Kind has no value 'cpus' (did you mean 'KIND_CPU'?)",
            "use KIND_AUTO, KIND_GPU",
            id="enum-near",
        ),
        pytest.param(
            {"instance_group": {"kind": 2}},
            ("instance_group", "kind"),
            "is a name, got 2",
            "use KIND",
            id="enum-number",
        ),
        pytest.param(
            {"dynamic_batching": {"max_queue_delay_microseconds": "1kg"}},
            ("dynamic_batching", "max_queue_delay_microseconds"),
            "'1kg' needs a unit of time",
            "",
            id="unit",
        ),
        pytest.param(
            {"dynamic_batching": {"max_queue_delay_microseconds": "0.5us"}},
            ("dynamic_batching", "max_queue_delay_microseconds"),
            "'0.5us' is not a whole",
            "",
            id="below-a-microsecond",
        ),
        pytest.param(
            {"parameters": {"gpu_mem_limit": "2 XB"}},
            ("parameters", "gpu_mem_limit"),
            "'2 XB' has an unknown unit",
            "",
            id="unit-of-size",
        ),
        pytest.param(
            {"dynamic_batching": {}, "sequence_batching": {}},
            ("sequence_batching",),
            "cannot stand beside dynamic_batching",
            "only one of dynamic_batching, sequence_batching, ensemble_scheduling",
            id="two-schedulers",
        ),
        pytest.param(
            {"dynamic_batching": {"priority_queue_policy": {"first": {}}}},
            ("dynamic_batching", "priority_queue_policy", "first"),
            "is a whole number, got 'first'",
            "",
            id="map-key",
        ),
    ],
)
def test_error_names_key_and_rule(
    values: dict[str, Any], path: tuple[str | int, ...], message: str, hint: str
) -> None:
    error = _error(values)
    assert error.path == path
    assert error.message.startswith(message)
    assert error.hint.startswith(hint) or hint in error.hint


def test_error_is_a_spec_error_that_shows_its_key() -> None:
    error = _error({"instance_group": [{"count": "x"}]})
    assert isinstance(error, SpecError)
    assert str(error) == "serve.instance_group[0].count: is a whole number, got 'x'"
    assert error.message == "is a whole number, got 'x'"


def test_what_is_set_stays() -> None:
    message = parse_config("dynamic_batching { preserve_ordering: true }", "c")
    fill_message(message, {"dynamic_batching": {"priority_levels": 1}})
    assert message == parse_config("dynamic_batching { preserve_ordering: true priority_levels: 1 }", "c")
