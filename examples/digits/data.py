"""scikit-learn's bundled digits, split once and for all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Split = tuple[NDArray[Any], NDArray[Any]]


def _split() -> list[NDArray[Any]]:
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)  # the originals count ink from 0 to 16
    parts: list[NDArray[Any]] = train_test_split(
        images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
    )
    return parts


def training() -> Split:
    """Return 1347 images of shape (1, 8, 8), float32 from 0 to 1, and their labels."""
    images, _, labels, _ = _split()
    return images, labels


def held_out() -> Split:
    """Return the 450 images that the training never sees, and their labels."""
    _, images, _, labels = _split()
    return images, labels
