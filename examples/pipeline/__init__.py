"""From text to vector: samples for the tokenizer and for the ensemble of tokenizer and encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXTS = (
    "The parcel arrived two days late and the box was open.",
    "How do I change the address of my order?",
    "Thank you, the new lamp is wonderful!",
    "Żółta łódź płynie, ça va, 日本語 too.",
)
"""Short and long, plain and accented: an answer must not depend on which of them share a batch."""


def sample() -> dict[str, NDArray[Any]]:
    """Return texts as Triton takes them: an object array of UTF-8 bytes, of shape (4, 1)."""
    import numpy as np

    text = np.array([[line.encode()] for line in TEXTS], dtype=object)
    return {"text": text}
