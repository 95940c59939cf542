"""Calibration tables kept between builds: one JSON file for each model, data, method and versions."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from triton_toolkit._files import canonical_json, sha256_bytes, sha256_file, write_json
from triton_toolkit._optional import require
from triton_toolkit.errors import EnvironmentProblem
from triton_toolkit.export.graph import all_tensors, load_graph

ALGORITHM = 1
"""Raised whenever the same model and data would give other ranges."""


class CalibrationCache:
    """Tables of one model and its data.

    Args:
        folder: Where the tables lie; made when one is written.
        model: The ONNX file; its external data is part of the key.
        data: Digest of the calibration data, after preprocessing.
    """

    def __init__(self, folder: Path, model: Path, data: str) -> None:
        import numpy

        onnxruntime = require("onnxruntime", extra="cpu", purpose="measure ranges")
        self._folder = folder
        self._key = {
            "model": _model_digest(model),
            "data": data,
            "versions": {
                "algorithm": ALGORITHM,
                "numpy": numpy.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
        }

    def path(self, method: str) -> Path:
        """Return the file of a method's table."""
        return self._folder / f"{sha256_bytes(canonical_json(self._key_of(method)).encode())}.json"

    def get(self, method: str, tensors: Iterable[str]) -> dict[str, tuple[float, float]] | None:
        """Return a table; None where there is none, or where it is damaged or lacks a tensor."""
        try:
            value = json.loads(self.path(method).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            return None
        if not isinstance(value, dict) or value.get("key") != self._key_of(method):
            return None
        table = value.get("ranges")
        if not isinstance(table, dict):
            return None
        found = {name: _bounds(table.get(name)) for name in tensors}
        complete = {name: bounds for name, bounds in found.items() if bounds is not None}
        return complete if len(complete) == len(found) else None

    def put(self, method: str, table: Mapping[str, tuple[float, float]]) -> None:
        """Write a table, whole; where that cannot be, it is measured again the next time."""
        ranges = {name: [_json(bound) for bound in bounds] for name, bounds in sorted(table.items())}
        with contextlib.suppress(OSError, EnvironmentProblem):
            write_json(self.path(method), {"key": self._key_of(method), "ranges": ranges})

    def _key_of(self, method: str) -> dict[str, Any]:
        return {**self._key, "method": method}


def _model_digest(path: Path) -> str:
    """Return a digest of a model's bytes, those of its external data included."""
    files = {path.name: sha256_file(path)}
    for tensor in all_tensors(load_graph(path)):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value not in files:
                files[entry.value] = sha256_file(path.parent / entry.value)
    files["model"] = files.pop(path.name)  # a model that moves is the same model
    return sha256_bytes(canonical_json(files).encode())


def _json(bound: float) -> float | str:
    return bound if math.isfinite(bound) else str(bound)


def _bounds(value: object) -> tuple[float, float] | None:
    """Return the two numbers of an entry; None where it is something else."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    try:
        low, high = (float(item) for item in value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(low) or math.isnan(high) else (low, high)
