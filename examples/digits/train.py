"""Train the digits network and write its weights: ``python -m examples.digits.train``.

Takes a few seconds on a CPU. The seed is fixed; another version of PyTorch may still give other
weights, which is why they are committed.
"""

from __future__ import annotations

import torch
from torch import nn

from examples.digits import WEIGHTS, accuracy
from examples.digits.data import training
from examples.digits.network import DigitsNetwork

EPOCHS = 20
BATCH = 64


def train() -> DigitsNetwork:
    """Return a network trained with Adam and a falling learning rate."""
    torch.manual_seed(0)
    network = DigitsNetwork()
    images, labels = (torch.from_numpy(part) for part in training())
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            rows = order[start : start + BATCH]
            loss = nn.functional.cross_entropy(network(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return network.eval()


def main() -> None:
    """Train, print the accuracy on held-out images, write ``weights.pt``."""
    network = train()
    with torch.no_grad():
        share = accuracy(lambda arrays: {"logits": network(torch.from_numpy(arrays["image"])).numpy()})
    torch.save(network.state_dict(), WEIGHTS)
    print(f"{share:.4f} of the held-out images are right; wrote {WEIGHTS.name}")


if __name__ == "__main__":
    main()
