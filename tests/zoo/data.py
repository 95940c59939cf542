"""Inputs with structure, for networks with random weights: images of shapes, sentences, signals, graphs.

Noise would do for shapes and types, but not for ranges: neighbouring pixels of an image, words of a
sentence and samples of a signal go together, and that is what activations, and so scales, depend on.

Each kind is an instance whose bound methods ``tt.yaml`` could name: ``sample``, with the sizes wanted,
and ``calibration``, which gives 64 samples in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

_BATCHES = 8
_ROWS = 8
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _fp32(array: Array) -> Array:
    return array.astype(np.float32)


@dataclass(frozen=True)
class Images:
    """Pictures of discs, bars and a textured, shaded ground; normalised as ImageNet's are."""

    name: str
    size: int
    channels: int = 3

    def sample(self, batch: int = 4) -> Arrays:
        return self._batch(batch, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._batch(_ROWS, seed) for seed in range(_BATCHES)]

    def _batch(self, rows: int, seed: int) -> Arrays:
        rng = np.random.default_rng([seed, self.size])
        images = np.stack([self._image(rng) for _ in range(rows)])
        mean, std = (np.array((values * 2)[: self.channels]).reshape(1, -1, 1, 1) for values in (_MEAN, _STD))
        return {self.name: _fp32((images - mean) / std)}

    def _image(self, rng: np.random.Generator) -> Array:
        y, x = np.mgrid[0 : 1 : self.size * 1j, 0 : 1 : self.size * 1j]
        shade = rng.uniform(0, 1, (self.channels, 3))
        image = shade[:, 0, None, None] + (shade[:, 1, None, None] - 0.5) * x
        image = image + (shade[:, 2, None, None] - 0.5) * y
        waves = rng.uniform(2, self.size / 4, 2)
        image = image + 0.1 * np.sin(2 * np.pi * (waves[0] * x + waves[1] * y))
        for _ in range(rng.integers(1, 5)):
            colour = rng.uniform(0, 1, (self.channels, 1, 1))
            centre, radius = rng.uniform(0, 1, 2), rng.uniform(0.05, 0.3)
            if rng.random() < 0.5:
                inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < radius**2
            else:
                inside = (abs(x - centre[0]) < radius) & (abs(y - centre[1]) < radius / 3)
            image = np.where(inside, colour, image)
        return np.clip(image + rng.normal(0, 0.02, image.shape), 0, 1)


