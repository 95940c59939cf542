"""From whatever a module's forward returns to named tensors, in the order of the spec."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError

if TYPE_CHECKING:
    import torch


def named_outputs(result: Any, declared: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of one forward by name.

    Names come from a mapping's keys, or a dataclass's or named tuple's fields; of these the declared
    ones are taken and the others dropped. A single tensor, or a tuple or list, is named by position,
    so the number must agree. Without declared names all are taken, unnamed ones as ``output`` or
    ``output_0`` ….

    Raises:
        ExportError: A declared output is missing, the number differs, or a value is no tensor.
    """
    found = _named_values(result)
    outputs = _by_position(result, declared) if found is None else _by_name(found, declared)
    for name, value in outputs.items():
        _check_tensor(name, value)
    return outputs


def _named_values(result: Any) -> dict[str, Any] | None:
    if isinstance(result, Mapping):
        return {str(name): value for name, value in result.items()}
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return dict(zip(result._fields, result, strict=True))
    return None


def _by_name(found: dict[str, Any], declared: Sequence[str]) -> dict[str, Any]:
    if not declared:
        return {name: value for name, value in found.items() if value is not None}
    for name in declared:
        if name not in found:
            near = difflib.get_close_matches(name, list(found), n=1)
            raise ExportError(
                f"output {name!r} is declared but forward does not return it"
                + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"forward returns: {', '.join(found) or 'nothing'}",
            )
    return {name: found[name] for name in declared}


def _by_position(result: Any, declared: Sequence[str]) -> dict[str, Any]:
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    if not declared:
        names = ["output"] if len(values) == 1 else [f"output_{index}" for index in range(len(values))]
        return dict(zip(names, values, strict=True))
    if len(values) != len(declared):
        raise ExportError(
            f"forward returns {_count(len(values))}, the spec declares {len(declared)}: "
            f"{', '.join(declared)}",
            hint="declare the outputs in the order of forward, or return a dict with their names",
        )
    return dict(zip(declared, values, strict=True))


def _count(number: int) -> str:
    return "1 output" if number == 1 else f"{number} outputs"


def _check_tensor(name: str, value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise ExportError(
            f"output {name!r} has type {type(value).__name__}, not a tensor",
            hint="return tensors only, not nested: each becomes one output of the served model",
        )
