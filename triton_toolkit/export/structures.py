"""What a nested parameter of forward is made of: lists, tuples, dicts, named tuples, dataclasses.

Read off type annotations, off the types of TorchScript, and off the call of an exported program.
"""

from __future__ import annotations

import collections
import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from triton_toolkit.errors import ExportError

_MAPPINGS = (dict, collections.OrderedDict, collections.abc.Mapping, collections.abc.MutableMapping)
_LISTS = (list, collections.abc.MutableSequence)
_TUPLES = (tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def _nothing(_: str) -> Structure | None:
    return None


@dataclass(frozen=True, slots=True)
class Structure:
    """One container.

    Attributes:
        make: Builds it from its children by key, in the order that ``order`` gave.
        child: The structure of a child; None where nothing is known of it.
        fields: The keys that it may have; None for any.
        numbered: Whether the keys are 0, 1, ….
    """

    make: Callable[[Mapping[str, Any]], Any]
    child: Callable[[str], Structure | None] = _nothing
    fields: tuple[str, ...] | None = None
    numbered: bool = False

    @classmethod
    def tuple_of(cls, child: Callable[[str], Structure | None] = _nothing) -> Structure:
        """Return a tuple's structure."""
        return cls(lambda values: tuple(values.values()), child, numbered=True)

    @classmethod
    def list_of(cls, child: Callable[[str], Structure | None] = _nothing) -> Structure:
        """Return a list's structure."""
        return cls(lambda values: list(values.values()), child, numbered=True)

    @classmethod
    def mapping_of(
        cls, child: Callable[[str], Structure | None] = _nothing, key: Callable[[str], Any] = str
    ) -> Structure:
        """Return a dict's structure; ``key`` makes its keys from text."""
        return cls(lambda values: {key(name): value for name, value in values.items()}, child)

    @classmethod
    def record_of(cls, kind: type, children: Mapping[str, Structure | None]) -> Structure:
        """Return the structure of a named tuple or a dataclass."""
        return cls(lambda values: kind(**values), children.get, fields=tuple(children))

    def order(self, name: str, keys: Collection[str]) -> list[str]:
        """Return keys in the order in which the children are made.

        Raises:
            ExportError: A number is left out, or there is no such field.
        """
        if not self.numbered:
            for key in keys if self.fields is not None else ():
                if key not in (self.fields or ()):
                    known = ", ".join(self.fields or ())
                    raise ExportError(f"input '{name}.{key}' has no place: {name} has {known}")
            return list(keys)
        wanted = [str(index) for index in range(len(keys))]
        for key in wanted:
            if key not in keys:
                raise ExportError(
                    f"the inputs of {name} are {', '.join(f'{name}.{key}' for key in keys)}: "
                    f"'{name}.{key}' is missing",
                    hint="its values are numbered from 0, without gaps",
                )
        return wanted


def of_annotation(annotation: Any) -> Structure | None:
    """Return what a resolved type annotation says; None where it names no container."""
    origin, arguments = typing.get_origin(annotation) or annotation, typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        inner = [of_annotation(argument) for argument in arguments]
        return next((structure for structure in inner if structure is not None), None)
    if origin in _MAPPINGS:
        key, value = arguments if len(arguments) == 2 else (str, None)
        return Structure.mapping_of(lambda _: of_annotation(value), int if key is int else str)
    if origin in _LISTS:
        return Structure.list_of(lambda _: of_annotation(arguments[0]) if arguments else None)
    if origin in _TUPLES:
        return Structure.tuple_of(lambda key: _of_element(arguments, int(key)))
    if isinstance(origin, type) and (dataclasses.is_dataclass(origin) or _is_named_tuple(origin)):
        return Structure.record_of(origin, _fields(origin))
    return None


def _of_element(arguments: tuple[Any, ...], index: int) -> Structure | None:
    if not arguments:
        return None
    if len(arguments) == 1 or arguments[1] is Ellipsis:
        return of_annotation(arguments[0])
    return of_annotation(arguments[index]) if index < len(arguments) else None


def _is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _fields(kind: type) -> dict[str, Structure | None]:
    names = (
        [field.name for field in dataclasses.fields(kind) if field.init]
        if dataclasses.is_dataclass(kind)
        else list(getattr(kind, "_fields", ()))
    )
    known = resolved_hints(kind)
    return {name: of_annotation(known.get(name)) for name in names}


def resolved_hints(target: Any) -> dict[str, Any]:
    """Return the annotations of a function or a class as types; {} where one cannot be resolved."""
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError, SyntaxError):  # of types that exist for a type checker only
        return {}


def of_script_type(kind: Any) -> Structure | None:
    """Return what a type of TorchScript says (``torch._C.Type``)."""
    match kind.kind():
        case "OptionalType":
            return of_script_type(kind.getElementType())
        case "ListType":
            return Structure.list_of(lambda _: of_script_type(kind.getElementType()))
        case "TupleType":
            elements = kind.elements()
            return Structure.tuple_of(
                lambda key: of_script_type(elements[int(key)]) if int(key) < len(elements) else None
            )
        case "DictType":
            key = int if kind.getKeyType().kind() == "IntType" else str
            return Structure.mapping_of(lambda _: of_script_type(kind.getValueType()), key)
    return None


def of_tree_spec(spec: Any) -> Structure | None:
    """Return what the call of an exported program says (``torch.utils._pytree.TreeSpec``)."""
    if spec.type is list:
        return Structure.list_of(lambda key: _of_child(spec, int(key)))
    if spec.type is tuple:
        return Structure.tuple_of(lambda key: _of_child(spec, int(key)))
    if spec.type in (dict, collections.OrderedDict):
        places = {str(key): index for index, key in enumerate(spec.context)}
        keys = {str(key): key for key in spec.context}
        return Structure.mapping_of(
            lambda key: _of_child(spec, places.get(key)), lambda key: keys.get(key, key)
        )
    return None


def spec_children(spec: Any) -> list[Any]:
    """Return what a tree holds; PyTorch has renamed the way to it."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def _of_child(spec: Any, index: int | None) -> Structure | None:
    specs = spec_children(spec)
    return of_tree_spec(specs[index]) if index is not None and index < len(specs) else None
