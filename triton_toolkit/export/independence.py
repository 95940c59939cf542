"""May Triton batch this model? Only if a row's outputs do not depend on the other rows.

The dynamic batcher puts requests of different callers into one batch, in any order. A model whose
outputs depend on its neighbours (batch statistics, a softmax over axis 0, an attention across rows)
would answer each caller with a bit of the others.
"""

from __future__ import annotations

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
_ROWS = 4


def independence_sizes(sizes: Sizes, batch: Dim) -> Sizes | None:
    """Return the sizes to test at: up to four rows; None where a batch never has two."""
    rows = max(batch.min, min(_ROWS, batch.max))
    return {**sizes, batch.name: rows} if rows > 1 else None


def check_independence(
    predict: Callable[[Arrays], Arrays], inputs: Arrays, sizes: Sizes, batch: Dim, tolerances: Tolerances
) -> None:
    """Check f(rows in another order) and f(fewer rows) against f(all rows), row by row.

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
    if batch.min > 1:
        few = list(range(batch.min))
        _compare(predict(_take(inputs, few)), _take(whole, few), sizes, tolerances, "the other rows")
        return
    for row in range(rows):
        alone = predict(_take(inputs, [row]))
        _compare(alone, _take(whole, [row]), sizes, tolerances, "the other rows")


def _compare(actual: Arrays, expected: Arrays, sizes: Sizes, tolerances: Tolerances, on: str) -> None:
    for difference in compare_outputs(actual, expected, tolerances):
        if not difference.ok:
            raise ParityError(
                f"output {difference.output!r} depends on {on} of the batch (at {format_sizes(sizes)} it "
                f"{difference.problem}); Triton's dynamic batching would mix requests of different callers",
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
    rows = len(result[inputs[0].name])
    for row in range(1, rows):
        repeats = sum(_same_rows(arrays, row, earlier) for earlier in range(row))
        for tensor in inputs if repeats else ():
            array = result[tensor.name]
            if array.ndim > 1:
                array[row] = np.roll(array[row], repeats, axis=-1)
            if tensor.dtype.is_float:
                array[row] *= 1 + repeats / 8
        if repeats and any(_same_rows(result, row, earlier) for earlier in range(row)):
            for tensor in inputs:
                _change_row(result[tensor.name], row, repeats)
    return result


def _change_row(array: NDArray[Any], row: int, repeats: int) -> None:
    import numpy as np

    if np.issubdtype(array.dtype, np.floating):
        array[row] += np.random.default_rng(row).standard_normal(array[row].shape)
    elif np.issubdtype(array.dtype, np.integer):
        array[row] //= repeats + 1
    elif array.dtype == np.bool_ and repeats % 2:
        array[row] = ~array[row]


def _same_rows(arrays: Arrays, one: int, other: int) -> bool:
    return all((array[one] == array[other]).all() for array in arrays.values())


def _take(arrays: Arrays, rows: list[int]) -> Arrays:
    return {name: array[rows] for name, array in arrays.items()}
