"""Compare two sets of outputs: the one rule that export, optimise, deploy and probe share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.magnitudes import Range, find_ranges
from triton_toolkit.core.tolerances import Tolerance, Tolerances, default_tolerances

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Arrays = Mapping[str, "NDArray[Any]"]

_INFINITE = float("inf")

_ENOUGH_DISTINCT = 64
"""More distinct values than this are not counted: eight bits keep about 100 in a range that has a
scale of its own, so fewer are a loss, but thousands are no better."""

_NEARLY_CONSTANT = 0.01
"""A range whose expected values vary by less than this share of its magnitude has no distinct values
to lose: eight bits do not resolve it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one output compares with what it should be.

    All figures are measured whatever the tolerance asks for; those that make no sense for an output
    are None.

    Attributes:
        output: Its name.
        max_absolute: Largest |a - b|, b being the expected value; 0 for exact types that agree, and
            infinite where they do not, or where a NaN or infinity has no counterpart.
        max_relative: Largest |a - b| / |b| over elements with b != 0; otherwise as above.
        problem: What is wrong, in words; empty when the output is right.
        excess: Largest share of its tolerance that any figure uses: above 1 it is exceeded.
        top1: Share of rows whose largest element of the last axis is where it should be; of exact
            types, share of equal elements.
        distinct: Least share of distinct values that a range keeps; 0 where one became constant.
        zero_share_rise: Most that the share of exact zeros in a range rises; below 0 where it falls.
        ranges: The parts that were judged by a magnitude of their own, in words and with that
            magnitude; empty for an output of one range.
        detailed: Whether a report shows the figures after ``problem``: not for a plain tolerance.
    """

    output: str
    max_absolute: float
    max_relative: float
    problem: str
    excess: float = 0.0
    top1: float | None = None
    distinct: float | None = None
    zero_share_rise: float | None = None
    ranges: Mapping[str, float] | None = None
    detailed: bool = False

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return not self.problem

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report; infinite figures become null, which JSON can hold."""
        value: dict[str, Any] = {
            "output": self.output,
            "max_absolute": _finite(self.max_absolute),
            "max_relative": _finite(self.max_relative),
            "problem": self.problem,
        }
        if self.detailed:
            value |= {
                "excess": _finite(self.excess),
                "top1": self.top1,
                "distinct": self.distinct,
                "zero_share_rise": self.zero_share_rise,
                "ranges": dict(self.ranges or {}),
            }
        return value


def compare_outputs(
    actual: Arrays, expected: Arrays, tolerances: Tolerances, *, batched: bool = True
) -> list[Difference]:
    """Compare every expected output with the actual one of that name.

    Each floating-point element must satisfy |a - b| <= absolute + relative * |b| + range * R, with
    NaN equal to NaN and infinities equal to themselves. R is the largest |b| of the output or, where
    it mixes ranges (see ``magnitudes.find_ranges``), of the range that the element is in. Where the
    tolerance says so, rows must keep their largest element, and each range its distinct values and
    its share of zeros. All other types must be equal, up to the share that ``top1`` allows.

    Args:
        actual: Outputs to judge, by name; further names are ignored.
        expected: What they should be; b above.
        tolerances: How far each may lie from it.
        batched: Whether axis 0 of the outputs holds the rows of a batch.
    """
    return [
        _compare(_Pair(name, actual.get(name), wanted, tolerances.of(name)), batched)
        for name, wanted in expected.items()
    ]


@dataclass(frozen=True, slots=True)
class _Pair:
    output: str
    actual: NDArray[Any] | None
    expected: NDArray[Any]
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class _Figure:
    """A figure beside its limit: how much of the allowance it uses, and what is wrong with it."""

    excess: float
    problem: str = ""


def _compare(pair: _Pair, batched: bool) -> Difference:
    import numpy as np

    got, wanted = pair.actual, pair.expected
    if got is None:
        return _wrong(pair, "is missing")
    if got.shape != wanted.shape:
        return _wrong(pair, f"has shape {list(got.shape)}, expected {list(wanted.shape)}")
    if got.dtype != wanted.dtype:
        return _wrong(pair, f"has type {got.dtype}, expected {wanted.dtype}")
    if not np.issubdtype(wanted.dtype, np.floating):
        return _compare_exact(pair, got)
    return _compare_floats(pair, got, batched)


def _wrong(pair: _Pair, problem: str) -> Difference:
    return Difference(
        output=pair.output,
        max_absolute=_INFINITE,
        max_relative=_INFINITE,
        problem=problem,
        excess=_INFINITE,
        detailed=not pair.tolerance.is_plain,
    )


