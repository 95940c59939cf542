"""The network: two convolutions and a linear layer, about 10 thousand parameters."""

from __future__ import annotations

import torch
from torch import nn


class DigitsNetwork(nn.Module):
    """Classify 8x8 grey images of handwritten digits.

    Shapes:
        image: (batch, 1, 8, 8), float32 from 0 (paper) to 1 (ink).
        logits: (batch, 10), unnormalised log probabilities of the digits 0 to 9.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.25), nn.Linear(32 * 4 * 4, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.classifier(self.features(image).flatten(1))
        return logits
