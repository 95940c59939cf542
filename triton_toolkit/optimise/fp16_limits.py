"""What FP16 can hold, and what it makes of constants and measured ranges.

FP16 has 11 significant bits. It ends at 65504, is normal down to 2**-14 (6.1e-5), below that has steps
of 2**-24 (6.0e-8), and holds all whole numbers up to 2048.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from triton_toolkit.optimise.ranges import TensorRange

LARGEST = 65504.0
"""Largest finite number."""

LIMIT = LARGEST / 4
"""Largest magnitude that a measured tensor may have. Two bits are left for inputs that nobody measured."""

WHOLE = 2048
"""Whole numbers beyond this are rounded."""

_WORST_ROUNDING = 2.0**-6
"""Relative error of a value that does no harm. 1e-6, a usual epsilon, is off by 1.3 %; 1e-7 by 19 %."""

VANISHING = 2.0**-25 / _WORST_ROUNDING
"""Magnitudes below this (1.9e-6) may be off by more: half a step of FP16 there is 2**-25."""

_SCALE_ROUNDING = 2.0**-10
"""The same for the scale of a Q/DQ node, with which every value is off: half a step of FP16."""

_CHUNK_VALUES = 2**22
"""Values of a weight that are looked at together; embeddings have hundreds of millions."""


def too_large(magnitude: float) -> str:
    """Return a magnitude beyond ``LIMIT``, and why it is too large."""
    if magnitude > LARGEST:
        return f"{magnitude:.4g}, FP16 ends at {LARGEST:g}"
    return f"{magnitude:.4g}, too near to {LARGEST:g}, where FP16 ends"


def range_problem(name: str, measured: TensorRange | None) -> str:
    """Return why a tensor cannot be FP16, empty where it can.

    Args:
        name: Its name.
        measured: Its range; None where it was not measured.
    """
    if measured is None:
        return f"{name!r} was not measured"
    if measured.absmax > LIMIT:
        return f"{name!r} reaches {too_large(measured.absmax)}"
    if 0 < measured.absmax < VANISHING:
        return f"{name!r} is at most {measured.absmax:.3g}, which FP16 rounds to steps of 6e-08"
    if measured.whole and measured.absmax > WHOLE:
        return f"{name!r} holds whole numbers up to {measured.absmax:.0f}, FP16 is exact up to {WHOLE}"
    return ""


def constant_problem(name: str, value: NDArray[Any], *, each: bool) -> str:
    """Return why a constant cannot be FP16, empty where it can. Infinities and NaN are as well FP16.

    Args:
        name: Its name.
        value: float32 values.
        each: Whether each value counts by itself, as in a product, a quotient or a bound. In a sum of
            products, small weights may vanish beside large ones.
    """
    import numpy as np

    found = _Rounding()
    for part in np.array_split(value.reshape(-1), max(1, -(-value.size // _CHUNK_VALUES))):
        found.add(part[np.isfinite(part)], each=each)
    largest = abs(found.extreme)
    if largest > LARGEST:
        return f"constant {name!r} holds {found.extreme:.4g}, FP16 ends at {LARGEST:g}"
    if found.error > _WORST_ROUNDING * (1 if each else largest):
        rounded = float(np.float16(found.worst))
        return f"constant {name!r} holds {found.worst:.4g}, which FP16 makes {rounded:.4g}"
    if found.whole and largest > WHOLE and found.error > 0:
        return f"constant {name!r} holds whole numbers up to {largest:.0f}, FP16 is exact up to {WHOLE}"
    return ""


class _Rounding:
    """What rounding to FP16 does to the values added so far.

    Attributes:
        extreme: Value of the largest magnitude.
        error: Largest error of a value: relative where each counts, else absolute.
        worst: The value that has it.
        whole: Whether all are whole numbers.
    """

    def __init__(self) -> None:
        self.extreme = 0.0
        self.error = 0.0
        self.worst = 0.0
        self.whole = True

    def add(self, finite: NDArray[Any], *, each: bool) -> None:
        """Take in finite float32 values."""
        import numpy as np

        if not finite.size:
            return
        magnitudes = np.abs(finite)
        top = int(magnitudes.argmax())
        if magnitudes[top] > abs(self.extreme):
            self.extreme = float(finite[top])
        with np.errstate(over="ignore"):
            error = np.abs(finite - finite.astype(np.float16).astype(np.float32))
        if each:
            error = np.divide(error, magnitudes, out=np.zeros_like(error), where=magnitudes > 0)
        worst = int(error.argmax())
        if error[worst] > self.error:
            self.error, self.worst = float(error[worst]), float(finite[worst])
        self.whole = self.whole and bool((finite == np.rint(finite)).all())


def scale_problem(name: str, value: NDArray[Any]) -> str:
    """Return why the scale of a Q/DQ node cannot be FP16, empty where it can."""
    import numpy as np

    with np.errstate(over="ignore"):
        rounded = value.astype(np.float16).astype(np.float64)
    error = np.abs(rounded - value) / np.where(value == 0, 1, np.abs(value))
    worst = int(error.argmax()) if error.size else 0
    if error.size and not error.flat[worst] <= _SCALE_ROUNDING:
        return f"scale {name!r} is {value.flat[worst]:.4g}, which FP16 makes {rounded.flat[worst]:.4g}"
    return ""
