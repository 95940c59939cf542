"""What a model's forward takes: names, order, defaults, and the structure of nested parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.nesting import builder, tree_of
from triton_toolkit.export.structures import Structure, of_annotation, of_script_type, resolved_hints

if TYPE_CHECKING:
    import torch

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of one call."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a forward.

    Attributes:
        parameters: In order, as ``inspect`` has them.
        structures: Parameter -> what it is made of, of those that are containers.
        shown: The whole, for messages.
    """

    parameters: inspect.Signature
    structures: Mapping[str, Structure]
    shown: str


def signature_of(module: torch.nn.Module) -> Signature:
    """Return what forward takes; ``own_signature`` of a wrapper goes before the function's own."""
    import torch

    name = str(getattr(module, "original_name", type(module).__name__))
    if isinstance(own := getattr(module, "own_signature", None), Signature):
        return own
    if isinstance(module, torch.jit.ScriptModule):
        return _of_script(module, name)
    parameters = inspect.signature(module.forward)
    hints = resolved_hints(module.forward)
    found = {parameter: of_annotation(hints.get(parameter)) for parameter in parameters.parameters}
    structures = {parameter: structure for parameter, structure in found.items() if structure is not None}
    return Signature(parameters, structures, f"{name}.forward{parameters}")


def _of_script(module: Any, name: str) -> Signature:
    """Read the schema that a TorchScript method carries; ``inspect`` knows nothing of it."""
    _, *arguments = module.forward.schema.arguments  # the first one is the module itself
    parameters, structures = [], {}
    for index, argument in enumerate(arguments):
        own = argument.name if argument.name.isidentifier() else f"argument_{index}"
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        parameters.append(inspect.Parameter(own, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default))
        structure = of_script_type(argument.type)
        if structure is not None:
            structures[own] = structure
    signature = inspect.Signature(parameters)
    return Signature(signature, structures, f"{name}.forward{signature}")


def binder(signature: Signature, inputs: Sequence[str]) -> Callable[[Sequence[Any]], Call]:
    """Return what makes a call's arguments from the inputs' values, in their order.

    Names with a dot whose first part is a parameter build a nested value. Top-level values go by
    keyword where forward has a parameter of every name; by position where no input carries the name of a
    parameter at another place, which would swap two inputs unnoticed.

    Raises:
        ExportError: Names and parameters contradict each other, or forward needs more or takes fewer.
    """
    named = _named(signature)
    tree = tree_of(inputs, named)
    values = {
        name: builder(name, below, None if isinstance(below, str) else signature.structures.get(name))
        for name, below in tree.items()
    }
    by_keyword = _goes_by_keyword(signature, values)
    _check_fit(signature, list(values), by_keyword, named)

    def bind(arrays: Sequence[Any]) -> Call:
        given = dict(zip(inputs, arrays, strict=True))
        made = {name: build(given) for name, build in values.items()}
        return ((), made) if by_keyword else (tuple(made.values()), {})

    return bind


def placed_inputs(signature: Signature, inputs: Sequence[str]) -> dict[str, str]:
    """Return input -> parameter where inputs go by position to parameters of other names; {} where not."""
    named = _named(signature)
    values = list(tree_of(inputs, named))
    return {} if _goes_by_keyword(signature, values) else dict(zip(values, named, strict=False))


def _named(signature: Signature) -> list[str]:
    known = signature.parameters.parameters.values()
    return [p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _goes_by_keyword(signature: Signature, values: Iterable[str]) -> bool:
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.parameters.values())
    return takes_any or set(values) <= set(_named(signature))


def _check_fit(signature: Signature, values: list[str], by_keyword: bool, named: list[str]) -> None:
    shown = signature.shown
    try:
        if by_keyword:
            signature.parameters.bind(**dict.fromkeys(values))
        else:
            signature.parameters.bind(*values)
    except TypeError as exc:
        raise ExportError(
            f"the inputs {', '.join(values)} do not fit {shown}: {exc}",
            hint="name the inputs like the parameters of forward, or declare them in its order",
        ) from exc
    if by_keyword:
        return
    for index, name in enumerate(values):
        if name in named and named.index(name) != index:
            raise ExportError(
                f"input {name!r} is number {index + 1} of the spec but number {named.index(name) + 1} "
                f"of {shown}, and not all inputs have a parameter's name",
                hint="name all inputs like the parameters of forward, or declare them in its order",
            )
