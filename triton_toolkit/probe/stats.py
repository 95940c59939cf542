"""Figures from a sample of latencies, each with the interval in which the truth lies.

Pure functions of numbers: no clock, no server. Percentiles are order statistics of the full
sample (the smallest latency that at least that share of the requests did not exceed; nothing is
interpolated). Their intervals assume no distribution: the number of requests below the true
percentile is binomial, which picks two order statistics around it.

Requests of a closed loop are not independent: those that share a batch share its fate, and slow
spells last. So the sample is cut into 20 consecutive parts; where the share of requests below the
percentile varies between the parts by more than independent requests would, the sample counts
for correspondingly fewer requests. See docs/probe.md, "How sure a figure is".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONFIDENCE = 0.95
PARTS = 20
"""Consecutive parts that a run is cut into to see how far its requests hang together."""

_T = 2.0930
"""97.5 % quantile of Student's t with PARTS - 1 degrees of freedom."""
_Z = 1.9600
_DISPERSION_LIMIT = 1.333
"""85 % quantile of chi-squared / degrees of freedom, PARTS - 1 of them: more counts as dependence."""
_TREND_SHARE = 0.1
_TREND_LIMIT = 3.29
"""Standard normal score beyond which (two-sided, 0.1 %) a run counts as drifting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its 95 % interval; an end is None where the sample is too small to tell."""

    value: float
    low: float | None
    high: float | None

    def as_dict(self) -> dict[str, float | None]:
        """Return it for a report, rounded to six significant digits."""
        return {"value": _short(self.value), "low": _short(self.low), "high": _short(self.high)}


