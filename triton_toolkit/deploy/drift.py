"""Where two configs differ, and which versions a config serves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from tritonclient.grpc.model_config_pb2 import ModelConfig


def config_differences(wanted: Message, served: Message, path: str = "") -> list[str]:
    """Return what a config sets and the served one has otherwise, as ``path: served, not wanted``.

    What the served config has beyond it are the server's own defaults, and no difference.
    """
    found: list[str] = []
    for field, value in wanted.ListFields():
        found += _value_differences(value, getattr(served, field.name), f"{path}{field.name}")
    return found


def _value_differences(wanted: Any, served: Any, path: str) -> list[str]:
    from google.protobuf.message import Message

    if isinstance(wanted, Message):
        return config_differences(wanted, served, f"{path}.")
    if isinstance(wanted, Mapping):
        missing = [f"{path}[{key}] is missing" for key in wanted if key not in served]
        shared = [key for key in wanted if key in served]
        return missing + [
            text for key in shared for text in _value_differences(wanted[key], served[key], f"{path}[{key}]")
        ]
    if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes):
        if len(wanted) != len(served):
            return [f"{path} has {len(served)} entries, not {len(wanted)}"]
        pairs = enumerate(zip(wanted, served, strict=True))
        return [text for index, (a, b) in pairs for text in _value_differences(a, b, f"{path}[{index}]")]
    return [] if wanted == served else [f"{path} is {served!r}, not {wanted!r}"]


def served_versions(config: ModelConfig, present: Iterable[int]) -> tuple[int, ...]:
    """Return the versions that a config's ``version_policy`` serves, of those present, ascending.

    Without a policy the highest. An empty ``version_policy {}`` serves all, an empty ``latest {}``
    none (both seen with Triton 2.51).
    """
    ordered = sorted(present)
    if not config.HasField("version_policy"):
        return tuple(ordered[-1:])
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "latest":
            count = policy.latest.num_versions
            return tuple(ordered[-count:]) if count else ()
        case "specific":
            return tuple(number for number in ordered if number in policy.specific.versions)
        case _:
            return tuple(ordered)