def _compare_exact(pair: _Pair, got: NDArray[Any]) -> Difference:
    import numpy as np

    wrong = int(np.count_nonzero(got != pair.expected))
    share = 1.0 - wrong / got.size if got.size else 1.0
    least = 1.0 if pair.tolerance.top1 is None else pair.tolerance.top1
    text = f" ({_share(share)} agree, at least {least:g} should)" if least < 1 else ""
    return Difference(
        output=pair.output,
        max_absolute=_INFINITE if wrong else 0.0,
        max_relative=_INFINITE if wrong else 0.0,
        problem=f"differs in {wrong} of {got.size} elements{text}" if share < least else "",
        excess=_used(1 - share, 1 - least),
        top1=share,
        detailed=not pair.tolerance.is_plain,
    )


def _compare_floats(pair: _Pair, got: NDArray[Any], batched: bool) -> Difference:
    import numpy as np

    a, b = got.astype(np.float64), pair.expected.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        share = np.where(same | (b == 0), 0.0, error / np.abs(b))
        share = np.where(np.isnan(share), np.inf, share)
    ranges = find_ranges(b, batched=batched)
    top1, distinct, rise = _top1(a, b), _distinct(a, b, ranges), _zero_share_rise(a, b, ranges)
    figures = [
        _elements(pair.tolerance, (a, b, error), ranges),
        _judge_top1(pair.tolerance, a, top1),
        _judge_distinct(pair.tolerance, distinct),
        _judge_zeros(pair.tolerance, rise),
    ]
    return Difference(
        output=pair.output,
        max_absolute=_max(error),
        max_relative=_max(share),
        problem="; ".join(figure.problem for figure in figures if figure.problem),
        excess=max(figure.excess for figure in figures),
        top1=top1,
        distinct=distinct[0],
        zero_share_rise=rise[0],
        ranges={str(each): each.magnitude for each in ranges} if len(ranges) > 1 else None,
        detailed=not pair.tolerance.is_plain,
    )


def _elements(
    tolerance: Tolerance, arrays: tuple[Floats, Floats, Floats], ranges: Sequence[Range]
) -> _Figure:
    """Judge each element: actual, expected and error."""
    import numpy as np

    a, b, error = arrays
    largest = _magnitudes(b, ranges)
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = tolerance.absolute + tolerance.relative * np.abs(b) + tolerance.range * largest
        allowed = np.where(np.isfinite(b), allowed, 0.0)  # an infinity allows no error
    wrong = error > allowed
    with np.errstate(invalid="ignore", divide="ignore"):
        used = np.where(error == 0, 0.0, error / allowed)
    if not wrong.any():
        return _Figure(_max(used))
    worst = error if np.isinf(used[wrong]).any() else used  # a share of nothing has no size
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(wrong, worst, -1.0))), error.shape))
    limit = f"{tolerance.absolute:g} + {tolerance.relative:g} x |expected|"
    if tolerance.range:
        own = f" ({_range_of(at, ranges)})" if len(ranges) > 1 else ""
        limit += f" + {tolerance.range:g} x {largest[at]:.6g}, the largest{own}"
    return _Figure(
        _max(used),
        f"differs in {int(wrong.sum())} of {wrong.size} elements, most at {list(at)}: "
        f"{a[at]:.6g}, expected {b[at]:.6g} (tolerance {limit})",
    )


def _magnitudes(b: Floats, ranges: Sequence[Range]) -> Floats:
    """Return the magnitude of each element's range, in the output's shape."""
    import numpy as np

    first = ranges[0]
    if first.axis is None:
        return np.broadcast_to(first.magnitude, b.shape)
    along = np.empty(b.shape[first.axis])
    for each in ranges:
        along[list(each.indices)] = each.magnitude
    shape = [1] * b.ndim
    shape[first.axis] = -1
    return np.broadcast_to(along.reshape(shape), b.shape)


def _range_of(at: Sequence[int], ranges: Sequence[Range]) -> str:
    return next(str(each) for each in ranges if each.axis is not None and at[each.axis] in each.indices)


def _top1(a: Floats, b: Floats) -> float | None:
    """Return the share of rows whose largest element is where it should be, ties in b counting."""
    import numpy as np

    if b.ndim == 0 or b.shape[-1] < 2 or not b.size:
        return None
    ours, theirs = a.argmax(axis=-1)[..., None], b.argmax(axis=-1)[..., None]
    tied = np.take_along_axis(b, ours, axis=-1) == np.take_along_axis(b, theirs, axis=-1)
    return float(((ours == theirs) | tied).mean())


