"""Nested inputs and outputs have stable names, both ways."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.nesting import builder, flatten, tree_of
from triton_toolkit.export.structures import of_annotation


class Pair(NamedTuple):
    key: object
    value: object


@dataclass
class Box:
    low: object
    high: object = None


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        pytest.param(({"key": 1, "value": 2}, {"key": 3, "value": 4}), None, id="tuple-of-dicts"),
        pytest.param([1, 2], list[int], id="list"),
        pytest.param([(1, 2), (3, 4)], "list[tuple]", id="list-of-tuples"),
        pytest.param({0: 1, 1: 2}, dict[int, object], id="dict-with-numbers"),
        pytest.param({"0": 1, "1": 2}, dict[str, object], id="dict-with-digits"),
        pytest.param(Pair(1, 2), Pair, id="named-tuple"),
        pytest.param((Pair(1, 2), Pair(3, 4)), tuple[Pair, ...], id="tuple-of-named-tuples"),
        pytest.param((1, [2]), tuple[object, list[object]], id="mixed-tuple"),
        pytest.param(Box(1, {"a": 2}), Box, id="dataclass"),
        pytest.param([1], list[object] | None, id="optional"),
        pytest.param((1, 2), Sequence[object], id="sequence"),
        pytest.param(OrderedDict(a=1), None, id="ordered-dict"),
        pytest.param(tuple(range(12)), None, id="more-than-ten"),
    ],
)
def test_what_is_flattened_is_built_again(value, annotation):
    annotation = list[tuple] if annotation == "list[tuple]" else annotation
    flat = flatten({"past": value})
    tree = tree_of(list(flat), ["x", "past"])
    assert list(tree) == ["past"]
    built = builder("past", tree["past"], of_annotation(annotation))(flat)
    assert built == value
    assert type(built) is (dict if isinstance(value, OrderedDict) else type(value))


def test_names_depend_on_the_structure_alone():
    past = [{"key": "a", "value": "b"}, {"key": "c", "value": "d"}]
    assert flatten({"ids": "x", "mask": None, "past": past}) == {
        "ids": "x",
        "past.0.key": "a",
        "past.0.value": "b",
        "past.1.key": "c",
        "past.1.value": "d",
    }


def test_the_order_of_the_inputs_does_not_matter():
    tree = tree_of(["past.1", "past.0"], ["past"])
    assert builder("past", tree["past"], None)({"past.0": "a", "past.1": "b"}) == ("a", "b")


def test_a_dot_in_a_name_of_its_own_is_no_nesting():
    assert tree_of(["input.1", "x"], ["data", "x"]) == {"input.1": "input.1", "x": "x"}


@pytest.mark.parametrize(
    ("names", "annotation", "message"),
    [
        (["past.0", "past.2"], None, "'past.1' is missing"),
        (["past.1"], list[object], "'past.0' is missing"),
        (["past.key", "past.valeu"], Pair, "input 'past.valeu' has no place: past has key, value"),
        (["past", "past.0"], None, "input 'past' is a tensor, and 'past.0' lies within it"),
        (["past.0", "past"], None, "input 'past' is a tensor, and other inputs lie within it"),
    ],
)
def test_names_that_fit_no_structure_are_refused(names, annotation, message):
    with pytest.raises(ExportError) as caught:
        builder("past", tree_of(names, ["past"])["past"], of_annotation(annotation))
    assert message in caught.value.message
