"""`tolerance:` of a model, of an output and of a variant: what each is held to, and what is refused."""

from __future__ import annotations

import pytest

from triton_toolkit.build.recipe import spec_hash
from triton_toolkit.core.tolerances import Tolerance, default_tolerances

SPEC = """\
spec: 1
models:
  m:
    source: a:b
    inputs: {{x: {{shape: [3]}}}}
    outputs: {outputs}
    {more}
"""


@pytest.fixture
def model(load):
    """Return a function that loads a model with these outputs and further keys."""

    def load_model(more: str = "", outputs: str = "{y: {}, z: {}}"):
        return load(SPEC.format(outputs=outputs, more=more)).model("m")

    return load_model


def test_without_any_it_is_that_of_fp32(model):
    assert model().tolerances() == default_tolerances("fp32")


def test_the_models_own_keys_win_and_the_others_stay(model):
    tolerances = model("tolerance: {absolute: 0.5, top1: 0.9}").tolerances()
    assert tolerances.default == Tolerance(absolute=0.5, relative=1e-3, top1=0.9)
    assert tolerances.outputs == {}


def test_an_outputs_keys_win_over_the_models(model):
    loaded = model("tolerance: {absolute: 0.5, range: 0.2}", "{y: {tolerance: {absolute: 2}}, z: {}}")
    tolerances = loaded.tolerances()
    assert tolerances.of("y") == Tolerance(absolute=2, relative=1e-3, range=0.2)
    assert tolerances.of("z") == Tolerance(absolute=0.5, relative=1e-3, range=0.2)


INT8 = "variants: {fp32: {}, q: {precision: int8, calibration: 'a:c', tolerance: {range: 0.02, top1: 0.8}}}"


def test_a_variant_starts_from_its_precision_and_its_keys_win_over_all(model):
    outputs = "{y: {tolerance: {top1: 0.99, max_zero_share_rise: 0.1}}, z: {}}"
    loaded = model(f"tolerance: {{max_noise: 0.3}}\n    {INT8}", outputs)
    tolerances = loaded.tolerances(loaded.variants["q"])
    least = default_tolerances("int8").default.min_distinct
    assert tolerances.of("z") == Tolerance(
        absolute=1e-4, relative=1e-3, range=0.02, max_noise=0.3, top1=0.8, min_distinct=least
    )
    assert tolerances.of("y") == Tolerance(
        absolute=1e-4,
        relative=1e-3,
        range=0.02,
        max_noise=0.3,
        top1=0.8,
        min_distinct=least,
        max_zero_share_rise=0.1,
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8-dynamic"])
def test_a_variant_that_states_nothing_has_the_defaults_of_its_precision(model, precision):
    loaded = model(f"variants: {{v: {{precision: {precision}}}}}")
    assert loaded.tolerances(loaded.variants["v"]) == default_tolerances(precision)


def test_a_gate_of_the_precision_can_be_taken_away(model):
    loaded = model(f"tolerance: {{min_distinct: null}}\n    {INT8}")
    assert loaded.tolerances(loaded.variants["q"]).default.min_distinct is None


def test_a_family_may_state_a_part(load):
    text = SPEC.format(outputs="{y: {}}", more="extends: f\n    tolerance: {relative: 0}")
    loaded = load(text + "families: {f: {tolerance: {absolute: 3}}}\n").model("m")
    assert loaded.tolerances().default == Tolerance(absolute=3, relative=0)


def test_an_ensemble_has_one_for_all_outputs(load):
    text = "spec: 1\nmodels: {e: {kind: ensemble, steps: [m], tolerance: {range: 0.1}}}\n"
    assert load(text).model("e").tolerances().default.range == 0.1


def test_keys_that_are_not_stated_do_not_change_what_a_model_depends_on(model):
    """Else a tt with more keys would build all models again."""
    dumped = model().model_dump(mode="json")
    assert dumped["tolerance"] == {"absolute": 0.0001, "relative": 0.001}
    assert dumped["outputs"] == {name: {"dtype": None, "shape": None} for name in "yz"}


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ("tolerance: {top1: 0.9}", "{y: {}}"),
        ("tolerance: {min_distinct: null}", "{y: {}}"),
        ("", "{y: {tolerance: {absolute: 0.0001}}}"),
    ],
    ids=["a gate", "no gate", "an output"],
)
def test_keys_that_are_stated_do(model, more, outputs):
    assert spec_hash(model(more, outputs)) != spec_hash(model("", "{y: {}}"))


@pytest.mark.parametrize(
    ("more", "outputs", "message"),
    [
        (
            "tolerance: {rang: 0.1}",
            "{}",
            "tt.yaml:7:17: models.m.tolerance.rang: unknown key 'rang'; did you mean 'range'?",
        ),
        (
            "tolerance: {top1: 99}",
            "{}",
            "tt.yaml:7:17: models.m.tolerance.top1: must be at most 1.0, got 99",
        ),
        (
            "tolerance: {max_noise: -0.1}",
            "{}",
            "tt.yaml:7:17: models.m.tolerance.max_noise: must be at least 0.0, got -0.1",
        ),
        (
            "tolerance: {min_distinct: half}",
            "{}",
            "tt.yaml:7:17: models.m.tolerance.min_distinct: must be a number, got 'half'",
        ),
        (
            "tolerance: 0.1",
            "{}",
            "tt.yaml:7:5: models.m.tolerance: must be a mapping of keys, got 0.1",
        ),
        (
            "",
            "{y: {tolerance: {top: 0.9}}}",
            "tt.yaml:6:31: models.m.outputs.y.tolerance.top: unknown key 'top'; did you mean 'top1'?",
        ),
        (
            "",
            "{y: {tolerance: {absolute: .inf}}}",
            "tt.yaml:6:31: models.m.outputs.y.tolerance.absolute: must be a finite number, got .inf",
        ),
        (
            "variants: {q: {precision: fp16, tolerance: {abs: 1}}}",
            "{}",
            "tt.yaml:7:49: models.m.variants.q.tolerance.abs: unknown key 'abs'",
        ),
        (
            "kind: onnx\n    tolerance: {range: -1}",
            "{}",
            "tt.yaml:8:17: models.m.tolerance.range: must be at least 0.0, got -1",
        ),
    ],
    ids=["key", "above 1", "below 0", "text", "a number", "output", "infinite", "variant", "onnx"],
)
def test_what_is_wrong_is_told_once_with_its_place(refuse, more, outputs, message):
    error = refuse(SPEC.format(outputs=outputs, more=more))
    assert error.message.startswith(message)
    assert "\n" not in error.message
