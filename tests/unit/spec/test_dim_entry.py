"""Ranges of dimensions in a spec."""

from __future__ import annotations

import pytest

from triton_toolkit.core.dims import Dim

MODEL = "spec: 1\nmodels: {m: {source: 'a:b', inputs: {x: {shape: [h]}}, dims: {h: %s}}}\n"


def test_sizes_may_be_multiples_only(load):
    entry = load(MODEL % "{min: 32, opt: 224, max: 512, multiple_of: 32}").model("m").dims["h"]
    assert entry.dim("h") == Dim(name="h", min=32, opt=224, max=512, multiple_of=32)


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        pytest.param(
            "{min: 32, opt: 100, max: 128, multiple_of: 32}", "opt 100 is no multiple of 32", "96 or 128"
        ),
        pytest.param("{opt: 32, max: 64, multiple_of: 32}", "min 1 is no multiple of 32", "near: 32"),
    ],
)
def test_an_end_that_is_no_multiple_is_refused_with_near_ones(refuse, given, message, hint):
    error = refuse(MODEL % given)
    assert f"models.m.dims.h: {message}" in error.message
    assert hint in error.hint
