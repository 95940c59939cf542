"""Text of a config <-> protobuf: errors with place, near match and consequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from triton_toolkit.config.message import format_config, load_config, parse_config
from triton_toolkit.errors import RepositoryError
from triton_toolkit.server.embedded import EmbeddedServer


def _error(text: str) -> RepositoryError:
    with pytest.raises(RepositoryError) as caught:
        parse_config(text, "config.pbtxt")
    return caught.value


def test_error_names_file_line_column_and_consequence() -> None:
    error = _error('name: "a"\n  max_batch_size: four\n')
    assert str(error) == (
        "config.pbtxt:2:19: Couldn't parse integer: four. "
        "Triton refuses the whole file: the model does not load"
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param(
            "maxBatchSize: 4",
            "1:1: ModelConfig has no field 'maxBatchSize' (did you mean 'max_batch_size'?)",
            "its fields: name, platform",
            id="field-near",
        ),
        pytest.param(
            "dynamic_batching {\n  max_queue_delay: 3\n}",
            "2:3: ModelDynamicBatching has no field 'max_queue_delay'",
            "its fields: preferred_batch_size",
            id="field-in-a-block",
        ),
        pytest.param(
            "preferred_batch_size: [4]",
            "1:1: ModelConfig has no field 'preferred_batch_size'",
            "it is a field of dynamic_batching, sequence_batching.oldest",
            id="field-of-another-block",
        ),
        pytest.param(
            "zzz: 1", "1:1: ModelConfig has no field 'zzz'.", "its fields: name", id="field-unlike-any"
        ),
        pytest.param(
            "input { data_type: TYPE_FLOAT }",
            "1:20: DataType has no value 'TYPE_FLOAT' (did you mean 'TYPE_FP32'?)",
            "its values: TYPE_INVALID, TYPE_BOOL",
            id="type-of-another-tool",
        ),
        pytest.param(
            "instance_group { kind: KIND_CPUS }",
            "1:24: ModelInstanceGroup.Kind has no value 'KIND_CPUS' (did you mean 'KIND_CPU'?)",
            "its values: KIND_AUTO",
            id="enum-near",
        ),
        pytest.param('name: "a" name: "b"', '1:17: Message type "ModelConfig" should not', "", id="twice"),
        pytest.param("max_batch_size: 9999999999", "1:17: Value out of range: 9999999999", "", id="range"),
        pytest.param('input {\n  name: "x"\n', '2:9: Expected "}"', "", id="open-at-the-end"),
        pytest.param("name:", "1:6: Expected string but found: ''", "", id="value-missing"),
        pytest.param("max_batch_size: $N", "1:17: Couldn't parse integer: $", "", id="placeholder"),
    ],
)
def test_error_explains(text: str, message: str, hint: str) -> None:
    error = _error(text)
    assert error.message.startswith(f"config.pbtxt:{message}")
    assert error.hint.startswith(hint)


def test_empty_text_is_a_config() -> None:
    assert format_config(parse_config("", "c")) == ""


def test_format_is_the_same_for_equal_configs() -> None:
    one = parse_config('max_batch_size: 4 parameters { key: "b" } parameters { key: "a" } name: "m"', "c")
    other = parse_config(
        'name: "m"\nparameters { key: "a" value { } }\nparameters { key: "b" }\nmax_batch_size: 4', "c"
    )
    assert one == other
    assert format_config(one) == format_config(other)


def test_format_keeps_empty_blocks_and_short_lists() -> None:
    text = 'dynamic_batching { } input { name: "é" dims: 1 dims: -1 reshape { shape: [] } }'
    assert format_config(parse_config(text, "c")) == (
        'input {\n  name: "é"\n  dims: [1, -1]\n  reshape { }\n}\ndynamic_batching { }\n'
    )


def test_format_says_that_a_switch_is_off() -> None:
    text = "optimization {\n  input_pinned_memory { enable: false }\n}\nresponse_cache { enable: false }\n"
    assert (
        format_config(parse_config("optimization { input_pinned_memory { } } response_cache { }", "c"))
        == text
    )


def test_format_leaves_literals_alone() -> None:
    config = parse_config(r'runtime: "response_cache {\n}" name: "{\n}"', "c")
    assert parse_config(format_config(config), "c") == config


def test_load_reads_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_text('name: "é"', encoding="utf-8")
    assert load_config(tmp_path / "config.pbtxt").name == "é"


def test_load_names_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match=r"m/config\.pbtxt: cannot be read: No such file"):
        load_config(tmp_path / "config.pbtxt", "m/config.pbtxt")


def test_load_says_where_text_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "config.pbtxt").write_bytes(b'name: "\xe9"')
    with pytest.raises(RepositoryError, match=r"config\.pbtxt: not UTF-8 text \(byte 7\)"):
        load_config(tmp_path / "config.pbtxt")


SYNTAX = {
    "zero_then_value": "max_batch_size: 0",
    "twice": "max_batch_size: -2",
    "block_twice": "dynamic_batching { } dynamic_batching { }",
    "two_of_a_oneof": "dynamic_batching { } sequence_batching { }",
    "map_key_twice": 'parameters { key: "a" } parameters { key: "a" }',
    "bool_true": "dynamic_batching { preserve_ordering: True }",
    "bool_t": "dynamic_batching { preserve_ordering: t }",
    "bool_1": "dynamic_batching { preserve_ordering: 1 }",
    "bool_upper": "dynamic_batching { preserve_ordering: TRUE }",
    "bool_yes": "dynamic_batching { preserve_ordering: yes }",
    "enum_number": "input { data_type: 11 }",
    "enum_unknown_number": "input { data_type: 99 }",
    "enum_lower_case": "input { data_type: type_fp32 }",
    "list_with_last_comma": "input { dims: [2,] }",
    "list_without_colon": "input { dims [2] }",
    "blocks_with_last_comma": "input [{ dims: 1 },]",
    "hexadecimal": "input { dims: 0x2 }",
    "octal": "input { dims: 010 }",
    "float_for_integer": "input { dims: 8.0 }",
    "negative_for_unsigned": "dynamic_batching { max_queue_delay_microseconds: -1 }",
    "too_big": "input { dims: 99999999999999999999 }",
    "single_quotes": "runtime: 'a'",
    "adjacent_literals": 'runtime: "a" "b"',
    "angle_brackets": "input < dims: 1 >",
    "semicolon": 'runtime: "a";',
    "field_number": "4: 8",
    "camel_case": "maxBatchSize: 8",
    "empty_list": "input { dims: [] }",
    "utf_8": 'parameters { key: "é" }',
    "hash_comment": "# anything { [",
    "slash_comment": "// anything",
    "open_literal": 'runtime: "a',
    "open_block": "input { ",
    "extension": "[foo.bar]: 1",
    "unknown_field": "graph_optimization_level: 1",
}
"""Ways of writing, some of them wrong; each is added to a config that is refused once it is parsed."""


def _is_parsed(text: str) -> bool:
    try:
        parse_config(text, "c")
    except RepositoryError:
        return False
    return True


@pytest.mark.server
def test_what_parses_is_what_the_server_parses(
    tmp_path_factory: pytest.TempPathFactory, embedded_server: Callable[..., EmbeddedServer]
) -> None:
    repository = tmp_path_factory.mktemp("syntax")
    texts = {name: f"max_batch_size: -1\n{text}\n" for name, text in SYNTAX.items()}
    texts["zero_then_value"] = "max_batch_size: 0\nmax_batch_size: -1\n"
    for name, text in texts.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text("")
        (repository / name / "config.pbtxt").write_text(text)
    server = embedded_server(repository, load=())
    reasons = {name: server.load(name) for name in texts}
    assert all(reasons.values())
    parsed = {name: "failed to read text proto" not in reason for name, reason in reasons.items()}
    assert parsed == {name: _is_parsed(text) for name, text in texts.items()}
    assert 10 < sum(parsed.values()) < len(parsed) - 10
