"""Handwritten digits: a small trained CNN, with real images and labels to measure it on.

``tt.yaml`` names four functions of this module: ``model`` (the source), ``sample`` (example
inputs), ``accuracy`` (the metric that an export must keep), and ``calibration`` (what ranges are
measured on). Imports stay inside the functions where only one of them needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

WEIGHTS = Path(__file__).with_name("weights.pt")
_BATCH = 32


def model() -> torch.nn.Module:
    """Return the trained network; ``python -m examples.digits.train`` makes its weights again."""
    import torch

    from examples.digits.network import DigitsNetwork

    network = DigitsNetwork()
    network.load_state_dict(torch.load(WEIGHTS, map_location="cpu", weights_only=True))
    return network


def sample() -> Arrays:
    """Return four real images that the training has not seen, of shape (4, 1, 8, 8).

    It takes no sizes, so ``tt`` repeats or cuts the rows where it needs another batch size.
    """
    from examples.digits.data import held_out

    images, _ = held_out()
    return {"image": images[:4]}


def accuracy(predict: Callable[[Arrays], Arrays]) -> float:
    """Return the share of held-out images that are recognised, 0 to 1.

    Args:
        predict: Takes ``image`` of shape (batch, 1, 8, 8), gives ``logits`` of shape (batch, 10);
            once it is the PyTorch model, once the exported one.
    """
    from examples.digits.data import held_out

    images, labels = held_out()
    right = 0
    for start in range(0, len(images), _BATCH):
        logits = predict({"image": images[start : start + _BATCH]})["logits"]
        right += int((logits.argmax(axis=1) == labels[start : start + _BATCH]).sum())
    return right / len(images)


def calibration() -> list[Arrays]:
    """Return 256 images of the training split in batches of 32: INT8 and FP16 measure ranges on them.

    Never the held-out images, which ``accuracy`` judges the result on.
    """
    from examples.digits.data import training

    images, _ = training()
    return [{"image": images[start : start + _BATCH]} for start in range(0, 256, _BATCH)]
