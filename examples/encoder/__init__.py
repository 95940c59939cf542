"""A text encoder of the usual kind: token ids and an attention mask in, one vector a text out.

Batch and sequence are both dynamic. Its weights are seeded, not trained: what it shows is how such
a model is exported and served, not what the vectors mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

VOCABULARY = 512
"""Token ids are below this; ``examples/tokenizer/tokenizer.json`` keeps to it."""


def model() -> torch.nn.Module:
    """Return the encoder; the same weights each time."""
    import torch

    from examples.encoder.network import TextEncoder

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextEncoder(vocabulary=VOCABULARY)


def sample(batch: int = 2, seq: int = 16) -> dict[str, NDArray[Any]]:
    """Return random token ids with padding at the end of every row but the first.

    ``tt`` passes the sizes that it wants to try, because the parameters are named like the model's
    dynamic dimensions in ``tt.yaml``. At random it could only guess which ids are legal.

    Args:
        batch: Number of texts.
        seq: Number of tokens of the longest.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    lengths = np.maximum(1, seq - np.arange(batch) % seq)
    mask = (np.arange(seq) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(4, VOCABULARY, (batch, seq)) * mask  # id 0 is padding
    return {"input_ids": ids, "attention_mask": mask}
