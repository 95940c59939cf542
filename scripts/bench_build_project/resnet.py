"""A network of ResNet-50's layers and sizes, trained for a minute.

It tells the colours of images apart, not without error, so that a loss of precision shows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from pictures import CLASSES, SIZE, images, pixels
from torch import nn

STEPS = 40  # of training
STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block
BRANCH = 0.2  # scale of what a block adds at first; it trains faster than from 1


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outputs, 1),
        )
        nn.init.constant_(self.body[-1].weight, BRANCH)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """Images (batch, 3, 224, 224) -> logits (batch, 8)."""

    def __init__(self) -> None:
        super().__init__()
        layers = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for blocks, width, stride in STAGES:
            for index in range(blocks):
                layers.append(Bottleneck(channels, width, stride if index == 0 else 1))
                channels = 4 * width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.last = nn.Linear(channels, CLASSES)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.last(self.features(image))
        return logits


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def prepare(folder: Path) -> None:
    """Write the weights."""
    torch.manual_seed(0)
    network = ResNet50()
    _train(network)
    network.eval()
    torch.save(network.state_dict(), folder / "weights.pt")


def _train(network: ResNet50) -> None:
    """Train on small images, then let the batch normalisations see large ones."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS)
    for step in range(STEPS):
        shown, labels = images(32, SIZE // 4, 1000 + step)
        loss = nn.functional.cross_entropy(network(torch.from_numpy(pixels(shown))), torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean of all batches
    with torch.no_grad():
        for seed in range(2):
            network(torch.from_numpy(pixels(images(32, SIZE, 2000 + seed)[0])))


def model(_: str | None = None) -> nn.Module:
    """Return the network; Olive gives a path."""
    network = ResNet50()
    network.load_state_dict(torch.load(Path(__file__).with_name("weights.pt"), weights_only=True))
    return network.eval()
