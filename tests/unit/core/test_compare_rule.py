"""The rule written down a second time, element by element, and held against the vectorised one."""

from __future__ import annotations

import math
from itertools import product
from statistics import median_low

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triton_toolkit.core.compare import Tolerance, Tolerances, compare_outputs
from triton_toolkit.core.magnitudes import find_ranges

VALUES = st.sampled_from([0.0, 0.25, -0.5, 1.0, 1.5, -3.0, 8.0, 100.0, -640.0, math.nan, math.inf, -math.inf])
TAME = st.sampled_from([0.0, 0.5, -0.625, 0.75, -0.875, 1.0, 1.125, 1.25])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=6) | st.sampled_from(
    [(8, 3), (2, 3, 4), (3, 4, 2)]
)
LIMITS = st.sampled_from([None, 0.0, 0.1, 0.5, 1.0])


@st.composite
def pairs(draw):
    """Draw an output that may mix ranges along any axis, and one that differs from it here and there."""
    shape, values = draw(SHAPES), draw(st.sampled_from([VALUES, TAME]))
    b = draw(hnp.arrays(np.float64, shape, elements=values, fill=st.nothing()))
    if b.ndim:
        axis = draw(st.integers(0, b.ndim - 1))
        scales = draw(
            st.lists(st.sampled_from([1.0, 64.0, 4096.0]), min_size=shape[axis], max_size=shape[axis])
        )
        b = b * np.array(scales).reshape([-1 if i == axis else 1 for i in range(b.ndim)])
    a = np.where(draw(hnp.arrays(np.bool_, shape)), draw(hnp.arrays(np.float64, shape, elements=VALUES)), b)
    return a, b


def elements(array, axis, index):
    """Return the finite-or-zero magnitudes of one index of an axis."""
    places = product(*map(range, array.shape))
    values = [abs(float(array[at])) for at in places if axis is None or at[axis] in index]
    return [value if math.isfinite(value) else 0.0 for value in values]


def ranges_along(b, axis):
    """Return [(indices, magnitude)] of one axis, smallest first; [] where they are one range."""
    found = {i: elements(b, axis, {i}) for i in range(b.shape[axis])}
    if len(found) < 2 or len(found[0]) < 4:
        return []
    alone = [i for i in found if max(found[i]) > 0]
    alone.sort(key=lambda i: max(found[i]))
    groups = [[]]
    for position, i in enumerate(alone):
        below = max((max(found[j]) for j in alone[:position]), default=math.inf)
        above = [[value for value in found[j] if value] for j in alone[position:]]
        apart = all(median_low(values) >= 8 * below for values in above)
        if apart and any(len(set(values)) >= 4 for values in above):
            groups.append([])
        groups[-1].append(i)
    groups[0] += [i for i in found if i not in alone]
    return [(set(g), max(max(found[i]) for i in g)) for g in groups] if len(groups) > 1 else []


def is_distribution(b, axis):
    clean = np.where(np.isfinite(b), b, 0.0)
    return bool((clean >= 0).all() and (abs(clean.sum(axis=axis) - 1) <= 0.01).all())


def oracle_ranges(b):
    """Return the axis and its ranges; None and everything where there is one."""
    best, spread = (None, [(set(), max(elements(b, None, ())))]), 1.0
    for axis in range(1, b.ndim):
        groups = ranges_along(b, axis)
        if groups and groups[-1][1] / groups[0][1] > spread and not is_distribution(b, axis):
            best, spread = (axis, groups), groups[-1][1] / groups[0][1]
    return best


def gap(x, y):
    """Return |x - y|; 0 for the same NaN or infinity, infinite for one without the other."""
    if x == y or (math.isnan(x) and math.isnan(y)):
        return 0.0
    return abs(x - y) if math.isfinite(x) and math.isfinite(y) else math.inf


def root_mean_square(values):
    return math.sqrt(sum(value * value for value in values) / len(values))


def kinds(values):
    return len({"nan" if math.isnan(value) else value for value in values})


def kept(ours, theirs, magnitude):
    """Return the share of distinct values that is kept."""
    finite = [value for value in theirs if math.isfinite(value)]
    if not finite or max(finite) - min(finite) <= 0.001 * magnitude or kinds(theirs) < 2:
        return 1.0
    return min(1.0, (min(kinds(ours), 64) - 1) / (min(kinds(theirs), 64) - 1))


def reach(theirs, magnitude):
    """Return R: the magnitude, or how far 16 values or more are apart where that is less."""
    finite = [value for value in theirs if math.isfinite(value)]
    return magnitude if len(finite) < 16 else min(magnitude, max(finite) - min(finite))


