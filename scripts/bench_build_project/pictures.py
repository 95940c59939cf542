"""The images that both tools are given: one of eight colours, more or less, a wave across, and noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
COLOURS = np.stack(np.meshgrid([-0.5, 0.5], [-0.5, 0.5], [-0.5, 0.5]), axis=-1).reshape(8, 3)
SPREAD = 0.25  # of the colours of a class, so that they overlap a little
CLASSES, SIZE, BATCH = len(COLOURS), 224, 8
SPLITS = {"calibration": 64, "evaluation": 256}  # images
Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def images(count: int, size: int, seed: int) -> tuple[Array, Array]:
    """Return images as uint8 and the class of each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    made = np.empty((count, 3, size, size), np.uint8)
    for image, label in zip(made, labels, strict=True):
        colour = (COLOURS[label] + rng.normal(0, SPREAD, 3)).astype(np.float32)
        angle, waves = rng.uniform(0, np.pi), rng.uniform(4, 20)
        wave = np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)))
        noise = rng.standard_normal((3, size, size), np.float32)
        image[:] = np.clip(128 + 40 * colour[:, None, None] + 30 * wave + 30 * noise, 0, 255)
    return made, labels


def pixels(image: Array) -> Array:
    """Return what the network takes."""
    return (image.astype(np.float32) - 128) / 64


def write(folder: Path) -> None:
    """Write both splits; the same each time."""
    for seed, (name, count) in enumerate(SPLITS.items()):
        made, labels = images(count, SIZE, seed)
        np.savez(folder / f"{name}.npz", images=made, labels=labels)


def split(name: str) -> tuple[Array, Array]:
    """Return the images and classes of a split."""
    with np.load(HERE / f"{name}.npz") as kept:
        return kept["images"], kept["labels"]


def calibration() -> list[Arrays]:
    """Return the batches that tt measures ranges with."""
    shown, _ = split("calibration")
    return [{"image": pixels(shown[start : start + BATCH])} for start in range(0, len(shown), BATCH)]


def accuracy(predict: Callable[[Arrays], Arrays]) -> float:
    """Return the share of the evaluation images whose class is told."""
    shown, labels = split("evaluation")
    told = [
        predict({"image": pixels(shown[start : start + BATCH])})["logits"].argmax(1)
        for start in range(0, len(shown), BATCH)
    ]
    return float((np.concatenate(told) == labels).mean())
