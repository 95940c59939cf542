"""Rendering through templates: proven by parsing back, overridable, safe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from triton_toolkit.config import templates
from triton_toolkit.config.describe import ConfigDescription, build_message
from triton_toolkit.config.message import parse_config
from triton_toolkit.config.render import render_config
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import RepositoryError, SpecError

DIGITS = ConfigDescription(
    name="digits",
    backend="onnxruntime",
    max_batch_size=32,
    inputs=(TensorSpec(name="image", dtype=DataType.FP32, shape=("batch", 1, 8, 8)),),
    outputs=(TensorSpec(name="logits", dtype=DataType.FP32, shape=("batch", 10)),),
    batch_dim="batch",
    serve={"dynamic_batching": {"max_queue_delay_microseconds": "1ms"}},
)
MAIN = "config.pbtxt.j2"
BATCHING = "config/dynamic_batching.pbtxt.j2"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write templates of a user: ``write({name: text})`` returns their folder."""

    def write_all(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return write_all


def _error(overrides: Path) -> RepositoryError:
    with pytest.raises(RepositoryError) as caught:
        render_config(DIGITS, overrides)
    return caught.value


def test_text_parses_back_to_the_message() -> None:
    assert parse_config(render_config(DIGITS), "text") == build_message(DIGITS)


def test_text_says_max_batch_size_when_it_is_0() -> None:
    text = render_config(replace(DIGITS, max_batch_size=0, batch_dim=None, serve={}))
    assert "\nmax_batch_size: 0\n" in text


def test_text_ends_with_one_line_break_and_has_no_double_gaps() -> None:
    text = render_config(DIGITS)
    assert text.endswith("}\n")
    assert "\n\n\n" not in text


def test_text_in_fields_cannot_end_its_literal() -> None:
    nasty = 'a" } backend: "x\n\r\\" \u2028é\x00\x7f\x85\x1c'
    serve = {
        "parameters": {nasty: nasty},
        "metric_tags": {"t": nasty},
        "runtime": nasty,
        "instance_group": {"name": nasty},
    }
    config = parse_config(render_config(replace(DIGITS, serve=serve)), "text")
    assert config.parameters[nasty].string_value == nasty
    assert config.metric_tags["t"] == nasty
    assert config.runtime == nasty
    assert config.instance_group[0].name == nasty
    assert config.backend == "onnxruntime"


def test_part_can_be_replaced(write: Callable[..., Path]) -> None:
    folder = write({BATCHING: "dynamic_batching { max_queue_delay_microseconds: 7 }\n"})
    config = parse_config(render_config(DIGITS, folder), "text")
    assert config.dynamic_batching.max_queue_delay_microseconds == 7
    assert config.input == build_message(DIGITS).input


def test_whole_can_extend_what_it_replaces(write: Callable[..., Path]) -> None:
    folder = write(
        {
            MAIN: '{% extends "shipped/config.pbtxt.j2" %}\n'
            "{% block parameters %}\n{{ super() }}"
            'parameters { key: "team" value { string_value: {{ config.name | quote }} } }\n'
            "{% endblock %}\n"
        }
    )
    config = parse_config(render_config(DIGITS, folder), "text")
    assert config.parameters["team"].string_value == "digits"
    assert config.dynamic_batching.max_queue_delay_microseconds == 1000


def test_template_may_include_files_of_its_own(write: Callable[..., Path]) -> None:
    folder = write({BATCHING: '{% include "mine.j2" %}', "mine.j2": "dynamic_batching { }"})
    assert parse_config(render_config(DIGITS, folder), "text").HasField("dynamic_batching")


def test_template_sees_unset_fields_as_false_and_enums_as_names(write: Callable[..., Path]) -> None:
    folder = write(
        {
            BATCHING: "{% if not config.optimization and not config.parameters and not config.runtime %}"
            '{% if config.input[0].data_type == "TYPE_FP32" %}dynamic_batching { }{% endif %}{% endif %}'
        }
    )
    assert parse_config(render_config(DIGITS, folder), "text").HasField("dynamic_batching")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("\n{% if %}", 2, "Expected an expression", id="syntax"),
        pytest.param("{# c #}\n{{ confg.name }}", 2, "'confg' is undefined", id="unknown-variable"),
        pytest.param(
            "\n\n{{ config.max_batchsize }}",
            3,
            "ModelConfig has no field 'max_batchsize' (did you mean 'max_batch_size'?)",
            id="unknown-field",
        ),
        pytest.param(
            "{{ config.dynamic_batching.priority }}",
            1,
            "ModelDynamicBatching has no field 'priority'",
            id="unknown-field-of-block",
        ),
        pytest.param("{{ config.optimization.cuda }}", 1, "'None' has no attribute 'cuda'", id="below-unset"),
        pytest.param(
            "{{ config.optimization }}", 1, "cannot print a block that is not set", id="print-unset"
        ),
        pytest.param("{{ config.input[0] }}", 1, "cannot print a block;", id="print-block"),
        pytest.param("{{ config.input }}", 1, "cannot print a tuple;", id="print-list"),
        pytest.param("{{ 3 | quote }}", 1, "quote takes text, got a int", id="quote-number"),
        pytest.param("{{ config.name | fields }}", 1, "fields takes a block of the config", id="fields-text"),
        pytest.param(
            '{{ config | fields("inptu") }}',
            1,
            "ModelConfig has no field 'inptu' (did you mean 'input'?)",
            id="fields-without",
        ),
        pytest.param('{% include "nothing.j2" %}', 1, "includes 'nothing.j2', which is in no", id="include"),
        pytest.param("{{ 1 // 0 }}", 1, "ZeroDivisionError", id="arithmetic"),
        pytest.param("{% for i in range(10 ** 9) %}{% endfor %}", 1, "OverflowError", id="endless-range"),
        pytest.param(
            '{% include "' + BATCHING + '" %}', 1, "includes or calls itself without end", id="endless"
        ),
        pytest.param("{{ config.name.__class__ }}", 1, "access to attribute '__class__'", id="escape"),
        pytest.param("{{ config.__class__.__mro__ }}", 1, "has no field '__class__'", id="escape-config"),
        pytest.param("{{ config._message.Clear() }}", 1, "has no field '_message'", id="private"),
        pytest.param('{% include "../../secret.j2" %}', 1, "includes '../../secret.j2'", id="outside"),
    ],
)
def test_error_names_template_and_line(
    write: Callable[..., Path], text: str, line: int, message: str
) -> None:
    folder = write({BATCHING: text})
    error = _error(folder)
    assert error.message.startswith(f"template {folder / BATCHING}:{line}: ")
    assert message in error.message


