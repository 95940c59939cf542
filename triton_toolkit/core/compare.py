"""Compare two sets of outputs: the one rule that export, deploy and probe share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How one output compares with what it should be.

    ``max_absolute`` is max |a - b|; ``max_relative`` is max |a - b| / |b| over elements with
    b != 0. Both are 0 for exact types that agree, and infinite where a NaN or infinity has no
    counterpart. ``problem`` is empty when the output is right, else says what is wrong.
    """

    output: str
    max_absolute: float
    max_relative: float
    problem: str

    @property
    def ok(self) -> bool:
        """Whether the output is right."""
        return not self.problem

    def as_dict(self) -> dict[str, Any]:
        """Return it for a report; infinite figures become null, which JSON can hold."""
        finite = {key: value if value < float("inf") else None for key, value in self._figures().items()}
        return {"output": self.output, **finite, "problem": self.problem}

    def _figures(self) -> dict[str, float]:
        return {"max_absolute": self.max_absolute, "max_relative": self.max_relative}


def compare_outputs(
    actual: Arrays, expected: Arrays, *, absolute: float, relative: float
) -> list[Difference]:
    """Compare every expected output with the actual one of that name.

    Floating-point elements must satisfy |a - b| <= absolute + relative * |b| (numpy.isclose), with
    NaN equal to NaN and infinities equal to themselves; all other types must be equal.

    Args:
        actual: Outputs to judge, by name; further names are ignored.
        expected: What they should be; b above.
        absolute: Absolute tolerance, in the output's own unit.
        relative: Relative tolerance, a fraction of the expected magnitude.
    """
    return [_compare(name, actual.get(name), wanted, absolute, relative) for name, wanted in expected.items()]


def _compare(
    name: str, got: NDArray[Any] | None, wanted: NDArray[Any], absolute: float, relative: float
) -> Difference:
    import numpy as np

    infinite = float("inf")
    if got is None:
        return Difference(output=name, max_absolute=infinite, max_relative=infinite, problem="is missing")
    if got.shape != wanted.shape:
        problem = f"has shape {list(got.shape)}, expected {list(wanted.shape)}"
        return Difference(output=name, max_absolute=infinite, max_relative=infinite, problem=problem)
    if got.dtype != wanted.dtype:
        problem = f"has type {got.dtype}, expected {wanted.dtype}"
        return Difference(output=name, max_absolute=infinite, max_relative=infinite, problem=problem)
    if not np.issubdtype(wanted.dtype, np.floating):
        wrong = int(np.count_nonzero(got != wanted))
        problem = f"differs in {wrong} of {wanted.size} elements" if wrong else ""
        figure = infinite if wrong else 0.0
        return Difference(output=name, max_absolute=figure, max_relative=figure, problem=problem)
    return _compare_floats(name, got, wanted, absolute, relative)


def _compare_floats(
    name: str, got: NDArray[Any], wanted: NDArray[Any], absolute: float, relative: float
) -> Difference:
    import numpy as np

    a, b = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        share = np.where(same | (b == 0), 0.0, error / np.abs(b))
        share = np.where(np.isnan(share), np.inf, share)
    close = same | np.isclose(a, b, rtol=relative, atol=absolute)
    max_absolute, max_relative = _max(error), _max(share)
    problem = ""
    if not close.all():
        at = tuple(
            int(i) for i in np.unravel_index(int(np.argmax(np.where(close, -1.0, error))), error.shape)
        )
        problem = (
            f"differs in {int((~close).sum())} of {close.size} elements, most at {list(at)}: "
            f"{a[at]:.6g}, expected {b[at]:.6g} (tolerance {absolute:g} + {relative:g} x |expected|)"
        )
    return Difference(output=name, max_absolute=max_absolute, max_relative=max_relative, problem=problem)


def _max(values: np.ndarray[Any, Any]) -> float:
    return float(values.max()) if values.size else 0.0
