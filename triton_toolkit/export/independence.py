"""May Triton batch this model? Only if a row's outputs do not depend on the other rows.

The dynamic batcher puts requests of different callers into one batch, in any order. A model whose
outputs depend on its neighbours (batch statistics, a softmax over axis 0, an attention across rows)
would answer each caller with a bit of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Tolerances, compare_outputs
from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ParityError
from triton_toolkit.export.samples import format_sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_MOVED, _MOVED_OF_LARGEST = 1e-4, 1e-5
"""How far an output may move when other rows change and neither its place nor the batch size does:
shares of its own value and of the largest at its place in any row. Kernels then do the same sums in the
same order, so nothing should move at all, however small the output is."""


def independence_sizes(sizes: Sizes, batch: Dim) -> Sizes | None:
    """Return the sizes to test at: the largest batch; None where a batch never has two rows."""
    return {**sizes, batch.name: batch.max} if batch.max > 1 else None


def check_independence(
    predict: Callable[[Arrays], Arrays], inputs: Arrays, sizes: Sizes, batch: Dim, tolerances: Tolerances
) -> None:
    """Check that each row of a batch has the outputs that it has in any other batch.

    The rows are put in another order, every second row is replaced by a neighbour, and some are run in
    the smallest batch.

    Args:
        predict: The model.
        inputs: Arrays with two or more rows along axis 0, as ``distinct_rows`` makes them.
        sizes: Their sizes, for the message.
        batch: The batch dimension.
        tolerances: How far a row's outputs may move; kernels differ a little between batch sizes.

    Raises:
        ParityError: An output depends on the other rows or on their order, or has no row each.
    """
    rows = sizes[batch.name]
    whole = predict(inputs)
    for name, array in whole.items():
        if array.ndim == 0 or array.shape[0] != rows:
            raise ParityError(
                f"output {name!r} has shape {list(array.shape)} for a batch of {rows}: Triton's batching "
                "hands out one row a request along the first axis",
                hint="leave batch_dim out (max_batch_size 0), or return one row for each input row",
            )
    order = [*range(1, rows), 0]
    _compare(predict(_take(inputs, order)), _take(whole, order), sizes, tolerances, "the order of the rows")
    _check_neighbours(predict, inputs, whole, sizes)
    starts = sorted({0, min(1, rows - batch.min), rows // 2, rows - batch.min})
    for start in starts:
        few = [(start + index) % rows for index in range(batch.min)]
        _compare(predict(_take(inputs, few)), _take(whole, few), sizes, tolerances, "the other rows")


def _check_neighbours(
    predict: Callable[[Arrays], Arrays], inputs: Arrays, whole: Arrays, sizes: Sizes
) -> None:
    """Check that rows stay the same when every second row becomes a copy of the one before, or after."""
    rows = len(next(iter(inputs.values())))
    for first in (0, 1):
        kept = list(range(first, rows, 2))
        source = [row if row % 2 == first else min(max(row - 1, first), kept[-1]) for row in range(rows)]
        changed = predict(_take(inputs, source))
        for name, array in whole.items():
            figures = _moved(changed[name][kept], array[kept], array)
            if figures:
                raise _dependent(name, "the other rows", sizes, figures)


def _moved(got: NDArray[Any], wanted: NDArray[Any], whole: NDArray[Any]) -> str:
    """Say how rows moved; empty where they did not."""
    import numpy as np

    if np.array_equal(got, wanted):
        return ""
    if not np.issubdtype(wanted.dtype, np.floating):
        return f"changes in {int((got != wanted).sum())} of {wanted.size} elements"
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    largest = np.abs(np.nan_to_num(whole.astype(np.float64), posinf=0.0, neginf=0.0)).max(axis=0)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        wrong = ~same & ~(np.abs(a - b) <= _MOVED * np.abs(b) + _MOVED_OF_LARGEST * largest)
    if not wrong.any():
        return ""
    at = tuple(int(index) for index in np.argwhere(wrong)[0])
    return f"changes in {int(wrong.sum())} of {wrong.size} elements, such as {b[at]:.6g} to {a[at]:.6g}"


def _compare(actual: Arrays, expected: Arrays, sizes: Sizes, tolerances: Tolerances, on: str) -> None:
    for difference in compare_outputs(actual, expected, tolerances):
        if not difference.ok:
            raise _dependent(difference.output, on, sizes, difference.problem)


def _dependent(output: str, on: str, sizes: Sizes, figures: str) -> ParityError:
    return ParityError(
        f"output {output!r} depends on {on} of the batch (at {format_sizes(sizes)} it {figures}); "
        "Triton's dynamic batching would mix requests of different callers",
        hint="leave batch_dim out so that requests are never batched, or make forward treat each "
        "row by itself (no mean, softmax or normalisation over axis 0)",
    )


def distinct_rows(arrays: Arrays, inputs: tuple[TensorSpec, ...]) -> Arrays:
    """Return arrays whose rows differ even where a small sample was tiled to get them.

    A row that repeats an earlier one is shifted along its last axis, so values stay those that the
    user gave; floats are also scaled a little. Where it is then still the same (zeros, equal ids, one
    number a row), floats get noise, and integers values between 0 and the user's, which are as legal.
    Rows that differ already are left alone.
    """
    import numpy as np

    result = {tensor.name: arrays[tensor.name].copy() for tensor in inputs}
    before: Counter[bytes] = Counter()
    made: set[bytes] = set()
    for row in range(len(result[inputs[0].name])):
        key = _bytes_of(arrays, row)
        repeats = before[key]
        before[key] += 1
        for tensor in inputs if repeats else ():
            array = result[tensor.name]
            if array.ndim > 1:
                array[row] = np.roll(array[row], repeats, axis=-1)
            if tensor.dtype.is_float:
                array[row] *= 1 + repeats % 8 / 8
        if repeats and _bytes_of(result, row) in made:
            for tensor in inputs:
                _change_row(result[tensor.name], row, repeats)
        made.add(_bytes_of(result, row))
    return result


def _change_row(array: NDArray[Any], row: int, repeats: int) -> None:
    import numpy as np

    if np.issubdtype(array.dtype, np.floating):
        array[row] += np.random.default_rng(row).standard_normal(array[row].shape)
    elif np.issubdtype(array.dtype, np.integer):
        array[row] //= repeats + 1
    elif array.dtype == np.bool_ and repeats % 2:
        array[row] = ~array[row]


def _bytes_of(arrays: Arrays, row: int) -> bytes:
    parts = (array[row] for array in arrays.values())
    return b"|".join(repr(p.tolist()).encode() if p.dtype == object else p.tobytes() for p in parts)


def _take(arrays: Arrays, rows: list[int]) -> Arrays:
    return {name: array[rows] for name, array in arrays.items()}
