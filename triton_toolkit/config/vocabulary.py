"""Names of model_config.proto: near matches, and where a misplaced field belongs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from triton_toolkit.core.tensors import DataType

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from google.protobuf.message import Message


def near(name: str, known: Iterable[str]) -> str:
    """Return the known name closest to ``name``, "" where none is close.

    Case, underscores and hyphens do not count, so ``maxBatchSize`` is near ``max_batch_size``.
    """
    plain = {_plain(item): item for item in known}
    found = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=0.7)
    return plain[found[0]] if found else ""


def data_type_alias(name: str) -> str:
    """Return ``TYPE_STRING`` for ``bytes``, ``TYPE_FP32`` for ``TYPE_FLOAT``; "" for no data type."""
    try:
        return DataType.parse(name.removeprefix("TYPE_")).triton
    except ValueError:
        return ""


def did_you_mean(guess: str) -> str:
    """Return the end of a sentence that offers ``guess``; "" without one."""
    return f" (did you mean {guess!r}?)" if guess else ""


def descriptor_of(message: Message) -> Descriptor:
    """Return a message's descriptor; every implementation of protobuf gives it the same interface."""
    return cast("Descriptor", message.DESCRIPTOR)


def places(root: Descriptor, name: str) -> list[str]:
    """Return the blocks below ``root`` that have a field of this name, such as ``dynamic_batching``."""
    return [".".join(path) for path in _paths(root, name, ()) if path]


def field_names(message: Descriptor) -> list[str]:
    """Return the names of a message's fields, in the order of the proto."""
    return [field.name for field in message.fields]


def is_map(field: FieldDescriptor) -> bool:
    """Say whether a field is a map; protobuf describes it as a repeated entry message."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def map_value(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field that describes a map's values."""
    return cast("Descriptor", field.message_type).fields_by_name["value"]


def map_key(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field that describes a map's keys."""
    return cast("Descriptor", field.message_type).fields_by_name["key"]


def short_prefix(enum: EnumDescriptor) -> str:
    """Return what all values of an enum begin with, such as ``KIND_``; "" where they share nothing."""
    names = [value.name for value in enum.values]
    first, last = min(names), max(names)
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: first.rfind("_", 0, common) + 1]


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _paths(message: Descriptor, name: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in message.fields:
        if field.name == name:
            yield path
    for field in message.fields:
        if field.message_type is not None and not is_map(field):
            yield from _paths(field.message_type, name, (*path, field.name))
