"""Passports and golden samples survive the disk, and damage is told."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import RepositoryError
from triton_toolkit.repository.passport import (
    Passport,
    Samples,
    check_files,
    read_passport,
    read_samples,
    write_passport,
    write_samples,
)

PASSPORT = Passport(
    model="digits",
    kind="torch",
    variant="fp32",
    backend="onnxruntime",
    created="2026-01-01T00:00:00+00:00",
    tools={"tt": "0.1.0"},
    key={"spec": "0" * 64},
    inputs=(TensorSpec(name="image", dtype=DataType.FP32, shape=("batch", 1, 8, 8)),),
    outputs=(TensorSpec(name="logits", dtype=DataType.FP32, shape=("batch", 10)),),
    batch_dim="batch",
    dims={"batch": [1, 8, 32]},
    onnx={"opset": {"": 18}, "ir_version": 10},
)


def test_a_passport_is_read_back(tmp_path):
    write_passport(tmp_path, PASSPORT)
    assert read_passport(tmp_path) == PASSPORT


def test_a_passport_begins_with_its_format(tmp_path):
    write_passport(tmp_path, PASSPORT)
    assert list(json.loads((tmp_path / "passport.json").read_text()))[:3] == ["format", "model", "kind"]


def test_a_folder_without_a_passport_has_none(tmp_path):
    assert read_passport(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:20], "not a readable passport"),
        (lambda text: "[]", "not a passport of format 1"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "not a passport of format 1"),
        (lambda text: text.replace('"inputs"', '"imputs"'), "incomplete passport: 'inputs'"),
        (lambda text: text.replace('"model": "digits",', ""), "incomplete passport"),
        (lambda text: text.replace("fp32", "fp31"), "unknown data type 'fp31'"),
    ],
)
def test_a_damaged_passport_is_told(tmp_path, damage, message):
    write_passport(tmp_path, PASSPORT)
    path = tmp_path / "passport.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(RepositoryError) as caught:
        read_passport(tmp_path)
    assert message in caught.value.message
    assert caught.value.hint


def test_check_files_finds_what_changed_and_what_is_gone(tmp_path):
    from triton_toolkit._files import hash_tree

    for name in ("model.onnx", "samples.npz", "labels.txt"):
        (tmp_path / name).write_text(name)
    passport = replace(PASSPORT, files=hash_tree(tmp_path))
    assert check_files(tmp_path, passport) == []
    (tmp_path / "model.onnx").write_text("other")
    (tmp_path / "labels.txt").unlink()
    assert check_files(tmp_path, passport) == [
        "labels.txt is missing",
        "model.onnx is not the file that was built (its SHA-256 differs)",
    ]


SPECIAL = st.sampled_from(
    ["x", "#", "%", "/", "\0", "%23", "#lengths", "#bytes", ".npy", "input/", "..", "é"]
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.lists(
    SPECIAL, min_size=1, max_size=3
).map("".join)
SHAPES = hnp.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=3)
NUMBERS = st.sampled_from([dtype.numpy for dtype in DataType if dtype is not DataType.BYTES]).flatmap(
    lambda name: hnp.arrays(np.dtype(name), SHAPES)
)
BYTES = hnp.arrays(np.dtype(object), SHAPES, elements=st.binary(max_size=6))
GROUPS = st.dictionaries(NAMES, NUMBERS | BYTES, max_size=3)


@given(GROUPS, GROUPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
def test_samples_are_read_back_bit_for_bit(tmp_path, inputs, outputs):
    write_samples(tmp_path, Samples(inputs, outputs))
    found = read_samples(tmp_path)
    for wanted, got in ((inputs, found.inputs), (outputs, found.outputs)):
        assert wanted.keys() == got.keys()
        for name, array in wanted.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            if array.dtype == object:
                assert got[name].tolist() == array.tolist()
            else:
                assert got[name].tobytes() == array.tobytes()


def test_names_in_files_written_before_names_were_encoded_are_as_they_stand(tmp_path):
    text = {"output/a%23/b#lengths": np.array([2]), "output/a%23/b#bytes": np.frombuffer(b"ab", np.uint8)}
    np.savez(tmp_path / "samples.npz", **{"input/a%23/b": np.arange(2), "input/c#d": np.arange(3)}, **text)
    found = read_samples(tmp_path)
    assert {name: array.tolist() for name, array in found.inputs.items()} == {
        "a%23/b": [0, 1],
        "c#d": [0, 1, 2],
    }
    assert found.outputs["a%23/b"].tolist() == [b"ab"]


def test_usual_names_are_keys_as_they_are(tmp_path):
    write_samples(tmp_path, Samples({"a/b:0": np.arange(2)}, {"y%1": np.array([b"a"], object)}))
    with np.load(tmp_path / "samples.npz") as archive:
        assert archive.files == ["input/a/b:0", "output/y%1#lengths", "output/y%1#bytes"]


def test_bytes_keep_their_trailing_zeros(tmp_path):
    text = np.array([b"a\0", b"", b"\0\0"], object)
    write_samples(tmp_path, Samples({"text": text}, {}))
    assert read_samples(tmp_path).inputs["text"].tolist() == [b"a\0", b"", b"\0\0"]


def test_the_same_samples_give_the_same_file(tmp_path):
    samples = Samples({"x": np.arange(3)}, {"y": np.array([b"a"], object)})
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_samples(tmp_path / name, samples)
    assert (tmp_path / "a/samples.npz").read_bytes() == (tmp_path / "b/samples.npz").read_bytes()


def test_a_folder_without_samples_has_none(tmp_path):
    assert read_samples(tmp_path) is None


def test_samples_may_be_named_by_their_file(tmp_path):
    write_samples(tmp_path, Samples({"x": np.arange(3)}, {}))
    assert read_samples(tmp_path / "samples.npz").inputs["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("damage", [lambda data: data[:40], lambda data: b"no zip"])
def test_damaged_samples_are_told(tmp_path, damage):
    write_samples(tmp_path, Samples({"x": np.arange(300)}, {}))
    path = tmp_path / "samples.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RepositoryError, match="not readable golden samples"):
        read_samples(tmp_path)


def test_pickles_in_samples_are_never_run(tmp_path):
    np.savez(tmp_path / "samples.npz", **{"input/x": np.array([{"a": 1}], object)})
    with pytest.raises(RepositoryError, match="not readable golden samples"):
        read_samples(tmp_path)
