"""The JSON Schema says of a spec what loading it says."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from triton_toolkit.errors import SpecError
from triton_toolkit.spec.schema import json_schema, keys_at, kinds_with

ROOT = Path(__file__).parents[3]
GOOD = {
    "torch": {"source": "a:b", "inputs": {"x": {"shape": ["n", 3]}}, "dims": {"n": [1, 2, 4]}},
    "range as a mapping": {"source": "a:b", "inputs": {"x": {"shape": ["n"]}}, "dims": {"n": {"max": 4}}},
    "onnx": {"kind": "onnx", "source": "m.onnx"},
    "prebuilt": {"kind": "prebuilt", "path": "old"},
    "ensemble": {"kind": "ensemble", "steps": ["a", {"model": "b", "inputs": {"x": "y"}}]},
    "python": {
        "kind": "python",
        "files": "p",
        "inputs": {"x": {"dtype": "bytes", "shape": [1]}},
        "outputs": {"y": {"dtype": "int64", "shape": [1]}},
    },
    "extending": {"extends": "f", "dims": {"n": [1, 2, 4]}},
    "serve": {
        "kind": "onnx",
        "source": "m",
        "serve": {"dynamic_batching": {"max_queue_delay_microseconds": "1ms"}},
    },
}
BAD = {
    "no source": {"kind": "onnx"},
    "unknown key": {"kind": "onnx", "source": "m", "sorce": "m"},
    "unknown kind": {"kind": "onxx", "source": "m"},
    "key of another kind": {"kind": "onnx", "source": "m", "steps": []},
    "range of two": {"source": "a:b", "inputs": {"x": {"shape": ["n"]}}, "dims": {"n": [1, 2]}},
    "shape of floats": {"source": "a:b", "inputs": {"x": {"shape": [1.5]}}},
    "extending with a typo": {"extends": "f", "dim": {}},
}


def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


def spec(model: dict) -> dict:
    family = {"source": "a:b", "inputs": {"x": {"shape": ["n"]}}}
    return {"spec": 1, "families": {"f": family}, "models": {"m": model}}


@pytest.mark.parametrize("model", GOOD.values(), ids=GOOD.keys())
def test_what_loads_is_valid(load, model):
    validator().validate(spec(model))
    load(yaml.safe_dump(spec(model)))


@pytest.mark.parametrize("model", BAD.values(), ids=BAD.keys())
def test_what_is_invalid_does_not_load(load, model):
    assert not validator().is_valid(spec(model))
    with pytest.raises(SpecError):
        load(yaml.safe_dump(spec(model)))


@pytest.mark.parametrize(
    "document", [{"spec": 1}, {"models": GOOD}, {"spec": 2, "models": {"m": GOOD["onnx"]}}]
)
def test_a_document_without_its_keys_is_invalid(document):
    assert not validator().is_valid(document)


def test_models_may_all_be_included():
    validator().validate({"spec": 1, "include": ["models/*.yaml"]})


@pytest.mark.skipif(not (ROOT / "tt.yaml").is_file(), reason="the repository has no tt.yaml")
def test_the_repositorys_own_spec_is_valid():
    validator().validate(yaml.safe_load((ROOT / "tt.yaml").read_text()))


def test_every_key_is_described_for_editors():
    definitions = {**json_schema()["$defs"], "Spec": json_schema()}
    bare = {
        f"{name}.{key}"
        for name in ("Spec", "Target", *(name for name in definitions if name.endswith("Model")))
        for key, form in definitions[name]["properties"].items()
        if "description" not in form and key != "kind"
    }
    assert bare == set()


@pytest.mark.parametrize(
    ("location", "keys"),
    [
        ((), ["families", "include", "models", "release", "repository", "spec", "targets", "templates"]),
        (("models", "m", "torch", "inputs", "x"), ["dtype", "shape"]),
        (("models", "torch", "onnx", "outputs", "x"), ["dtype", "shape", "tolerance"]),
        (("models", "m", "torch", "dims", "n"), ["max", "min", "multiple_of", "opt"]),
        (("models", "m", "ensemble", "steps", 0), ["inputs", "model", "outputs"]),
        (("targets", "t"), ["auth", "keep", "release", "servers", "store"]),
        (("nowhere",), []),
    ],
)
def test_keys_at_a_location(location, keys):
    assert keys_at(json_schema(), location) == keys


def test_kinds_with_a_key():
    assert kinds_with(json_schema(), "steps") == ["ensemble"]
    assert kinds_with(json_schema(), "requirements") == ["python"]
