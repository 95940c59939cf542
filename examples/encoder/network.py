"""A small transformer encoder with masked mean pooling."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the usual name

MAX_TOKENS = 128


class Block(nn.Module):
    """One transformer layer, normalised before each half.

    Shapes:
        x: (batch, seq, width).
        bias: (batch, 1, 1, seq), 0 for a token and a large negative number for padding.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return x after attention over the tokens and the feed-forward half."""
        batch, seq, width = x.shape
        heads = self.qkv(self.attention_norm(x)).reshape(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))
        result: torch.Tensor = x + self.mlp(x)
        return result


class TextEncoder(nn.Module):
    """Encode texts as vectors of length 1.

    Padding has no influence: it is masked in the attention and left out of the mean, so a text has
    the same vector in a short batch and in a long one.

    Shapes:
        input_ids: (batch, seq), int64, below ``vocabulary``.
        attention_mask: (batch, seq), int64, 1 for a token and 0 for padding.
        embedding: (batch, width), float32, Euclidean length 1 (0 for a row that is all padding).
    """

    def __init__(self, vocabulary: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(MAX_TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the embeddings."""
        mask = attention_mask.to(torch.float32)
        # Not -inf: a softmax over a row of nothing but -inf is NaN.
        bias = (1 - mask)[:, None, None, :] * -1e9
        order = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(order)
        for block in self.blocks:
            x = block(x, bias)
        weights = mask[:, :, None]
        mean = (self.norm(x) * weights).sum(1) / weights.sum(1).clamp(min=1)
        return F.normalize(mean, dim=-1)
