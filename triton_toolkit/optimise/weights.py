"""Weights as symmetric 8-bit integers, one scale for each output channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from triton_toolkit.errors import ExportError

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVELS = 127
"""Steps on each side of zero. -128 is left out: TensorRT's INT8 is symmetric."""

REDUCED_LEVELS = 64
"""Steps of 7-bit weights. CPUs without VNNI add pairs of products uint8 x int8 in 16 bits, which
2 x 255 x 64 fits and 2 x 255 x 127 does not."""


class Quantized(NamedTuple):
    """Integers and the scales that give the values back: value = integer x scale."""

    integers: NDArray[Any]
    scales: NDArray[Any]


def quantize_weight(
    name: str, weight: NDArray[Any], axis: int, *, levels: int = LEVELS, half: bool = False
) -> Quantized:
    """Return a weight as int8 with one scale for each index of an axis.

    Channels of zeros get scale 1, which TensorRT takes (it refuses scale 0).

    Args:
        name: What it is called, for the error.
        weight: float32 values.
        axis: Axis of the output channels.
        levels: Steps on each side of zero.
        half: Make the scales values that float16 has, rounded up so that nothing is clipped.

    Raises:
        ExportError: It holds NaN or infinity.
    """
    import numpy as np

    others = tuple(index for index in range(weight.ndim) if index != axis)
    largest = np.abs(weight).max(axis=others)
    if not np.isfinite(largest).all():
        raise ExportError(
            f"weight {name!r} holds NaN or infinity", hint="the model was trained or saved wrongly"
        )
    scales = scale_of(largest, levels, half=half)
    scaled = weight / np.expand_dims(scales, others)
    integers = np.clip(np.rint(scaled), -levels, levels).astype(np.int8)
    return Quantized(integers, scales)


def scale_of(largest: NDArray[Any], levels: int = LEVELS, *, half: bool = False) -> NDArray[Any]:
    """Return the float32 scales with which ``levels`` steps reach some magnitudes.

    Args:
        largest: Magnitudes, any shape.
        levels: Steps to reach them.
        half: Round up to values that float16 has.
    """
    import numpy as np

    exact = np.where(largest == 0, levels, largest).astype(np.float32) / np.float32(levels)
    smallest = np.finfo(np.float16).smallest_subnormal if half else np.finfo(np.float32).tiny
    exact = np.maximum(exact, np.float32(smallest))
    if not half:
        return np.asarray(exact, np.float32)
    rounded = exact.astype(np.float16)
    rounded = np.where(rounded < exact, np.nextafter(rounded, np.float16(np.inf)), rounded)
    return rounded.astype(np.float32)
