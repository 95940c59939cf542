"""What a conversion to a lower precision tells about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A model that was written in a lower precision.

    Attributes:
        kept: Node name -> why it stays as it was.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
