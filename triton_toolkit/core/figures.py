"""The figures of a comparison: each is measured, and judged where the tolerance asks for it.

``a`` is the output that is judged, ``b`` what it should be; both FP64 and of one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.magnitudes import Range
from triton_toolkit.core.tolerances import Tolerance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ENOUGH_DISTINCT = 64
"""More distinct values than this are not counted: eight bits keep about 100 in a range that has a
scale of its own, so fewer are a loss, but thousands are no better."""

_NEARLY_CONSTANT = 0.001
"""A range whose expected values vary by less than this share of its magnitude has no distinct values
to lose: an FP32 export may differ from its original by as much."""

_ENOUGH_VALUES = 16
"""Fewer values than this say nothing of how far an output spreads: two logits may happen to be equal."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure and its verdict.

    Attributes:
        value: What was measured; None where the figure makes no sense for the output.
        excess: Share of the allowance that it uses; above 1 it is exceeded, 0 where nothing is asked.
        problem: What is wrong, in words; empty where nothing is.
    """

    value: float | None
    excess: float = 0.0
    problem: str = ""


def used(part: float, whole: float) -> float:
    """Return part / whole; nothing of nothing is 0, something of nothing infinite."""
    return 0.0 if part <= 0 else part / whole if whole > 0 else float("inf")


def judge_elements(
    a: Floats, b: Floats, error: Floats, ranges: Sequence[Range], tolerance: Tolerance
) -> Figure:
    """Judge each element by absolute + relative * |b| + range * R; the value is the largest error.

    Args:
        a: The output.
        b: What it should be.
        error: |a - b|; 0 where both are the same NaN or infinity, infinite where only one is.
        ranges: The ranges of b; R is the reach of each.
        tolerance: What is allowed.
    """
    import numpy as np

    reaches = [_reach(each.part(b), each.magnitude) for each in ranges]
    largest = _spread_out(b, ranges, reaches)
    with np.errstate(all="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(b) + tolerance.range * largest
        allowed = np.where(np.isfinite(b), allowed, 0.0)  # an infinity allows no error
        share = np.where(error == 0, 0.0, error / allowed)
    largest_error, excess = float(error.max(initial=0.0)), float(share.max(initial=0.0))
    wrong = error > allowed
    if not wrong.any():
        return Figure(largest_error, min(excess, 1.0))
    rank = error if np.isinf(share[wrong]).any() else share  # a share of nothing has no size
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(wrong, rank, -1.0))), error.shape))
    limit = f"{tolerance.absolute:g} + {tolerance.relative:g} x |expected|"
    if tolerance.range:
        index = _range_at(at, ranges)
        what = "the largest" if reaches[index] == ranges[index].magnitude else "from smallest to largest"
        limit += f" + {tolerance.range:g} x {largest[at]:.6g}, {what}{_within(ranges[index])}"
    problem = (
        f"differs in {int(wrong.sum())} of {wrong.size} elements, most at {list(at)}: "
        f"{a[at]:.6g}, expected {b[at]:.6g} (tolerance {limit})"
    )
    return Figure(largest_error, excess, problem)


def judge_noise(error: Floats, b: Floats, ranges: Sequence[Range], tolerance: Tolerance) -> Figure:
    """Judge the root mean square of the error by the spread of b, in the range where it is worst.

    The largest error alone says little of an output with a few large elements: all others may be lost.
    The spread is that of b around its mean, so that an offset hides nothing: temperatures in kelvin
    are 290 whatever the model says. What ``absolute`` and ``relative`` allow is allowed beyond it.

    Args:
        error: |a - b|, as for ``judge_elements``.
        b: What the output should be; NaN and infinities do not count.
        ranges: The ranges of b.
        tolerance: What is allowed.
    """
    import numpy as np

    if not b.size:
        return Figure(None)
    finite = np.where(np.isfinite(b), b, 0.0)
    sizes = [(_root_mean_square(each.part(error)), _signal(each.part(b))) for each in ranges]
    noises = [used(noise, signal) for noise, signal in sizes]
    worst = max(noises)
    if tolerance.max_noise is None:
        return Figure(worst)
    free = [tolerance.absolute + tolerance.relative * _root_mean_square(each.part(finite)) for each in ranges]
    shares = [
        used(noise - beyond, tolerance.max_noise * signal)
        for (noise, signal), beyond in zip(sizes, free, strict=True)
    ]
    index = max(range(len(shares)), key=shares.__getitem__)
    if shares[index] <= 1:
        return Figure(worst, shares[index])
    problem = (
        f"has noise of {noises[index]:.4g} x the spread expected{_within(ranges[index])}, "
        f"by root mean squares (tolerance {tolerance.max_noise:g})"
    )
    return Figure(worst, shares[index], problem)


def judge_top1(a: Floats, b: Floats, tolerance: Tolerance) -> Figure:
    """Judge the share of rows whose largest element is where it should be; ties in b count as right."""
    import numpy as np

    if b.ndim == 0 or b.shape[-1] < 2 or not b.size:
        return Figure(None)
    ours, theirs = a.argmax(axis=-1)[..., None], b.argmax(axis=-1)[..., None]
    tied = np.take_along_axis(b, ours, axis=-1) == np.take_along_axis(b, theirs, axis=-1)
    share = float(((ours == theirs) | tied).mean())
    if tolerance.top1 is None:
        return Figure(share)
    excess = used(1 - share, 1 - tolerance.top1)
    if share >= tolerance.top1:
        return Figure(share, excess)
    chosen, counts = np.unique(ours, return_counts=True)
    commonest = int(counts.argmax())
    problem = (
        f"has its largest element where it should be in {share:.4g} of {ours.size} rows, at least "
        f"{tolerance.top1:g} should ({counts[commonest]} of them choose index {chosen[commonest]})"
    )
    return Figure(share, excess, problem)


def judge_distinct(a: Floats, b: Floats, ranges: Sequence[Range], tolerance: Tolerance) -> Figure:
    """Judge the share of distinct values that a range keeps, in the range that keeps least.

    They are counted beyond the first, so that what became constant has kept nothing.
    """
    worst, text = 1.0, ""
    for each in ranges:
        ours, theirs = each.part(a), each.part(b)
        wanted = _count_distinct(theirs) if _span(theirs) > _NEARLY_CONSTANT * each.magnitude else 1
        found = _count_distinct(ours)
        kept = min(1.0, (found - 1) / (wanted - 1)) if wanted > 1 else 1.0
        if kept < worst:
            many = f"{wanted} or more" if wanted >= _ENOUGH_DISTINCT else str(wanted)
            worst, text = kept, f"{found} distinct value{'s' * (found > 1)}{_within(each)}, expected {many}"
    if not b.size:
        return Figure(None)
    least = tolerance.min_distinct
    if least is None:
        return Figure(worst)
    if worst >= least:
        return Figure(worst, used(1 - worst, 1 - least))
    return Figure(worst, used(least, worst), f"has {text} (the share that stays is to be {least:g} at least)")


def judge_zeros(a: Floats, b: Floats, ranges: Sequence[Range], tolerance: Tolerance) -> Figure:
    """Judge by how much the share of exact zeros rises, in the range where it rises most."""
    if not b.size:
        return Figure(None)
    shares = [[float((each.part(array) == 0).mean()) for array in (a, b)] for each in ranges]
    rises = [ours - theirs for ours, theirs in shares]
    index = max(range(len(rises)), key=rises.__getitem__)
    rise, most = rises[index], tolerance.max_zero_share_rise
    if most is None:
        return Figure(rise)
    if rise <= most:
        return Figure(rise, used(rise, most))
    ours, theirs = shares[index]
    problem = (
        f"is 0 in {ours:.4g} of the elements{_within(ranges[index])}, expected {theirs:.4g} "
        f"(it may rise by {most:g})"
    )
    return Figure(rise, used(rise, most), problem)


def _reach(values: Floats, magnitude: float) -> float:
    """Return what errors of single elements are measured by: how far expected values can be apart.

    That is the largest magnitude, or the distance from the smallest to the largest value where that
    is less, as it is where all are beside a large offset.
    """
    import numpy as np

    return magnitude if np.isfinite(values).sum() < _ENOUGH_VALUES else min(magnitude, _span(values))


def _signal(values: Floats) -> float:
    """Return the root mean square of finite values around their mean; of few, around 0."""
    import numpy as np

    finite = values[np.isfinite(values)]
    if finite.size < _ENOUGH_VALUES:
        return _root_mean_square(np.where(np.isfinite(values), values, 0.0))
    if _span(finite) == 0:
        return 0.0
    largest = float(np.abs(finite).max())
    return largest * float(np.std(finite / largest))


def _spread_out(b: Floats, ranges: Sequence[Range], numbers: Sequence[float]) -> Floats:
    """Return the number of each element's range, in the output's shape."""
    import numpy as np

    axis = ranges[0].axis
    if axis is None:
        return np.broadcast_to(np.float64(numbers[0]), b.shape)
    along = np.empty(b.shape[axis])
    for each, number in zip(ranges, numbers, strict=True):
        along[list(each.indices)] = number
    return np.broadcast_to(along.reshape([-1 if i == axis else 1 for i in range(b.ndim)]), b.shape)


def _range_at(at: Sequence[int], ranges: Sequence[Range]) -> int:
    """Return which range an element is in."""
    own = (i for i, each in enumerate(ranges) if each.axis is None or at[each.axis] in each.indices)
    return next(own)


def _within(each: Range) -> str:
    return f" in {each}" if each.axis is not None else ""


def _count_distinct(values: NDArray[Any]) -> int:
    """Count distinct values, up to ``_ENOUGH_DISTINCT``, which most outputs have in their first few."""
    import numpy as np

    flat, size = values.ravel(), 1024
    while True:
        count = len(np.unique(flat[:size]))
        if count >= _ENOUGH_DISTINCT or size >= flat.size:
            return min(count, _ENOUGH_DISTINCT)
        size *= 16


def _root_mean_square(values: Floats) -> float:
    """Return the root mean square, scaled first, as squares overflow; infinite where a value is."""
    import numpy as np

    largest = float(np.abs(values).max(initial=0.0))
    if largest in (0.0, float("inf")):
        return largest
    return largest * float(np.sqrt(np.mean(np.square(values / largest))))


def _span(values: Floats) -> float:
    """Return the distance from the smallest to the largest finite value."""
    import numpy as np

    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        return float(np.ptp(finite)) if finite.size else 0.0
