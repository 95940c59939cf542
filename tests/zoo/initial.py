"""Random weights that let signals through a network of any depth, and statistics from data."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .data import Arrays


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """Return what ``make`` gives with the same random numbers each time, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def settled(make: Callable[[], nn.Module], batches: list[Arrays]) -> nn.Module:
    """Return a convolutional network with He's weights and statistics measured on data.

    The last normalization of a residual block begins at a fifth, as networks are that learn well:
    each block then adds to what it is given, instead of replacing it.
    """
    model = seeded(make)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for module in model.modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            last = getattr(module, "last_norm", None)
            if last is not None:
                nn.init.constant_(last.weight, 0.2)
        for norm in norms:
            nn.init.normal_(norm.bias, std=0.1)
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over all batches
            norm.train()
        for batch in batches if norms else ():
            model(*(torch.from_numpy(array) for array in batch.values()))
    return model.eval()
