"""Compare two sets of outputs: the one rule that export, optimise, deploy and probe share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.figures import (
    judge_distinct,
    judge_elements,
    judge_noise,
    judge_top1,
    judge_zeros,
    used,
)
from triton_toolkit.core.magnitudes import find_ranges
from triton_toolkit.core.tolerances import Tolerance, Tolerances, default_tolerances

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]

_INFINITE = float("inf")


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
        noise: Root mean square of the error by that of the expected values around their mean, in the
            worst range.
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
    noise: float | None = None
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
                "noise": None if self.noise is None else _finite(self.noise),
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
    NaN equal to NaN and infinities equal to themselves. R is the largest |b| of the output, or the
    distance from its smallest to its largest b where that is less: an offset that all share allows
    nothing. Where it mixes ranges (see ``magnitudes.find_ranges``) each has its own. Where the
    tolerance says so, rows must keep their largest element, and each range its distinct values and
    its share of zeros, and its noise. All other types must be equal, up to the share that ``top1`` allows.

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
    text = f" ({share:.4g} agree, at least {least:g} should)" if least < 1 else ""
    return Difference(
        output=pair.output,
        max_absolute=_INFINITE if wrong else 0.0,
        max_relative=_INFINITE if wrong else 0.0,
        problem=f"differs in {wrong} of {got.size} elements{text}" if share < least else "",
        excess=used(1 - share, 1 - least),
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
    ranges, tolerance = find_ranges(b, batched=batched), pair.tolerance
    elements = judge_elements(a, b, error, ranges, tolerance)
    noise = judge_noise(error, b, ranges, tolerance)
    top1 = judge_top1(a, b, tolerance)
    distinct = judge_distinct(a, b, ranges, tolerance)
    zeros = judge_zeros(a, b, ranges, tolerance)
    figures = (elements, noise, top1, distinct, zeros)
    return Difference(
        output=pair.output,
        max_absolute=float(error.max(initial=0.0)),
        max_relative=float(share.max(initial=0.0)),
        problem="; ".join(figure.problem for figure in figures if figure.problem),
        excess=max(figure.excess for figure in figures),
        noise=noise.value,
        top1=top1.value,
        distinct=distinct.value,
        zero_share_rise=zeros.value,
        ranges={str(each): each.magnitude for each in ranges} if len(ranges) > 1 else None,
        detailed=not tolerance.is_plain,
    )


def _finite(value: float) -> float | None:
    return value if value < _INFINITE else None


__all__ = [
    "Difference",
    "Tolerance",
    "Tolerances",
    "compare_outputs",
    "default_tolerances",
]
