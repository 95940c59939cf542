"""Tolerances as values, as JSON, and by precision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit.core.tolerances import Tolerance, Tolerances, default_tolerances

PAGE = Path(__file__).parents[3] / "docs" / "tolerances.md"
PRECISIONS = ["fp32", "fp16", "int8", "int8-fp16", "int8-dynamic"]
SHARES = st.floats(0, 1)
TOLERANCE = st.builds(
    Tolerance,
    absolute=st.floats(0, 1e9),
    relative=SHARES,
    range=SHARES,
    max_noise=st.none() | SHARES,
    top1=st.none() | SHARES,
    min_distinct=st.none() | SHARES,
    max_zero_share_rise=st.none() | SHARES,
)


@given(TOLERANCE, st.dictionaries(st.text(), TOLERANCE, max_size=3))
def test_json_gives_back_what_was_written(default, outputs):
    written = Tolerances(default=default, outputs=outputs)
    assert Tolerances.from_dict(json.loads(json.dumps(written.as_dict()))) == written


def test_a_plain_tolerance_is_written_as_passports_always_had_it():
    assert default_tolerances("fp32").as_dict() == {"absolute": 0.0001, "relative": 0.001}


@pytest.mark.parametrize(
    ("value", "absolute", "relative"),
    [({}, 1e-4, 1e-3), ({"absolute": 0.5}, 0.5, 1e-3), ({"absolute": 0, "relative": 0}, 0, 0)],
    ids=["nothing", "one", "both"],
)
def test_older_passports_are_read(value, absolute, relative):
    read = Tolerances.from_dict(value)
    assert read == Tolerances(default=Tolerance(absolute=absolute, relative=relative))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"absolut": 1}, "unknown key 'absolut'"),
        ({"absolute": "1"}, "absolute is not a number but '1'"),
        ({"top1": True}, "top1 is not a number but True"),
        ({"outputs": [1]}, "outputs is not a mapping"),
        ({"outputs": {"y": {"top2": 1}}}, "unknown key 'top2'"),
    ],
    ids=["key", "text", "boolean", "outputs", "key of an output"],
)
def test_what_no_version_wrote_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        Tolerances.from_dict(value)


def test_an_output_without_its_own_has_the_default():
    one, other = Tolerance(absolute=1, relative=1), Tolerance(absolute=2, relative=2)
    tolerances = Tolerances(default=one, outputs={"y": other})
    assert (tolerances.of("x"), tolerances.of("y")) == (one, other)


@pytest.mark.parametrize("key", ["range", "max_noise", "top1", "min_distinct", "max_zero_share_rise"])
def test_any_further_key_makes_it_more_than_plain(key):
    assert Tolerance(absolute=1, relative=1).is_plain
    assert not Tolerance(absolute=1, relative=1, **{key: 0.5}).is_plain


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_page_has_the_defaults(precision):
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    header = next(cells for cells in lines if cells[0] == "precision")
    (row,) = [cells for cells in lines if len(cells) == len(header) and f"`{precision}`" in cells[0]]
    told = {
        key.strip("`"): None if cell == "none" else float(cell)
        for key, cell in zip(header, row, strict=True)
        if key != "precision"
    }
    default = default_tolerances(precision).default
    assert told == {key: getattr(default, key) for key in told}
    assert set(default.as_dict()) <= set(told)