class Sample:
    """The latencies of one run, in the order in which the requests were sent.

    Args:
        latencies: One a request, in the order of sending, in any one unit.
        concurrency: How many requests were in flight together: where the run is too short to see how
            far they hang together, that many are taken to share one fate.
    """

    def __init__(self, latencies: NDArray[Any], concurrency: int = 1) -> None:
        import numpy as np

        self._ordered = np.asarray(latencies, dtype=np.float64)
        self._sorted = np.sort(self._ordered)
        self._concurrency = concurrency

    def __len__(self) -> int:
        return len(self._ordered)

    def percentile(self, q: float) -> Estimate:
        """Return the percentile ``q`` (0 < q < 1) with its interval. The sample must not be empty."""
        n = len(self)
        value = float(self._sorted[max(0, math.ceil(q * n - 1e-9) - 1)])
        independent = max(1, round(n / self.dependence(value)))
        low, high = interval_ranks(independent, q)
        stretch = n / independent
        return Estimate(
            value=value,
            low=None if low is None else float(self._sorted[max(0, math.floor(low * stretch) - 1)]),
            high=None if high is None else float(self._sorted[min(n, math.ceil(high * stretch)) - 1]),
        )

    def mean(self) -> Estimate:
        """Return the mean; its interval comes from the means of the run's parts."""
        value = float(self._ordered.mean())
        if len(self) < 2 * PARTS:
            return Estimate(value=value, low=None, high=None)
        return _from_parts(value, self._parts().mean(axis=1))

    def minimum(self) -> float:
        """Return the smallest latency seen."""
        return float(self._sorted[0])

    def maximum(self) -> float:
        """Return the largest latency seen; a longer run may well see a larger one."""
        return float(self._sorted[-1])

    def dependence(self, value: float) -> float:
        """Return how many requests count for one when asking what share is below ``value``.

        1 where the requests look independent. Otherwise the variance between the run's parts over
        that of independent requests, enlarged because it is itself estimated (t for normal).
        """
        n = len(self)
        if n < PARTS * max(2, self._concurrency):
            return float(self._concurrency)
        below = (self._parts() < value).mean(axis=1)
        share = float(below.mean())
        if share in (0.0, 1.0):
            return 1.0
        ratio = (n // PARTS) * float(below.var(ddof=1)) / (share * (1 - share))
        return ratio * (_T / _Z) ** 2 if ratio > _DISPERSION_LIMIT else 1.0

    def drift(self) -> tuple[float, float] | None:
        """Return the medians of the first and last third if the run has a trend that matters, else None.

        Mann-Kendall test on the medians of the run's parts at 0.1 %, and 10 % between the thirds.
        """
        import numpy as np

        if len(self) < 10 * PARTS:
            return None
        medians = np.median(self._parts(), axis=1)
        rises = sum(float(np.sign(medians[i + 1 :] - medians[i]).sum()) for i in range(PARTS - 1))
        deviation = math.sqrt(PARTS * (PARTS - 1) * (2 * PARTS + 5) / 18)
        if abs(rises) <= _TREND_LIMIT * deviation:
            return None
        third = len(self) // 3
        first, last = float(np.median(self._ordered[:third])), float(np.median(self._ordered[-third:]))
        return (first, last) if abs(last - first) > _TREND_SHARE * first else None

    def histogram(self, bins: int, low: float, high: float) -> list[int]:
        """Count the latencies in ``bins`` classes of equal ratio from ``low`` to ``high``, both > 0."""
        import numpy as np

        edges = np.geomspace(low, max(high, low * (1 + 1e-9)), bins + 1)
        places = np.clip(np.searchsorted(edges, self._sorted, side="right") - 1, 0, bins - 1)
        return [int(count) for count in np.bincount(places, minlength=bins)]

    def _parts(self) -> NDArray[Any]:
        length = len(self) // PARTS
        return self._ordered[: length * PARTS].reshape(PARTS, length)


def throughput(ends_ns: NDArray[Any], start_ns: int, stop_ns: int) -> Estimate:
    """Return events a second between two times, with an interval from 20 equal parts of that span.

    Args:
        ends_ns: When each event happened; those outside the span do not count.
        start_ns: Begin of the span.
        stop_ns: End of the span, later than its begin.
    """
    import numpy as np

    inside = ends_ns[(ends_ns >= start_ns) & (ends_ns < stop_ns)]
    seconds = (stop_ns - start_ns) / 1e9
    value = len(inside) / seconds
    if len(inside) < 2 * PARTS:
        return Estimate(value=value, low=None, high=None)
    places = (inside - start_ns) * PARTS // (stop_ns - start_ns)
    counts = np.bincount(places.astype(np.int64), minlength=PARTS)
    return _from_parts(value, counts / (seconds / PARTS))


def share(hits: int, n: int) -> Estimate:
    """Return a proportion with its exact (Clopper-Pearson) interval; ``n`` at least 1."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if hits == 0 else _solve(lambda p: 1 - _binomial_cdf(hits - 1, n, p) - tail)
    high = 1.0 if hits == n else _solve(lambda p: tail - _binomial_cdf(hits, n, p))
    return Estimate(value=hits / n, low=low, high=high)


def requests_needed(q: float) -> int:
    """Return how many independent requests it takes before percentile ``q`` has an upper bound."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(q))


@functools.lru_cache(maxsize=4096)
def interval_ranks(n: int, q: float) -> tuple[int | None, int | None]:
    """Return the ranks (from 1) of the two order statistics that enclose percentile ``q``.

    Of ``n`` independent values the number below the true percentile is binomial(n, q). The ranks
    start from 2.5 % in each tail and are drawn in by one where the whole still covers 95 %: the
    discreteness of the binomial would otherwise make the interval wider than stated. None where no
    value of the sample can serve as that end.
    """
    first, cdf = _binomial_table(n, q)
    tail = (1 - CONFIDENCE) / 2

    def below(count: int) -> float:  # P(X <= count)
        if count < first:
            return 0.0
        return cdf[min(count - first, len(cdf) - 1)]

    low = next(count for count in range(first, n + 1) if below(count) > tail)
    high = next((count for count in range(low, n + 1) if below(count) >= 1 - tail), n) + 1
    choices = [
        (below(upper - 1) - below(lower - 1), lower, upper)
        for lower in (low, low + 1)
        for upper in (high, high - 1)
    ]
    _, low, high = min((c for c in choices if c[0] >= CONFIDENCE), default=choices[0])
    return (low if low >= 1 else None), (high if high <= n else None)


def _binomial_table(n: int, q: float) -> tuple[int, list[float]]:
    """Return the first count of binomial(n, q) that matters and the distribution function from there."""
    mode = min(n, int((n + 1) * q))
    log_peak = math.lgamma(n + 1) - math.lgamma(mode + 1) - math.lgamma(n - mode + 1)
    peak = math.exp(log_peak + mode * math.log(q) + (n - mode) * math.log1p(-q))
    downward, upward, odds = [], [], q / (1 - q)
    p, count = peak, mode
    while count > 0 and p > 1e-18:
        p *= count / ((n - count + 1) * odds)
        count -= 1
        downward.append(p)
    p, count = peak, mode
    while count < n and p > 1e-18:
        p *= (n - count) * odds / (count + 1)
        count += 1
        upward.append(p)
    table, total = [], 0.0
    for p in (*reversed(downward), peak, *upward):
        total += p
        table.append(total)
    return mode - len(downward), table


def _binomial_cdf(count: int, n: int, p: float) -> float:
    if p <= 0.0:
        return 1.0
    if p >= 1.0:
        return 1.0 if count >= n else 0.0
    first, cdf = _binomial_table(n, p)
    return 0.0 if count < first else cdf[min(count - first, len(cdf) - 1)]


def _solve(rising: Any) -> float:
    """Return where a function that rises from below 0 to above 0 on [0, 1] crosses 0."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _from_parts(value: float, parts: NDArray[Any]) -> Estimate:
    reach = _T * float(parts.std(ddof=1)) / math.sqrt(PARTS)
    return Estimate(value=value, low=max(0.0, value - reach), high=value + reach)


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
