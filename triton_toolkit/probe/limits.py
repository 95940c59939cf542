"""How large a request can be: told before any of it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping

from triton_toolkit._machine import look_at_host
from triton_toolkit.core.tensors import DataType
from triton_toolkit.core.units import format_bytes
from triton_toolkit.errors import UsageError
from triton_toolkit.probe.model import LiveModel

_MESSAGE_BYTES = 2**31 - 1
"""The largest message of protobuf, and so of gRPC."""
_COPIES = 8
"""Room for a request: its arrays, its bytes, what the transport holds of them, and the answer."""
_STRING_BYTES = 96
"""About what a string of a few words takes in memory, as a Python object in an array."""


def check_request_size(model: LiveModel, shapes: Mapping[str, tuple[int, ...]], rows: int) -> None:
    """Check that requests of these inputs can be made and sent.

    Args:
        model: The model.
        shapes: Input -> shape of one row.
        rows: Rows a request.

    Raises:
        UsageError: They are larger than a gRPC message, or than an eighth of this machine's memory.
    """
    types = {spec.name: spec.dtype for spec in model.inputs}
    sizes = {name: rows * math.prod(shape) * _element_bytes(types[name]) for name, shape in shapes.items()}
    total = sum(sizes.values())
    memory = look_at_host().memory_bytes
    if total > _MESSAGE_BYTES:
        limit = f"more than the {format_bytes(_MESSAGE_BYTES + 1)} that a gRPC message can hold"
    elif memory is not None and total * _COPIES > memory:
        limit = f"and this machine has {format_bytes(memory)} of memory, for {_COPIES} copies on the way"
    else:
        return
    name = max(sizes, key=lambda name: sizes[name])
    shape = ", ".join(str(size) for size in shapes[name])
    raise UsageError(
        f"a request to model {model.name!r} would take {format_bytes(total)}, {limit}; "
        f"most of it is input {name!r}: {types[name].spec} [{shape}]"
        + (f" x {rows} rows" if rows > 1 else ""),
        hint="give a smaller --shape, --dim or --batch-size",
    )


def _element_bytes(dtype: DataType) -> int:
    return _STRING_BYTES if dtype is DataType.BYTES else dtype.itemsize
