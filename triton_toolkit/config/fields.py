"""Plain values (``serve:`` of tt.yaml) -> protobuf, under the proto's own field names.

Walks the values along the message's descriptor, so every field of model_config.proto is reachable,
those of future releases included. Beyond the proto's own form, each with one meaning only:

- a list may be left out where there is one entry: ``instance_group: {count: 2}``;
- ``true`` switches a block on, ``false`` leaves it out: ``dynamic_batching: true``. A block with a field
  ``enable`` gets that field set, since Triton takes the empty block for "disabled";
- enum values in lower case and without their common prefix: ``kind: cpu``;
- durations with a unit where the field counts microseconds, sizes where a parameter counts bytes;
- ``parameters: {key: value}`` without the ``string_value`` around each value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triton_toolkit.config.scalars import ServeKeyError, scalar, text
from triton_toolkit.config.vocabulary import (
    descriptor_of,
    did_you_mean,
    field_names,
    is_map,
    map_key,
    map_value,
    near,
    places,
)
from triton_toolkit.spec.source import KeyPath

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from google.protobuf.message import Message


def fill_message(message: Message, values: Any, path: KeyPath = ()) -> None:
    """Set the fields of ``message`` from a mapping of field names to plain values.

    Args:
        message: What to fill; fields that ``values`` does not name stay as they are.
        values: Mapping of field names.
        path: Key of ``values``, for messages.

    Raises:
        ServeKeyError: An unknown field (with a near match, or where it belongs), a value of the wrong
            type or out of range, two members of a oneof.
    """
    descriptor = descriptor_of(message)
    if not isinstance(values, Mapping):
        raise ServeKeyError(path, "is a block of fields", f"its fields: {', '.join(field_names(descriptor))}")
    for name, value in values.items():
        at = (*path, name)
        field: FieldDescriptor | None = descriptor.fields_by_name.get(name)
        if field is None:
            raise _unknown(descriptor, name, at)
        if not _is_left_out(field, value):
            _refuse_second_choice(message, field, at)
        if is_map(field):
            _fill_map(message, field, value, at)
        elif field.is_repeated:
            _fill_list(message, field, value, at)
        elif field.message_type is not None:
            _fill_block(message, field, value, at)
        else:
            setattr(message, name, scalar(field, value, at))


def _fill_list(message: Message, field: FieldDescriptor, value: Any, path: KeyPath) -> None:
    entries = getattr(message, field.name)
    if not isinstance(value, list | tuple):  # one entry, as `field { … }` once in a config.pbtxt
        value, paths = [value], [path]
    else:
        paths = [(*path, index) for index in range(len(value))]
    for item, at in zip(value, paths, strict=True):
        if field.message_type is None:
            entries.append(scalar(field, item, at))
        else:
            fill_message(entries.add(), item, at)


def _fill_map(message: Message, field: FieldDescriptor, value: Any, path: KeyPath) -> None:
    if not isinstance(value, Mapping):
        raise ServeKeyError(path, "maps names to values")
    entries = getattr(message, field.name)
    key_field, value_field = map_key(field), map_value(field)
    for name, item in value.items():
        at = (*path, name)
        key = _map_key(key_field, name, at)
        if value_field.message_type is None:
            entries[key] = scalar(value_field, item, at)
        elif _is_text_only(value_field.message_type) and not isinstance(item, Mapping):
            entries[key].string_value = text(item, at, fractions=True)
        else:
            entries[key].SetInParent()
            fill_message(entries[key], item, at)


def _map_key(field: FieldDescriptor, name: Any, path: KeyPath) -> Any:
    """Return a map's key; tt.yaml has all keys as text, also where the proto counts levels."""
    number = field.type != field.TYPE_STRING and isinstance(name, str) and name.isdecimal()
    return scalar(field, int(name) if number else name, path)


def _fill_block(message: Message, field: FieldDescriptor, value: Any, path: KeyPath) -> None:
    if value is None:
        raise ServeKeyError(path, "has no value", "write {} for an empty block, or false to leave it out")
    block = getattr(message, field.name)
    if not isinstance(value, bool):
        block.SetInParent()
        fill_message(block, value, path)
    elif _has_switch(field):
        block.enable = value
        block.SetInParent()
    elif value:
        block.SetInParent()


def _is_left_out(field: FieldDescriptor, value: Any) -> bool:
    """Say whether a value means "no such block": false, for a block without a switch of its own."""
    block = field.message_type is not None and not field.is_repeated
    return value is False and block and not _has_switch(field)


def _has_switch(field: FieldDescriptor) -> bool:
    return field.message_type is not None and "enable" in field.message_type.fields_by_name


def _is_text_only(descriptor: Descriptor) -> bool:
    return field_names(descriptor) == ["string_value"]


def _refuse_second_choice(message: Message, field: FieldDescriptor, path: KeyPath) -> None:
    """Raise where another member of the field's oneof is set: the later would silently win."""
    choice = field.containing_oneof
    if choice is None:
        return
    taken = message.WhichOneof(choice.name)
    if taken is not None and taken != field.name:
        members = ", ".join(member.name for member in choice.fields)
        raise ServeKeyError(path, f"cannot stand beside {taken}", f"only one of {members}")


def _unknown(descriptor: Descriptor, name: str, path: KeyPath) -> ServeKeyError:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    known = field_names(descriptor)
    guess = near(name, known)
    message = f"{descriptor.name} has no field {name!r}{did_you_mean(guess)}"
    elsewhere = places(ModelConfig.DESCRIPTOR, name)
    if elsewhere and not guess:
        return ServeKeyError(path, message, f"it is a field of {', '.join(elsewhere)}")
    return ServeKeyError(path, message, f"its fields: {', '.join(known)}")