def _judge_top1(tolerance: Tolerance, a: Floats, share: float | None) -> _Figure:
    import numpy as np

    if tolerance.top1 is None or share is None:
        return _Figure(0.0)
    excess = _used(1 - share, 1 - tolerance.top1)
    if share >= tolerance.top1:
        return _Figure(excess)
    chosen, counts = np.unique(a.argmax(axis=-1), return_counts=True)
    rows, commonest = int(counts.sum()), int(counts.argmax())
    return _Figure(
        excess,
        f"has its largest element where it should be in {_share(share)} of {rows} rows, at least "
        f"{tolerance.top1:g} should ({counts[commonest]} of the rows choose index {chosen[commonest]})",
    )


def _distinct(a: Floats, b: Floats, ranges: Sequence[Range]) -> tuple[float | None, str]:
    """Return the least share of distinct values that a range keeps, and which range that is, in words."""
    worst: tuple[float | None, str] = (None, "")
    for each in ranges:
        ours, theirs = each.part(a), each.part(b)
        wanted = _count_distinct(theirs) if _spread(theirs) > _NEARLY_CONSTANT * each.magnitude else 1
        # Counted beyond the first, so that what became constant has kept nothing.
        kept = min(1.0, (_count_distinct(ours) - 1) / (wanted - 1)) if wanted > 1 else 1.0
        if b.size and (worst[0] is None or kept < worst[0]):
            worst = kept, f"{_count_distinct(ours)} distinct values{_within(each)}, expected {_many(wanted)}"
    return worst


def _judge_distinct(tolerance: Tolerance, found: tuple[float | None, str]) -> _Figure:
    share, text = found
    if tolerance.min_distinct is None or share is None:
        return _Figure(0.0)
    excess = _used(tolerance.min_distinct, share) if share < 1 else 0.0
    if share >= tolerance.min_distinct:
        return _Figure(excess)
    return _Figure(excess, f"has only {text} (at least {tolerance.min_distinct:g} of them should stay)")


def _zero_share_rise(a: Floats, b: Floats, ranges: Sequence[Range]) -> tuple[float | None, str]:
    """Return the most that the share of zeros in a range rises, and which range that is, in words."""
    worst: tuple[float | None, str] = (None, "")
    for each in ranges if b.size else ():
        ours, theirs = (float((each.part(array) == 0).mean()) for array in (a, b))
        if worst[0] is None or ours - theirs > worst[0]:
            worst = (
                ours - theirs,
                f"is 0 in {_share(ours)} of the elements{_within(each)}, expected {_share(theirs)}",
            )
    return worst


def _judge_zeros(tolerance: Tolerance, found: tuple[float | None, str]) -> _Figure:
    rise, text = found
    most = tolerance.max_zero_share_rise
    if most is None or rise is None:
        return _Figure(0.0)
    excess = _used(max(rise, 0.0), most)
    return _Figure(excess, f"{text} (it may rise by {most:g})" if rise > most else "")


def _count_distinct(values: NDArray[Any]) -> int:
    """Count distinct values, up to ``_ENOUGH_DISTINCT``; most outputs have them within a few elements."""
    import numpy as np

    flat, size = values.ravel(), 1024
    while True:
        count = len(np.unique(flat[:size]))
        if count >= _ENOUGH_DISTINCT or size >= flat.size:
            return min(count, _ENOUGH_DISTINCT)
        size *= 16


def _spread(values: Floats) -> float:
    import numpy as np

    finite = values[np.isfinite(values)]
    return float(finite.max() - finite.min()) if finite.size else 0.0


def _used(part: float, whole: float) -> float:
    """Return part / whole, where nothing of nothing is 0."""
    return 0.0 if part <= 0 else part / whole if whole > 0 else _INFINITE


def _within(each: Range) -> str:
    return f" in {each}" if each.axis is not None else ""


def _many(count: int) -> str:
    return f"{_ENOUGH_DISTINCT} or more" if count >= _ENOUGH_DISTINCT else str(count)


def _share(value: float) -> str:
    return f"{value:.4g}"


def _finite(value: float) -> float | None:
    return value if value < _INFINITE else None


def _max(values: Floats) -> float:
    return float(values.max()) if values.size else 0.0


__all__ = [
    "Difference",
    "Tolerance",
    "Tolerances",
    "compare_outputs",
    "default_tolerances",
]
