"""What a conversion to a lower precision tells about itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A model that was written in a lower precision.

    Attributes:
        kept: Node name -> why it stays as it was.
        cut: Node name -> which constant or mask of it is cut to what FP16 holds, and why that changes
            nothing.
        lowered: Names of the nodes that run in the lower precision.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    cut: Mapping[str, str] = field(default_factory=dict)
    lowered: Collection[str] = ()
