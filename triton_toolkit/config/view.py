"""A ModelConfig as templates see it: read-only, under the proto's own field names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton_toolkit.config.message import format_config
from triton_toolkit.config.vocabulary import descriptor_of, did_you_mean, field_names, is_map, near

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message


class MessageView:
    """Read access to a message: ``view.dynamic_batching.preferred_batch_size``.

    A field that is not set is falsy: a block is None, a number 0, text empty, a list empty. Enums are
    their names, lists are tuples, maps are dicts sorted by key. A name that the proto does not have is
    an AttributeError.
    """

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def __getattr__(self, name: str) -> Any:
        """Return a field's value."""
        field = descriptor_of(self._message).fields_by_name.get(name)
        if field is None:
            raise AttributeError(missing_field(self, name))
        value = getattr(self._message, name)
        if is_map(field):
            return {key: _item(field, value[key]) for key in sorted(value)}
        if field.is_repeated:
            return tuple(_item(field, item) for item in value)
        if field.message_type is not None and not self._message.HasField(name):
            return None
        return _item(field, value)


def missing_field(view: MessageView, name: str) -> str:
    """Say that a message has no such field, and which it may have been."""
    descriptor = descriptor_of(view._message)
    return f"{descriptor.name} has no field {name!r}{did_you_mean(near(name, field_names(descriptor)))}"


def fields_text(view: MessageView, *without: str) -> str:
    """Return the text of all fields that are set, except those named; no newline at the end.

    Raises:
        AttributeError: The message has no field of a name in ``without``.
    """
    rest = type(view._message)()
    rest.CopyFrom(view._message)
    for name in without:
        if name not in field_names(descriptor_of(rest)):
            raise AttributeError(missing_field(view, name))
        rest.ClearField(name)
    return format_config(rest).rstrip("\n")


def _item(field: FieldDescriptor, value: Any) -> Any:
    """Return one value of a field, or of one entry of a repeated field or map."""
    if hasattr(value, "DESCRIPTOR"):
        return MessageView(value)
    enum = field.enum_type
    if enum is not None:
        return enum.values_by_number[value].name if value in enum.values_by_number else value
    return value