@dataclass(frozen=True)
class Sentences:
    """Token ids, frequent ones more often (Zipf), padded to the longest; with a mask where one is named."""

    vocabulary: int
    mask: str = ""
    length: int = 24
    first: int = 3

    def sample(self, batch: int = 4, seq: int = 16) -> Arrays:
        return self._batch(batch, seq, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._batch(_ROWS, self.length - 2 * (seed % 4), seed) for seed in range(_BATCHES)]

    def _batch(self, rows: int, seq: int, seed: int) -> Arrays:
        rng = np.random.default_rng([seed, seq])
        shares = 1 / np.arange(1, self.vocabulary - self.first + 1)
        ids = rng.choice(np.arange(self.first, self.vocabulary), (rows, seq), p=shares / shares.sum())
        lengths = rng.integers((seq + 1) // 2, seq + 1, rows)
        lengths[0] = seq
        if not self.mask:
            return {"input_ids": ids.astype(np.int64)}
        mask = np.arange(seq) < lengths[:, None]
        return {"input_ids": np.where(mask, ids, 0).astype(np.int64), self.mask: mask.astype(np.int64)}


@dataclass(frozen=True)
class Signals:
    """Sums of a few fading sine waves and some noise: (batch, channels, time), or time before channels."""

    name: str
    channels: int
    length: int
    time_first: bool = False
    rows: int = _ROWS

    def sample(self, batch: int = 4, time: int | None = None) -> Arrays:
        return self._batch(batch, time or self.length, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._batch(self.rows, self.length, seed) for seed in range(_BATCHES * _ROWS // self.rows)]

    def _batch(self, rows: int, time: int, seed: int) -> Arrays:
        rng = np.random.default_rng([seed, time])
        at = np.arange(time) / self.length
        shape = (3, rows, self.channels, 1)
        waves = np.sin(2 * np.pi * (rng.uniform(1, 20, shape) * at + rng.uniform(0, 1, shape)))
        fading = np.exp(-rng.uniform(0, 2, shape) * at) * rng.lognormal(-0.5, 0.5, shape)
        signal = (waves * fading).sum(axis=0) + rng.normal(0, 0.05, (rows, self.channels, time))
        return {self.name: _fp32(signal.swapaxes(1, 2) if self.time_first else signal)}


@dataclass(frozen=True)
class Graphs:
    """Node features and edges; a few nodes have most of the edges."""

    features: int

    def sample(self, nodes: int = 20, edges: int = 60) -> Arrays:
        return self._graph(nodes, edges, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._graph(16 + seed % 24, 48 + 3 * seed, seed) for seed in range(48)]

    def _graph(self, nodes: int, edges: int, seed: int) -> Arrays:
        rng = np.random.default_rng([seed, nodes, edges])
        centres = rng.normal(0, 1, (4, self.features))
        features = centres[rng.integers(0, 4, nodes)] + rng.normal(0, 0.3, (nodes, self.features))
        ends = (nodes * rng.beta(0.7, 1.5, (2, edges))).astype(np.int64)
        return {"nodes": _fp32(features), "edges": np.minimum(ends, nodes - 1)}


@dataclass(frozen=True)
class Clicks:
    """What a recommender sees: counts with long tails, and categories of which few are frequent."""

    counts: int
    categories: int
    table: int

    def sample(self, batch: int = 4) -> Arrays:
        return self._batch(batch, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._batch(_ROWS, seed) for seed in range(_BATCHES)]

    def _batch(self, rows: int, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        counts = np.log1p(rng.lognormal(1, 1.5, (rows, self.counts)).astype(np.int64))
        ids = rng.zipf(1.3, (rows, self.categories)) % self.table
        return {"counts": _fp32(counts), "categories": ids.astype(np.int64)}


@dataclass(frozen=True)
class Clouds:
    """Points on ellipsoids and boxes, as a depth sensor sees them: (batch, points, 3)."""

    def sample(self, batch: int = 4, points: int = 64) -> Arrays:
        return self._batch(batch, points, seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._batch(_ROWS, 96, seed) for seed in range(_BATCHES)]

    def _batch(self, rows: int, points: int, seed: int) -> Arrays:
        rng = np.random.default_rng([seed, points])
        cloud = rng.normal(0, 1, (rows, points, 3))
        length = np.where(
            rng.random((rows, 1, 1)) < 0.5,
            np.linalg.norm(cloud, axis=2, keepdims=True),
            np.abs(cloud).max(axis=2, keepdims=True),
        )
        return {"points": _fp32(cloud / length * rng.uniform(0.3, 1, (rows, 1, 3)))}


@dataclass(frozen=True)
class NoisyImages:
    """What a diffusion model sees: pictures at some step of being covered with noise."""

    images: Images

    def sample(self, batch: int = 4) -> Arrays:
        return self._noised(self.images.sample(batch), seed=100)

    def calibration(self) -> list[Arrays]:
        return [self._noised(batch, seed) for seed, batch in enumerate(self.images.calibration())]

    def _noised(self, batch: Arrays, seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        images = batch[self.images.name]
        step = rng.integers(0, 1000, len(images))
        share = np.cos(step / 1000 * np.pi / 2).reshape(-1, 1, 1, 1)
        noised = share * images + np.sqrt(1 - share**2) * rng.normal(0, 1, images.shape)
        return {self.images.name: _fp32(noised), "step": step.astype(np.int64)}


@dataclass(frozen=True)
class Captions:
    """Pictures and sentences, as a model of both takes them."""

    images: Images
    sentences: Sentences

    def sample(self, batch: int = 4, seq: int = 16) -> Arrays:
        return self.images.sample(batch) | self.sentences.sample(batch, seq)

    def calibration(self) -> list[Arrays]:
        pairs = zip(self.images.calibration(), self.sentences.calibration(), strict=True)
        return [image | text for image, text in pairs]


images_16 = Images("image", 16)
images_32 = Images("image", 32)
images_64 = Images("image", 64)
pixels_32 = Images("pixel_values", 32)
pixels_64 = Images("pixel_values", 64)
sentences = Sentences(1000, "attention_mask")
plain_sentences = Sentences(1000)
signals = Signals("signal", 2, 128)
series = Signals("series", 6, 40, time_first=True)
single_series = Signals("series", 6, 40, time_first=True, rows=1)
spectra = Signals("input_features", 40, 64)
speech = Signals("speech", 1, 1600)
graphs = Graphs(12)
clicks = Clicks(13, 8, 200)
clouds = Clouds()
noisy_images = NoisyImages(images_16)
captions = Captions(pixels_32, Sentences(1000, "attention_mask", length=16))
