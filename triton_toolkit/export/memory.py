"""Does forward keep something of the inputs that it saw first? Then the example would be in the export.

A layer that initialises itself from its first batch (ActNorm, data-dependent quantization ranges), or a
cache, gives the same answer each time on one input, and yet another one than it would give on its own.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Tolerances, compare_outputs
from triton_toolkit.errors import ExportError
from triton_toolkit.export.original import Original

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
_SHOWN = 4


def copy_of(original: Original) -> Original | None:
    """Return a copy of a model that shares nothing with it; None where it cannot be copied."""
    try:
        adapter = copy.deepcopy(original.adapter)
    except Exception:  # noqa: BLE001 - whatever the user's objects raise: a lock, an open file
        return None
    twin = copy.copy(original)
    twin.adapter = adapter
    return twin


def check_memory(
    original: Original, twin: Original, run: tuple[Arrays, Arrays], tolerances: Tolerances
) -> None:
    """Check that a model gives the same outputs whatever it saw before.

    Args:
        original: The model, which ran on the example.
        twin: A copy of it from before that run; it sees other inputs first.
        run: The example, and the outputs that ``original`` gave for it in its very first run.
        tolerances: How far they may lie apart.

    Raises:
        ExportError: They differ.
    """
    example, first = run
    twin.outputs = original.outputs
    try:
        twin.predict(other_values(example))
    except ExportError:
        return  # inputs that nobody promised to be legal
    for difference in compare_outputs(twin.predict(example), first, tolerances):
        if not difference.ok:
            kept = _different_state(original, twin)
            raise ExportError(
                f"forward keeps something of the inputs that it saw first: after others, output "
                f"{difference.output!r} {difference.problem}"
                + (f"; what it keeps is in {', '.join(kept)}" if kept else ""),
                hint="the export would hold the example's: run one batch of real data through the module in "
                "the function that makes it, and save its state with the weights",
            )


def same_arrays(one: Arrays, other: Arrays) -> bool:
    """Say whether two sets of outputs are equal bit for bit."""
    return all(array.tobytes() == other[name].tobytes() for name, array in one.items())


def other_values(example: Arrays) -> Arrays:
    """Return legal inputs with other statistics: numbers half as large, ids in another order."""
    import numpy as np

    return {
        name: array * array.dtype.type(0.5)
        if np.issubdtype(array.dtype, np.floating)
        else np.flip(array).copy()
        for name, array in example.items()
    }


def _different_state(original: Original, twin: Original) -> list[str]:
    import torch

    mine, others = original.adapter.state_dict(), twin.adapter.state_dict()
    names = [
        name.removeprefix("model.")
        for name, value in mine.items()
        if name in others and not torch.equal(value, others[name])
    ]
    return names[:_SHOWN] + (["…"] if len(names) > _SHOWN else [])
