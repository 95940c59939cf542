"""Nested values as flat, named ones: ``past.0.key`` is ``past[0]["key"]``.

A served model has a flat list of tensors. Mappings, dataclasses, tuples and lists, however deep, are
flattened to names that depend on their structure alone, and built up again for the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.structures import Structure

Tree = Mapping[str, "Tree | str"]
"""One level of a nested input: key -> a level below, or the full name of the input that stands there."""


def children(value: Any) -> dict[str, Any] | None:
    """Return what a value holds by key, None where it is no container."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list)):
        return {str(index): item for index, item in enumerate(value)}
    return None


def flatten(
    values: Mapping[str, Any], is_end: Callable[[str, Any], bool] = lambda _, __: False
) -> dict[str, Any]:
    """Return what stands at the ends of nested values, by dotted name; None is left out.

    Args:
        values: The top level.
        is_end: Whether a value of that name is taken as it is, though it is a container.

    Raises:
        ExportError: Two of them get the same name.
    """
    flat: dict[str, Any] = {}

    def walk(name: str, value: Any) -> None:
        inner = None if is_end(name, value) else children(value)
        if inner is not None:
            for key, item in inner.items():
                walk(f"{name}.{key}", item)
        elif name in flat:
            raise ExportError(
                f"two values are both called {name!r}", hint="use keys without dots, or other names"
            )
        elif value is not None:
            flat[name] = value

    for name, value in values.items():
        walk(name, value)
    return flat


def tree_of(names: Sequence[str], parameters: Collection[str]) -> dict[str, Tree | str]:
    """Return the top-level values that some input names stand for.

    A name is nested where what stands before its first dot is a parameter of the function and the name
    itself is none.

    Raises:
        ExportError: One name is both a value and a container of others.
    """
    tree: dict[str, Any] = {}
    for name in names:
        head, dot, _ = name.partition(".")
        nested = bool(dot) and name not in parameters and head in parameters
        *path, last = name.split(".") if nested else [name]
        level = tree
        for key in path:
            level = level.setdefault(key, {})
            if not isinstance(level, dict):
                raise ExportError(f"input {level!r} is a tensor, and {name!r} lies within it")
        if last in level:
            raise ExportError(f"input {name!r} is a tensor, and other inputs lie within it")
        level[last] = name
    return tree


Build = Callable[[Mapping[str, Any]], Any]
"""Makes a value from all inputs by name."""


def builder(name: str, tree: Tree | str, structure: Structure | None) -> Build:
    """Return what builds one top-level value.

    Args:
        name: Its name so far, for messages.
        tree: Its levels.
        structure: What forward says it is; None where it says nothing: numbers from 0 on then make a
            tuple, other keys a dict.

    Raises:
        ExportError: The keys do not fit that structure, or a number is left out.
    """
    if isinstance(tree, str):
        return lambda arrays: arrays[tree]
    if structure is None:
        structure = Structure.tuple_of() if all(key.isdigit() for key in tree) else Structure.mapping_of()
    keys = structure.order(name, tree)
    inner = {key: builder(f"{name}.{key}", tree[key], structure.child(key)) for key in keys}

    def build(arrays: Mapping[str, Any]) -> Any:
        return structure.make({key: make(arrays) for key, make in inner.items()})

    return build
