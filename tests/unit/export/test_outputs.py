from collections import namedtuple
from dataclasses import dataclass

import pytest

from triton_toolkit.errors import ExportError
from triton_toolkit.export.outputs import named_outputs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

A, B = torch.zeros(1), torch.ones(1)
Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Result:
    first: object
    second: object = None


@pytest.mark.parametrize(
    ("result", "declared", "names"),
    [
        pytest.param(A, ["y"], ["y"], id="one"),
        pytest.param(A, [], ["output"], id="one-unnamed"),
        pytest.param((A, B), ["a", "b"], ["a", "b"], id="tuple"),
        pytest.param([A, B], [], ["output_0", "output_1"], id="list-unnamed"),
        pytest.param({"first": A, "second": B}, [], ["first", "second"], id="dict-unnamed"),
        pytest.param({"first": A, "second": B}, ["second"], ["second"], id="dict-some"),
        pytest.param(
            {"second": B, "first": A}, ["first", "second"], ["first", "second"], id="dict-reordered"
        ),
        pytest.param(Pair(A, B), ["second", "first"], ["second", "first"], id="namedtuple-by-name"),
        pytest.param(Result(A, B), ["second"], ["second"], id="dataclass-some"),
        pytest.param(Result(A), [], ["first"], id="dataclass-without-none"),
        pytest.param((B, None, A), ["b", "y"], ["b", "y"], id="tuple-without-none"),
        pytest.param((A, (A, B)), ["x", "y", "b"], ["x", "y", "b"], id="nested-by-position"),
        pytest.param((A, B), ["output_1"], ["output_1"], id="tuple-by-its-own-names"),
        pytest.param((A, {"b": A}), [], ["output_0", "output_1.b"], id="nested-unnamed"),
        pytest.param({"h": (A, A), "second": B}, [], ["h.0", "h.1", "second"], id="nested-named"),
        pytest.param(Result(A, Pair(A, [A])), ["second.first"], ["second.first"], id="nested-some"),
    ],
)
def test_outputs_are_named(result, declared, names):
    outputs = named_outputs(result, declared)
    assert list(outputs) == names
    for name, value in outputs.items():
        assert value is (B if name in ("second", "b", "output_1") else A), name


@pytest.mark.parametrize(
    ("result", "declared", "message"),
    [
        pytest.param({"logit": A}, ["logits"], "did you mean 'logit'?", id="near-name"),
        pytest.param(Pair(A, B), ["third"], "output 'third' is declared but forward does not", id="no-name"),
        pytest.param((A, B), ["y"], "forward returns 2 outputs, the spec declares 1: y", id="too-many"),
        pytest.param(A, ["y", "z"], "forward returns 1 output, the spec declares 2: y, z", id="too-few"),
        pytest.param((A, (B, A)), ["y", "z"], "forward returns 3 outputs, the spec declares 2", id="nested"),
        pytest.param(Result(A), ["second"], "'second' is declared, but forward returns None", id="none"),
        pytest.param({"h": (A, B)}, ["h"], "output 'h' is not a tensor: it holds h.0, h.1", id="container"),
        pytest.param({"h": (A,)}, ["h.1"], "did you mean 'h.0'?", id="near-nested"),
        pytest.param({"a.b": A, "a": {"b": B}}, [], "two values are both called 'a.b'", id="same-name"),
        pytest.param((A, 3), [], "output 'output_1' has type int, not a tensor", id="number"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(result, declared, message):
    with pytest.raises(ExportError) as caught:
        named_outputs(result, declared)
    assert message in caught.value.message


def test_long_lists_of_outputs_are_cut_in_hints():
    with pytest.raises(ExportError) as caught:
        named_outputs({"hidden": tuple([A] * 40)}, ["logits"])
    assert caught.value.hint.endswith("hidden.11 and 28 more")
