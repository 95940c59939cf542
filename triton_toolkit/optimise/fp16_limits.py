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

SMALLEST_NORMAL = 2.0**-14
WHOLE = 2048
"""Whole numbers beyond this are rounded."""

_WORST_ROUNDING = 2.0**-6
"""Relative error of a constant that does no harm. 1e-6, a usual epsilon, is off by 1.3 %; 1e-7 by 19 %."""

_SCALE_ROUNDING = 2.0**-10
"""The same for the scale of a Q/DQ node, with which every value is off: half a step of FP16."""


def range_problem(name: str, measured: TensorRange | None) -> str:
    """Return why a tensor cannot be FP16, empty where it can.

    Args:
        name: Its name.
        measured: Its range; None where it was not measured.
    """
    if measured is None:
        return f"{name!r} was not measured"
    if measured.absmax > LIMIT:
        return f"{name!r} reaches {measured.absmax:.4g}, FP16 ends at {LARGEST:g}"
    if 0 < measured.absmax < SMALLEST_NORMAL:
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

    finite = value[np.isfinite(value)].astype(np.float64)
    magnitudes = np.abs(finite)
    largest = float(magnitudes.max(initial=0.0))
    if largest == 0:
        return ""
    if largest > LARGEST:
        extreme = finite[int(magnitudes.argmax())]
        return f"constant {name!r} holds {extreme:.4g}, FP16 ends at {LARGEST:g}"
    error = np.abs(finite - finite.astype(np.float16))
    if each:
        error = np.divide(error, magnitudes, out=np.zeros_like(error), where=magnitudes > 0)
    worst = int(error.argmax())
    if error[worst] > _WORST_ROUNDING * (1 if each else largest):
        rounded = float(np.float16(finite[worst]))
        return f"constant {name!r} holds {finite[worst]:.4g}, which FP16 makes {rounded:.4g}"
    if largest > WHOLE and error.max() > 0 and (finite == np.rint(finite)).all():
        return f"constant {name!r} holds whole numbers up to {largest:.0f}, FP16 is exact up to {WHOLE}"
    return ""


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