def spread(theirs):
    """Return the root mean square around the mean of 16 finite values or more; of fewer, around 0."""
    finite = [value for value in theirs if math.isfinite(value)]
    if len(finite) < 16:
        return root_mean_square([value if math.isfinite(value) else 0.0 for value in theirs])
    mean = math.fsum(finite) / len(finite)
    return 0.0 if min(finite) == max(finite) else root_mean_square([value - mean for value in finite])


def allowed(y, largest, tolerance):
    if not math.isfinite(y):
        return 0.0
    return tolerance.absolute + tolerance.relative * abs(y) + tolerance.range * largest


def is_quiet(noise, signal, theirs, tolerance):
    """Return whether the noise is within its tolerance; None where rounding decides."""
    if tolerance.max_noise is None:
        return True
    size = root_mean_square([y if math.isfinite(y) else 0.0 for y in theirs])
    limit = tolerance.absolute + tolerance.relative * size + tolerance.max_noise * signal
    near = noise not in {0.0, math.inf} and math.isclose(noise, limit, rel_tol=1e-9)
    return None if near else noise <= limit


def oracle(a, b, tolerance):
    """Return the figures, and whether the output is right; None where rounding decides."""
    axis, groups = oracle_ranges(b)
    figures, fits = [], []
    for indices, magnitude in groups:
        places = [at for at in product(*map(range, b.shape)) if axis is None or at[axis] in indices]
        ours, theirs = ([float(side[at]) for at in places] for side in (a, b))
        gaps = [gap(x, y) for x, y in zip(ours, theirs, strict=True)]
        noise = root_mean_square(gaps)
        signal, largest = spread(theirs), reach(theirs, magnitude)
        distinct = kept(ours, theirs, magnitude)
        rise = (ours.count(0) - theirs.count(0)) / len(places)
        ratio = 0.0 if noise == 0 else noise / signal if signal else math.inf
        figures.append((max(gaps), ratio, -distinct, rise))
        fits += [
            all(g <= allowed(y, largest, tolerance) for g, y in zip(gaps, theirs, strict=True)),
            is_quiet(noise, signal, theirs, tolerance),
            tolerance.min_distinct is None or distinct >= tolerance.min_distinct,
            tolerance.max_zero_share_rise is None or rise <= tolerance.max_zero_share_rise,
        ]
    verdict = None if None in fits and False not in fits else all(fits)
    return [max(column) for column in zip(*figures, strict=True)], verdict


@settings(max_examples=400)
@given(
    pairs(),
    st.builds(
        Tolerance,
        absolute=st.sampled_from([0.0, 0.5, 100.0]),
        relative=st.sampled_from([0.0, 0.25]),
        range=st.sampled_from([0.0, 0.125, 2.0]),
        max_noise=LIMITS,
        min_distinct=LIMITS,
        max_zero_share_rise=LIMITS,
    ),
)
def test_both_implementations_agree(pair, tolerance):
    a, b = pair
    with np.errstate(invalid="ignore"):
        (found,) = compare_outputs({"y": a}, {"y": b}, Tolerances(default=tolerance))
    wanted, fits = oracle(a, b, tolerance)
    assert [found.max_absolute, found.noise, -found.distinct, found.zero_share_rise] == pytest.approx(wanted)
    assert fits is None or found.ok == fits


@given(pairs())
def test_the_ranges_cover_every_index_once(pair):
    _, b = pair
    found = find_ranges(b)
    axis, groups = oracle_ranges(b)
    assert [(set(each.indices), each.magnitude) for each in found] == groups
    assert {each.axis for each in found} == {axis}
    if axis is not None:
        assert sorted(i for each in found for i in each.indices) == list(range(b.shape[axis]))


@given(pairs(), LIMITS)
def test_equal_outputs_are_right_whatever_is_asked(pair, limit):
    _, b = pair
    strict = Tolerance(
        absolute=0, relative=0, max_noise=limit, top1=1.0, min_distinct=1.0, max_zero_share_rise=0.0
    )
    (found,) = compare_outputs({"y": b}, {"y": b.copy()}, Tolerances(default=strict))
    assert (found.ok, found.excess) == (True, 0.0)


@given(pairs(), st.sampled_from([0.0, 0.1, 1.0]), LIMITS)
def test_a_verdict_is_right_just_where_nothing_is_exceeded(pair, share, limit):
    a, b = pair
    tolerance = Tolerance(
        absolute=share, relative=share, range=share, max_noise=limit, top1=limit, min_distinct=limit
    )
    (found,) = compare_outputs({"y": a}, {"y": b}, Tolerances(default=tolerance))
    assert found.ok == (found.excess <= 1)