def test_bug_in_our_own_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "CEscape", None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        render_config(DIGITS)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('name: "other"', "name"),
        ('name: "digits" backend: "python"', "backend"),
        ('name: "digits" backend: "onnxruntime" platform: "onnxruntime_onnx"', "platform"),
        ('name: "digits" backend: "onnxruntime" max_batch_size: 32', "input"),
    ],
)
def test_template_cannot_change_what_the_build_found(
    write: Callable[..., Path], text: str, field: str
) -> None:
    error = _error(write({MAIN: text}))
    assert error.message.endswith(f"{MAIN}: changes {field}, which comes from the build")
    assert "the template renders:" in error.detail


@pytest.mark.parametrize(("size", "allowed"), [(8, True), (32, True), (64, False), (0, False)])
def test_template_can_lower_the_batch_size_only(write: Callable[..., Path], size: int, allowed: bool) -> None:
    shipped = (templates.shipped_folder() / "config" / "model.pbtxt.j2").read_text()
    folder = write({"config/model.pbtxt.j2": shipped.replace("{{ config.max_batch_size }}", str(size))})
    if allowed:
        assert parse_config(render_config(DIGITS, folder), "text").max_batch_size == size
    else:
        assert f"max_batch_size {size} is not what the build has proven, 32" in _error(folder).message


def test_template_that_renders_no_config_is_named_with_the_text(write: Callable[..., Path]) -> None:
    error = _error(write({BATCHING: "dynamic_batchin { }"}))
    assert BATCHING in error.message
    assert "ModelConfig has no field 'dynamic_batchin'" in error.message
    assert "dynamic_batchin { }" in error.detail


def test_template_cannot_break_a_rule_of_the_server(write: Callable[..., Path]) -> None:
    error = _error(write({BATCHING: "dynamic_batching { preferred_batch_size: [64] }"}))
    assert "64 is above max_batch_size 32" in error.message
    assert BATCHING in error.message


def test_shipped_template_that_loses_a_field_is_an_error(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write({MAIN: '{{ config | fields("dynamic_batching") }}'})
    monkeypatch.setattr(templates, "shipped_folder", lambda: folder)
    with pytest.raises(RepositoryError, match=r"config\.pbtxt\.j2: changes dynamic_batching$"):
        render_config(DIGITS)


def test_folder_of_templates_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="templates: no such folder"):
        render_config(DIGITS, tmp_path / "none")


def test_folder_that_replaces_nothing_is_a_mistake(write: Callable[..., Path]) -> None:
    with pytest.raises(SpecError, match="replaces none of the shipped templates") as caught:
        render_config(DIGITS, write({"config.pbtxt.jinja": "x"}))
    assert MAIN in caught.value.hint
    assert BATCHING in caught.value.hint


def test_packaged_templates_are_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "triton_toolkit"
    package.mkdir()
    monkeypatch.setattr(templates, "_PACKAGE", package)
    assert templates.shipped_folder() == tmp_path / "templates"
    (package / "templates").mkdir()
    assert templates.shipped_folder() == package / "templates"
