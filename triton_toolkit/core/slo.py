"""Service-level objectives as text: ``p99<20ms``, ``error_rate=0``, ``throughput>500/s``.

The same text means the same everywhere: in ``tt.yaml`` and after ``--slo``.
"""

from __future__ import annotations

import difflib
import enum
import math
import re
from dataclasses import dataclass

from triton_toolkit.core.units import parse_seconds
from triton_toolkit.errors import UsageError

_TERM = re.compile(r"\s*([a-z][a-z0-9_.]*)\s*(<=|>=|==|<|>|=)\s*(\S.*?)\s*")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_SERVER_MEANS = ("queue_mean", "compute_input_mean", "compute_infer_mean", "compute_output_mean")
_KNOWN = (
    "p50",
    "p90",
    "p95",
    "p99",
    "p99.9",
    "mean",
    "max",
    "first_request",
    "error_rate",
    "throughput",
    *_SERVER_MEANS,
)


class Unit(enum.Enum):
    """What a limit is measured in."""

    MILLISECONDS = "ms"
    PER_SECOND = "/s"
    RATIO = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One condition: ``metric`` compared by ``operator`` with ``limit`` in ``unit``."""

    metric: str
    operator: str
    limit: float
    unit: Unit
    text: str

    def holds(self, value: float) -> bool:
        """Say whether a measured value (in ``unit``) meets the condition."""
        match self.operator:
            case "<":
                return value < self.limit
            case "<=":
                return value <= self.limit
            case ">":
                return value > self.limit
            case ">=":
                return value >= self.limit
            case _:
                return value == self.limit


def parse_slo(text: str) -> tuple[Objective, ...]:
    """Parse comma-separated conditions.

    Metrics: ``pNN`` and ``mean``/``max`` (client latency), ``first_request``, ``queue_mean`` and the
    server's other means (times, with a unit); ``throughput`` (inferences a second, ``/s``
    optional); ``error_rate`` (0 to 1, or with ``%``).

    Raises:
        UsageError: Not of that form; says which term and what would be right.
    """
    terms = [term for term in text.split(",") if term.strip()]
    if not terms:
        raise UsageError(f"SLO {text!r} has no condition", hint="write for example 'p99<20ms,error_rate=0'")
    return tuple(_parse_term(term) for term in terms)


def _parse_term(term: str) -> Objective:
    match = _TERM.fullmatch(term)
    if match is None:
        raise UsageError(
            f"SLO {term.strip()!r} is not METRIC OPERATOR LIMIT",
            hint="write for example 'p99<20ms', 'throughput>500/s' or 'error_rate=0'",
        )
    metric, operator, limit = match[1], match[2], match[3]
    unit = _unit_of(metric, term)
    try:
        value = _parse_limit(limit, unit)
    except ValueError as exc:
        raise UsageError(f"SLO {term.strip()!r}: {exc}") from exc
    if value < 0:
        raise UsageError(f"SLO {term.strip()!r}: a limit cannot be negative")
    if operator in ("=", "==") and metric != "error_rate":
        raise UsageError(
            f"SLO {term.strip()!r}: a measured figure is never exactly equal to a limit",
            hint="write < or <= for a ceiling, > or >= for a floor",
        )
    return Objective(
        metric=metric, operator="=" if operator == "==" else operator, limit=value, unit=unit,
        text=term.strip(),
    )  # fmt: skip


def _unit_of(metric: str, term: str) -> Unit:
    if metric == "throughput":
        return Unit.PER_SECOND
    if metric == "error_rate":
        return Unit.RATIO
    if metric in ("mean", "max", "first_request", *_SERVER_MEANS):
        return Unit.MILLISECONDS
    match = _PERCENTILE.fullmatch(metric)
    if match and float(match[1]) > 0:
        return Unit.MILLISECONDS
    shown = f"SLO {term.strip()!r}: unknown metric {metric!r}"
    part = metric.rpartition("_")[0]
    if f"{part}_mean" in _SERVER_MEANS:
        raise UsageError(
            f"{shown}; Triton's statistics hold no distribution of this time, only its mean",
            hint=f"use {part}_mean, or a percentile of the whole request such as p99",
        )
    near = difflib.get_close_matches(metric, _KNOWN, n=1)
    raise UsageError(
        shown + (f"; did you mean {near[0]!r}?" if near else ""), hint=f"known: {', '.join(_KNOWN)}"
    )


def _parse_limit(text: str, unit: Unit) -> float:
    """Return a limit in ``unit``.

    Raises:
        ValueError: Not a finite number of that unit.
    """
    if unit is Unit.MILLISECONDS:
        return parse_seconds(text) * 1e3
    if unit is Unit.PER_SECOND:
        return _number(text.removesuffix("/s").rstrip(), text, "a rate; write it like 500/s")
    wanted = "a share from 0 to 1; write it like 0.01 or 1%"
    share = _number(text.removesuffix("%").rstrip(), text, wanted)
    share = share / 100 if text.endswith("%") else share
    if share > 1:
        raise ValueError(f"{text!r} is not {wanted}")
    return share


def _number(text: str, shown: str, wanted: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{shown!r} is not {wanted}") from None
    if not math.isfinite(value):
        raise ValueError(f"{shown!r} is not {wanted}")
    return value
