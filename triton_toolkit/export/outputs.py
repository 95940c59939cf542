"""From whatever a module's forward returns to named tensors, in the order of the spec."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.nesting import children, flatten

if TYPE_CHECKING:
    import torch

_SHOWN = 12
"""Names that a hint lists; the hidden states of a language model can be hundreds."""


def named_outputs(result: Any, declared: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of one forward by name.

    Nested values are flattened: ``hidden_states.0`` is the first of a tuple ``hidden_states``; None is
    left out. Names come from a mapping's keys, or a dataclass's or named tuple's fields; of these the
    declared ones are taken and the others dropped. A single tensor is called ``output``, the values of
    a tuple or list ``output_0`` …: they are taken by these names where those are declared, else by
    position, and then the number must agree. Without declared names all are taken.

    Raises:
        ExportError: A declared output is missing, the number differs, or a value is no tensor.
    """
    named, found = _flat(result)
    if declared and not named and not set(declared) <= set(found):
        outputs = _by_position(found, declared)
    else:
        outputs = _by_name(found, declared, result)
    for name, value in outputs.items():
        _check_tensor(name, value)
    return outputs


def _flat(result: Any) -> tuple[bool, dict[str, Any]]:
    """Return the flat values of a result, and whether their names are the model's own."""
    inner = children(result)
    if inner is None:
        return False, {"output": result}
    named = not isinstance(result, (tuple, list)) or hasattr(result, "_fields")
    if named:
        return True, flatten(inner)
    alone = len(inner) == 1
    return False, flatten({"output" if alone else f"output_{key}": item for key, item in inner.items()})


def _by_name(found: Mapping[str, Any], declared: Sequence[str], result: Any) -> dict[str, Any]:
    for name in declared:
        if name in found:
            continue
        within = [other for other in found if other.startswith(f"{name}.")]
        if within:
            raise ExportError(
                f"output {name!r} is not a tensor: it holds {_listed(within)}",
                hint="declare those of them that are to be served",
            )
        if name in (children(result) or {}):
            raise ExportError(f"output {name!r} is declared, but forward returns None for it")
        near = difflib.get_close_matches(name, list(found), n=1)
        raise ExportError(
            f"output {name!r} is declared but forward does not return it"
            + (f"; did you mean {near[0]!r}?" if near else ""),
            hint=f"forward returns: {_listed(list(found)) or 'nothing'}",
        )
    return {name: found[name] for name in declared or found}


def _by_position(found: Mapping[str, Any], declared: Sequence[str]) -> dict[str, Any]:
    if len(found) != len(declared):
        raise ExportError(
            f"forward returns {_count(len(found))}, the spec declares {len(declared)}: {', '.join(declared)}",
            hint="declare the outputs in the order of forward, or return a dict with their names; without "
            f"declared outputs they are called {_listed(list(found))}",
        )
    return dict(zip(declared, found.values(), strict=True))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _count(number: int) -> str:
    return "1 output" if number == 1 else f"{number} outputs"


def _check_tensor(name: str, value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise ExportError(
            f"output {name!r} has type {type(value).__name__}, not a tensor",
            hint="return tensors, alone or in dicts, tuples and dataclasses; or declare the outputs that "
            "are to be served",
        )
