"""Find the parts of an output that have magnitudes of their own, such as boxes beside scores.

One scale for all of it says nothing of the small part: with boxes up to 640 and scores up to 1 in
one tensor, scores that all became equal leave its cosine at 0.9999 and its largest error at 0.1 %
of its largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_FACTOR = 8.0
"""Magnitudes this far apart are ranges of their own: in eight bits that span the larger one, the
smaller has at most 16 of 127 steps."""

_MIN_VALUES = 4
"""Distinct values that an index must have before its magnitude says something about it."""

_MOST_RUNS = 6


@dataclass(frozen=True, slots=True)
class Range:
    """Indices of one axis whose elements have one magnitude; all elements where ``axis`` is None."""

    axis: int | None
    indices: tuple[int, ...]
    magnitude: float

    def part(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return its elements of an array of the output's shape."""
        return array if self.axis is None else array.take(self.indices, axis=self.axis)

    def __str__(self) -> str:
        """Return it in words, such as ``4..83 of axis 1``; empty for all elements."""
        return "" if self.axis is None else f"{_listed(self.indices)} of axis {self.axis}"


def find_ranges(expected: NDArray[Any], *, batched: bool = True) -> list[Range]:
    """Return the ranges of an output, smallest magnitude first: one, or several of one axis.

    Indices of an axis form a range of their own where *every* index above them is typically (the
    median of its non-zero elements) ``_FACTOR`` times larger than anything in them. So neither single
    large elements split an output, nor rare classes, whose largest scores differ widely. Values that
    are not negative and sum to 1 along an axis are probabilities: one quantity, however small some.

    Args:
        expected: The output as it should be; NaN and infinities do not count.
        batched: Whether axis 0 holds the rows of a batch. These are never ranges of their own: a
            row's magnitude is that of its request.
    """
    import numpy as np

    values = np.where(np.isfinite(expected), expected, 0.0).astype(np.float64)
    sizes = np.abs(values)
    found: list[list[Range]] = [[Range(None, (), float(sizes.max(initial=0.0)))]]
    for axis in range(1 if batched else 0, values.ndim):
        if values.shape[axis] > 1 and values.size // values.shape[axis] >= _MIN_VALUES:
            found.append(_along(values, sizes, axis))
    return max(found, key=_spread)


def _spread(ranges: Sequence[Range]) -> float:
    return ranges[-1].magnitude / ranges[0].magnitude if len(ranges) > 1 else 1.0 if ranges else 0.0


def _along(values: Floats, sizes: Floats, axis: int) -> list[Range]:
    """Return the ranges of one axis; [] where it has only one."""
    import numpy as np

    peaks = sizes.max(axis=tuple(other for other in range(sizes.ndim) if other != axis))
    order = np.argsort(peaks, kind="stable")
    order = order[np.searchsorted(peaks[order], 0.0, side="right") :]  # without those of zeros only
    steps = np.flatnonzero(peaks[order[1:]] >= _FACTOR * peaks[order[:-1]]) + 1
    if not steps.size or _are_probabilities(values, axis):
        return []
    rows = np.sort(np.moveaxis(sizes, axis, 0)[order].reshape(len(order), -1), axis=1)
    typical = _typical(rows)
    cuts = [
        int(step)
        for step in steps
        if typical[step:].min() >= _FACTOR * peaks[order[step - 1]] and _vary(rows[step:])
    ]
    if not cuts:
        return []
    groups = np.split(order, cuts)
    groups[0] = np.concatenate([groups[0], np.flatnonzero(peaks == 0)])
    return [Range(axis, tuple(sorted(map(int, group))), float(peaks[group].max())) for group in groups]


def _typical(rows: Floats) -> Floats:
    """Return the lower median of the non-zero values of each ascending row."""
    import numpy as np

    zeros = (rows == 0).sum(axis=1)
    at = zeros + (rows.shape[1] - zeros - 1) // 2
    median: Floats = np.take_along_axis(rows, at[:, None], axis=1)[:, 0]
    return median


def _vary(rows: Floats) -> bool:
    """Say whether some ascending row has enough distinct non-zero values: copies of one row have not."""
    import numpy as np

    changes = (np.diff(rows, axis=1) != 0).sum(axis=1) + (rows[:, 0] != 0)
    return bool((changes >= _MIN_VALUES).any())


def _are_probabilities(values: Floats, axis: int) -> bool:
    import numpy as np

    return bool((values >= 0).all() and np.allclose(values.sum(axis=axis), 1.0, rtol=0.0, atol=0.01))


def _listed(indices: Sequence[int]) -> str:
    """Return ascending indices as runs, ``0..3, 7``; many runs as their number and ends."""
    runs = list(_runs(indices))
    if len(runs) > _MOST_RUNS:
        return f"{len(indices)} indices from {indices[0]} to {indices[-1]}"
    return ", ".join(str(low) if low == high else f"{low}..{high}" for low, high in runs)


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = previous = indices[0]
    for index in indices[1:]:
        if index != previous + 1:
            yield start, previous
            start = index
        previous = index
    yield start, previous
