"""YAML as plain values, with the place of every key."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.source import Mark, format_path, read_yaml


@pytest.fixture
def read(tmp_path):
    def read_text(content: str | bytes):
        path = tmp_path / "f.yaml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_yaml(path, "f.yaml")

    return read_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("-7", -7), ("+7", 7), ("010", 10), ("0o17", 15), ("0xFF", 255),
        ("1.5", 1.5), ("1e-4", 1e-4), ("1.", 1.0), (".5", 0.5), ("-.inf", -math.inf),
        ("true", True), ("False", False), ("null", None), ("~", None),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("y", "y"), ("12:30", "12:30"),
        ("2026-01-01", "2026-01-01"), ("1_000", "1_000"), ("'1'", "1"), ('"true"', "true"),
        ("1.2.3", "1.2.3"),
        ("a b", "a b"), ("!!str 1", "1"), ("!!float 1", 1.0), ("=", "="), ("0b1", "0b1"), ("''", ""),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(read, text, value):
    found = read(f"k: {text}").value["k"]
    assert (type(found), found) == (type(value), value)


def test_nan_is_a_number(read):
    assert math.isnan(read("k: .nan").value["k"])


def test_keys_are_text_whatever_they_look_like(read):
    assert read("1: a\nno: b\n2026-01-01: c\n").value == {"1": "a", "no": "b", "2026-01-01": "c"}


def test_keys_keep_their_order(read):
    assert list(read("z: 1\na: 2\nm: 3\n").value) == ["z", "a", "m"]


def test_merged_keys_come_first_and_the_own_win(read):
    value = read("base: &b {x: 1, y: 2}\nother: {y: 3, z: 4, <<: *b}\n").value["other"]
    assert list(value.items()) == [("x", 1), ("y", 3), ("z", 4)]


def test_of_several_merged_mappings_the_first_wins(read):
    assert read("a: &a {x: 1}\nb: &b {x: 2, y: 2}\nc: {<<: [*a, *b]}\n").value["c"] == {"x": 1, "y": 2}


def test_merges_go_through_merges(read):
    assert read("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}\n").value["c"] == {"x": 1, "y": 2}


def test_a_quoted_merge_key_is_a_key(read):
    assert read('a: {"<<": 1}').value == {"a": {"<<": 1}}


def test_an_alias_gives_equal_values(read):
    assert read("a: &a [1, {b: 2}]\nc: *a\n").value == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}


def test_marks_are_of_keys_and_items(read):
    marks = read("a:\n  - x\n  - {b: 1}\n").marks
    assert marks["a",] == Mark("f.yaml", 1, 1)
    assert marks["a", 0] == Mark("f.yaml", 2, 5)
    assert str(marks["a", 1, "b"]) == "f.yaml:3:6"


def test_the_mark_of_what_is_not_there_is_that_of_what_holds_it(read):
    assert read("a:\n  b: 1\n").mark(("a", "b", "c", 3)) == Mark("f.yaml", 2, 3)


def test_texts_remember_how_a_number_was_written(read):
    assert read("a: 24.10\nb: [010, x]\n").texts == {("a",): "24.10", ("b", 0): "010"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a: [1\nb: 2\n", "f.yaml:2:2: YAML syntax error"),
        ("a: 'x\n", "f.yaml:2:1: YAML syntax error: while scanning a quoted scalar found unexpected end"),
        ("a: 1\n\tb: 2\n", "YAML syntax error"),
        ("a: b: c\n", "f.yaml:1:5: YAML syntax error: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2\n", "expected a single document"),
        ("a: *nope\n", "f.yaml:1:4: YAML syntax error: found undefined alias 'nope'"),
        ("a: &a [*a]\n", "an alias contains itself"),
        ("a: &a {b: *a}\n", "an alias contains itself"),
        ("a: &a {<<: *a}\n", "an alias contains itself"),
        ("a: {<<: 3}\n", "f.yaml:1:9: `<<` merges a mapping, or a list of mappings"),
        ("a: 1\na: 2\n", "f.yaml:2:1: key 'a' is given twice, first in line 1"),
        ("a: {b: 1, b: 2}\n", "f.yaml:1:11: key 'b' is given twice, first in line 1"),
        ("[a]: 1\n", "f.yaml:1:1: a key must be text"),
        ("a: !thing 1\n", "f.yaml:1:4: !thing '1' cannot be read"),
        ("a: !!python/tuple [1]\n", "the tag !!python/tuple is not supported"),
        ("a: !!set {b}\n", "the tag !!set is not supported"),
        ("a: !!int abc\n", "!!int 'abc' cannot be read"),
        ("a: !!bool 3\n", "!!bool '3' cannot be read"),
        (f"a: {'9' * 5000}\n", "cannot be read; write the plain value"),
        ("a: " + "[" * 5000 + "]" * 5000, "f.yaml: nested too deeply to be read"),
        ("a: " + "[" * 120 + "]" * 120, "nested more than 100 levels deep"),
        (b"a: \xff\n", "f.yaml: not UTF-8 text (byte 3)"),
        ("a: 1\n".encode("utf-16"), "f.yaml: not UTF-8 text (byte 0)"),
        ("a: 1\nb: x\x00\n", "f.yaml:2: the character '\\x00' is not allowed in YAML"),
        ("", "f.yaml: the file is empty"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_where_and_why(read, content, problem):
    with pytest.raises(SpecError) as caught:
        read(content)
    assert problem in caught.value.message


def test_a_tab_is_explained(read):
    with pytest.raises(SpecError) as caught:
        read("a:\n\tb: 2\n")
    assert caught.value.hint == "indent with spaces; YAML allows no tabs there"


def test_aliases_that_explode_are_stopped(read):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(SpecError, match="more than 100000 values, aliases expanded"):
        read("\n".join(lines))


def test_a_byte_order_mark_is_no_text(read):
    assert read(b"\xef\xbb\xbfa: 1\n").value == {"a": 1}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("models", "digits", "inputs", "image", "shape", 1), "models.digits.inputs.image.shape[1]"),
        (("models", "a.b", "source"), 'models["a.b"].source'),
        (("include", 0), "include[0]"),
    ],
)
def test_paths_for_people(path, text):
    assert format_path(path) == text


TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
def test_json_is_yaml_and_is_read_back(read, value):
    text = json.dumps({"k": value})
    assert read(text).value == {"k": value}
