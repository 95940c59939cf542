"""From the values of a tensor to the range that INT8 is to hold: extremes, percentile, least divergence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 2048
"""Fewest bins over the magnitudes of a tensor, once it has been seen."""

ENTROPY_LEVELS = 128
"""Magnitudes that INT8 tells apart, 0 included."""

PERCENTILE = 99.99
"""Share of magnitudes, in percent, that is not clipped."""

_LEAST_PICTURE = 1e-4
"""What the last bin of Q holds at least; see ``entropy_bins``."""

_MOST_BINS = 4 * BINS
_MOST_VALUES = 2**16
"""Values of one array that are binned. The extremes are those of all values."""


class Histogram:
    """Magnitudes of a tensor's values over any number of arrays, read once.

    Exact zeros are not binned: every scale holds them exactly, and after a Relu they would outweigh
    the rest. The bins keep their width while values grow, up to four times as many bins as at first;
    then neighbours are joined, which is exact.
    """

    def __init__(self) -> None:
        import numpy as np

        self.low = math.inf
        self.high = -math.inf
        self.has_nan = False
        self.width = 0.0
        self.counts: NDArray[Any] = np.zeros(0, np.int64)

    @property
    def magnitude(self) -> float:
        """Largest magnitude seen; 0 before any."""
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else 0.0

    def add(self, array: NDArray[Any]) -> None:
        """Take in an array's values. NaN is noted, infinities are extremes that are not binned."""
        import numpy as np

        if array.size == 0:
            return
        low, high = float(array.min()), float(array.max())
        if math.isnan(low):  # numpy's extremes are NaN where one value is
            self.has_nan = True
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        magnitudes = np.abs(_sampled(array).astype(np.float64))
        magnitudes = magnitudes[(magnitudes > 0) & (magnitudes < math.inf)]
        top = max((abs(bound) for bound in (low, high) if 0 < abs(bound) < math.inf), default=0.0)
        if top:
            self._grow(top)
            self._bin(np.append(magnitudes, top))

    def _grow(self, top: float) -> None:
        """Make room for a magnitude."""
        import numpy as np

        if not self.width:
            self.width, self.counts = top / BINS, np.zeros(BINS, np.int64)
        while top > self.width * _MOST_BINS:
            self.width, self.counts = 2 * self.width, _pairs(self.counts)
        missing = math.ceil(top / self.width) - len(self.counts)
        if missing > 0:
            self.counts = np.append(self.counts, np.zeros(missing, np.int64))

    def _bin(self, magnitudes: NDArray[Any]) -> None:
        import numpy as np

        index = np.minimum((magnitudes / self.width).astype(np.int64), len(self.counts) - 1)
        self.counts += np.bincount(index, minlength=len(self.counts))

    def minmax(self) -> tuple[float, float]:
        """Return the extremes."""
        return (self.low, self.high) if self.low <= self.high else (0.0, 0.0)

    def percentile(self, percent: float = PERCENTILE) -> tuple[float, float]:
        """Return the range that holds this percentage of the magnitudes other than 0."""
        import numpy as np

        if not self.width or not math.isfinite(self.magnitude):
            return self.minmax()
        reached = np.cumsum(self.counts)
        bins = int(np.searchsorted(reached, percent / 100 * reached[-1])) + 1
        return self._within(bins)

    def entropy(self) -> tuple[float, float]:
        """Return the range whose INT8 picture of the values diverges least from them.

        See ``entropy_bins``.
        """
        if not self.width or not math.isfinite(self.magnitude):
            return self.minmax()
        return self._within(entropy_bins(self.counts))

    def _within(self, bins: int) -> tuple[float, float]:
        limit = bins * self.width
        return max(self.low, -limit), min(self.high, limit)


def entropy_bins(counts: NDArray[Any], levels: int = ENTROPY_LEVELS) -> int:
    """Return how many bins of a histogram of magnitudes INT8 should hold; the rest is clipped.

    For each number i of bins from ``levels`` on: P are the first i bins, with all that lies beyond
    added to the last of them. Q are the same bins after quantization: each of ``levels`` equal spans
    (bin j belongs to span j * levels // i) spreads what it holds evenly over its bins that are not
    empty. Where only what lies beyond is in P's last bin, Q has a ten-thousandth of a value there: the
    divergence stays finite, and outliers far off can be clipped. The i with the least divergence of Q
    from P wins.

    The divergence is the generalized one of Kullback and Leibler, the sum of p log(p / q) - p + q. Where
    little is clipped it is the usual one; but Q is not scaled up to the size of P, since then a tensor
    whose values all lie far from 0 looks perfect when nearly all of it is clipped.

    All i are computed at once. With C, E and L the running sums of the counts h, of the bins that
    are not empty, and of h log h, each span contributes L - C log(C / E) over its ends.

    Source:
        S. Migacz, "8-bit Inference with TensorRT", GTC 2017.
    """
    import numpy as np

    h = np.trim_zeros(np.asarray(counts, np.float64), "b")
    if len(h) <= levels:
        return len(h)
    held = np.arange(levels, len(h) + 1)
    ends = -(-np.arange(levels + 1) * held[:, None] // levels)  # rounded up: where each span begins
    total = _running(h)
    inside = np.diff(total[ends])
    filled = np.diff(_running(h > 0)[ends])
    last, beyond = h[held - 1], total[-1] - total[held]
    spread = inside / np.maximum(filled, 1)
    own = _running(_xlogx(h))[held] - _xlogx(last) + _xlogx(last + beyond)
    last_picture = np.where(last > 0, spread[:, -1], _LEAST_PICTURE)
    pictured = _times_log(inside, spread).sum(axis=1) + _times_log(beyond, last_picture)
    divergence = (own - pictured - beyond) / total[-1]
    return int(held[divergence.argmin()])


def _pairs(counts: NDArray[Any]) -> NDArray[Any]:
    """Return a histogram of half as many bins, twice as wide."""
    import numpy as np

    padded = np.append(counts, np.zeros(len(counts) % 2, np.int64))
    return np.asarray(padded.reshape(-1, 2).sum(axis=1))


def _running(values: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _xlogx(values: NDArray[Any]) -> NDArray[Any]:
    return _times_log(values, values)


def _times_log(factor: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return factor * log(values), 0 where the factor is."""
    import numpy as np

    result: NDArray[Any] = factor * np.log(np.where(factor > 0, np.maximum(values, 1e-300), 1.0))
    return result


def _sampled(array: NDArray[Any]) -> NDArray[Any]:
    """Return all values of an array, or evenly spaced ones of a large one.

    The step has no factor in common with the size, so that it does not walk along one channel.
    """
    values = array.reshape(-1)
    step = -(-values.size // _MOST_VALUES)
    while math.gcd(step, values.size) != 1 and step > 1:
        step += 1
    return values[::step]
