"""Graphs, tables, point clouds, mixtures, and a model that takes one of two ways."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import clouds
from .initial import seeded, settled


class Messages(nn.Module):
    """Each node gets the mean of what its edges bring: gather, linear layer, scatter."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(2 * inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        messages = F.relu(self.message(torch.cat([nodes[source], nodes[target]], 1)))
        index = target[:, None].expand(-1, messages.shape[1])
        total = torch.zeros(nodes.shape[0], messages.shape[1]).scatter_add(0, index, messages)
        count = torch.zeros(nodes.shape[0]).scatter_add(
            0, target, torch.ones_like(target, dtype=torch.float32)
        )
        return self.own(nodes) + total / count.clamp(min=1)[:, None]


class GraphNet(nn.Module):
    def __init__(self, features: int = 12, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = Messages(features, width), Messages(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.first(nodes, edges))
        return self.head(F.relu(self.second(x, edges)))


def graph_net() -> nn.Module:
    return seeded(GraphNet)


class Recommender(nn.Module):
    """DLRM: embeddings of categories, products of all pairs, and two perceptrons."""

    def __init__(self, counts: int = 13, categories: int = 8, table: int = 200, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(table, width) for _ in range(categories))
        self.bottom = nn.Sequential(nn.Linear(counts, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        pairs = (categories + 1) * categories // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        lower = torch.tril_indices(categories + 1, categories + 1, -1)
        self.register_buffer("pairs", lower[0] * (categories + 1) + lower[1])

    def forward(self, counts: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(counts)
        vectors = torch.stack([dense, *(t(categories[:, i]) for i, t in enumerate(self.tables))], 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)[:, self.pairs]
        return self.top(torch.cat([dense, products], 1))


def recommender() -> nn.Module:
    return seeded(Recommender)


class PointNet(nn.Module):
    """The same layers for each point, then the largest over all points."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv1d(inputs, outputs, 1), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.body(points.transpose(1, 2)).amax(2))


def point_net() -> nn.Module:
    return settled(PointNet, clouds.calibration())


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(width, 96), nn.GELU(), nn.Linear(96, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """Patches, mixed by perceptrons alone."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(self.patches(image).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


def mixer() -> nn.Module:
    return seeded(Mixer)


class TwoWays(nn.Module):
    """A stronger network for what varies much, decided from the input itself: an If in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(6, 32)
        self.light = nn.Linear(32, 32)
        self.heavy = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, series: Tensor) -> Tensor:
        x = F.relu(self.enter(series))
        x = torch.cond(series.std() > 0.65, self.heavy, self.light, (x,))
        return self.head(F.relu(x))


def two_ways() -> nn.Module:
    return seeded(TwoWays)


class Experts(nn.Module):
    """A mixture of experts, all computed and weighted: the two best of four count."""

    def __init__(self, width: int = 32, experts: int = 4) -> None:
        super().__init__()
        self.enter, self.gate = nn.Linear(6, width), nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 64) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, 64, width) / 8)
        self.head = nn.Linear(width, 6)

    def forward(self, series: Tensor) -> Tensor:
        x = F.relu(self.enter(series))
        best, which = self.gate(x).topk(2, dim=-1)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, which, best.softmax(-1))
        inner = F.gelu(torch.einsum("btw,ewh->bteh", x, self.up))
        mixed = torch.einsum("bteh,ehw,bte->btw", inner, self.down, weights)
        return self.head(x + mixed)


def experts() -> nn.Module:
    return seeded(Experts)
