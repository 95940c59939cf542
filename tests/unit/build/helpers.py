"""Passports written by hand, for tests that need a built step and no build."""

from __future__ import annotations

from collections.abc import Callable

from triton_toolkit.build.recipe import Context
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.repository.passport import Passport, write_passport

ProjectOf = Callable[[str], Context]


def tensor(text: str) -> TensorSpec:
    """Read ``name:dtype[a,b]``: names are dynamic dimensions, numbers fixed sizes."""
    name, _, rest = text.partition(":")
    dtype, _, shape = rest.rstrip("]").partition("[")
    extents = tuple(int(part) if part.isdigit() else part for part in shape.split(",") if part)
    return TensorSpec(name=name, dtype=DataType.parse(dtype), shape=extents)


def put_passport(
    context: Context, name: str, *, inputs: list[str], outputs: list[str], batch: int = 0, **more: object
) -> Passport:
    """Write version 1 of a model that consists of its passport alone; ``batch`` is its largest batch."""
    values: dict[str, object] = {
        "model": name,
        "kind": "onnx",
        "variant": "",
        "backend": "onnxruntime",
        "created": "2026-01-01T00:00:00+00:00",
        "tools": {},
        "key": {},
        "inputs": tuple(tensor(text) for text in inputs),
        "outputs": tuple(tensor(text) for text in outputs),
        "batch_dim": "batch" if batch else None,
        "dims": {"batch": [1, min(8, batch), batch]} if batch else {},
    }
    passport = Passport(**{**values, **more})  # type: ignore[arg-type]
    folder = context.folder(name) / "1"
    folder.mkdir(parents=True)
    write_passport(folder, passport)
    return passport
