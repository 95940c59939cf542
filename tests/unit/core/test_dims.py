"""Dimensions: which sizes an export is proven at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_toolkit.core.dims import Dim, dims_from_json, dims_to_json, example_sizes, proof_sizes

RANGES = st.lists(st.integers(1, 4096), min_size=3, max_size=3).map(sorted)


@st.composite
def dims(draw: st.DrawFn) -> dict[str, Dim]:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
    ranges = {name: draw(RANGES) for name in names}
    return {name: Dim(name=name, min=low, opt=opt, max=high) for name, (low, opt, high) in ranges.items()}


@pytest.mark.parametrize("sizes", [(0, 1, 2), (2, 1, 4), (1, 5, 4), (4, 2, 1)])
def test_a_range_out_of_order_is_refused(sizes):
    low, opt, high = sizes
    with pytest.raises(
        ValueError, match=f"dimension n: needs 1 <= min <= opt <= max, got min {low}, opt {opt}"
    ):
        Dim(name="n", min=low, opt=opt, max=high)


def test_probe_sizes_are_the_ends_the_next_an_odd_one_and_opt():
    assert Dim(name="n", min=1, opt=8, max=32).probe_sizes() == (1, 2, 8, 17, 32)


@given(RANGES)
def test_probe_sizes_lie_in_the_range_and_hold_its_ends(sizes):
    dim = Dim(name="n", min=sizes[0], opt=sizes[1], max=sizes[2])
    found = dim.probe_sizes()
    assert {dim.min, dim.opt, dim.max} <= set(found)
    assert all(dim.min <= size <= dim.max for size in found)
    assert list(found) == sorted(set(found))


@given(RANGES)
def test_a_range_with_room_is_probed_at_an_odd_size(sizes):
    dim = Dim(name="n", min=sizes[0], opt=sizes[1], max=sizes[2])
    if dim.max > dim.min:
        assert any(size % 2 for size in dim.probe_sizes())


@given(dims())
def test_example_sizes_lie_in_the_ranges(declared):
    sizes = example_sizes(declared)
    assert sizes.keys() == declared.keys()
    assert all(dim.min <= sizes[name] <= dim.max for name, dim in declared.items())


@given(dims())
def test_example_sizes_are_above_1_where_the_range_allows(declared):
    sizes = example_sizes(declared)
    assert all(sizes[name] > 1 for name, dim in declared.items() if dim.max > 2 + len(declared))


@given(dims())
def test_example_sizes_differ_where_the_ranges_have_room(declared):
    sizes = example_sizes(declared)
    roomy = [name for name, dim in declared.items() if dim.max - dim.min > 2 * len(declared)]
    assert len({sizes[name] for name in roomy}) == len(roomy)


def test_two_dimensions_of_one_range_get_different_examples():
    same = {name: Dim(name=name, min=1, opt=4, max=16) for name in ("h", "w")}
    assert example_sizes(same) == {"h": 2, "w": 3}


@given(dims())
def test_proof_sizes_begin_with_all_at_opt_min_and_max(declared):
    corners = list(
        dict.fromkeys(tuple(getattr(d, end) for d in declared.values()) for end in ("opt", "min", "max"))
    )
    found = [tuple(sizes.values()) for sizes in proof_sizes(declared)]
    assert found[: len(corners)] == corners


@given(dims())
def test_proof_sizes_are_distinct_and_probe_every_dimension(declared):
    found = list(proof_sizes(declared))
    assert len({tuple(sizes.items()) for sizes in found}) == len(found)
    for name, dim in declared.items():
        assert {sizes[name] for sizes in found} >= set(dim.probe_sizes())


def test_a_model_without_dynamic_dimensions_is_proven_once():
    assert list(proof_sizes({})) == [{}]


def test_only_multiples_are_tried():
    dim = Dim(name="h", min=32, opt=224, max=512, multiple_of=32)
    assert dim.probe_sizes() == (32, 64, 224, 288, 512)
    assert dim.example_size(set()) == 64
    assert [dim.nearest(size) for size in (1, 32, 100, 511, 9999)] == [32, 32, 96, 480, 512]
    assert list(dim.sizes())[:3] == [32, 64, 96]


@pytest.mark.parametrize("ends", [(30, 64, 96), (32, 65, 96), (32, 64, 97)])
def test_an_end_that_is_no_multiple_is_refused(ends):
    with pytest.raises(ValueError, match="is no multiple of 32"):
        Dim(name="h", min=ends[0], opt=ends[1], max=ends[2], multiple_of=32)


def test_ranges_survive_json():
    declared = {
        "n": Dim(name="n", min=1, opt=2, max=3),
        "h": Dim(name="h", min=8, opt=8, max=24, multiple_of=8),
    }
    assert dims_to_json(declared) == {"n": [1, 2, 3], "h": [8, 8, 24, 8]}
    assert dims_from_json(dims_to_json(declared)) == declared
