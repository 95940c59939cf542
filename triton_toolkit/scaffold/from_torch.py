"""A spec for a PyTorch factory: what the signature of ``forward`` says, and the sample where there is one."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_toolkit import errors
from triton_toolkit._process import run_child
from triton_toolkit._progress import Progress
from triton_toolkit.core.tensors import DataType, Extent
from triton_toolkit.errors import ExportError
from triton_toolkit.scaffold.files import (
    BATCH,
    SPEC_NAME,
    ModelText,
    TensorLine,
    model_name,
    quoted,
    spec_text,
)

_WORKER = "triton_toolkit.scaffold.worker"
_PLACEHOLDER = "CHANGE: its real type and shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the child process found.

    Attributes:
        parameters: The parameters of ``forward`` that need a value, in order.
        optional: Those that have a default.
        sample: ``module:function`` of a sample beside the factory, None without.
        unread: Why the sample could not be run at sizes that were guessed, empty where it ran.
        inputs: What the sample gives, name -> (dtype, shape); empty without a sample. Axes that
            follow a size which the sample takes have its name.
        outputs: What forward gives for it, likewise.
    """

    parameters: Sequence[str]
    optional: Sequence[str]
    sample: str | None
    unread: str
    inputs: Mapping[str, tuple[str, Sequence[Extent]]]
    outputs: Mapping[str, tuple[str, Sequence[Extent]]]


def torch_project(source: str, folder: Path, progress: Progress) -> dict[str, str]:
    """Return the files of a project in ``folder`` that serves what ``module:factory`` returns.

    The factory is imported and called in a child process. Where a function ``sample`` stands beside
    it, types, shapes and outputs are read from a run; otherwise inputs are placeholders, marked so.
    Sizes that the sample takes without a default are guessed; where it does not run at them, the
    spec says so and has placeholders.

    Raises:
        ExportError: The factory does not import, raises, or returns no module; or forward fails for
            a sample that needs no sizes, or at those that are its defaults.
        MissingDependencyError: PyTorch is not installed.
    """
    progress.step(source, "importing it and reading the signature of forward")
    found = _look(source, folder)
    batch = _batch_name(found)
    model = ModelText(
        name=model_name(source.partition(":")[0].rpartition(".")[2]),
        head=(f"source: {quoted(source)}", *_sample_lines(found, source), *_remarks(found)),
        inputs=_lines(found.inputs, batch) or _placeholders(found),
        outputs=_lines(found.outputs, batch),
        batch_dim=batch,
    )
    return {SPEC_NAME: spec_text(model)}


def _look(source: str, folder: Path) -> Findings:
    with tempfile.TemporaryDirectory(prefix="tt-init-") as scratch:
        out = Path(scratch) / "found.json"
        # -P: modules are found from the folder, as the build will find them, not from here
        argv = [sys.executable, "-P", "-m", _WORKER, str(folder.resolve()), source, str(out)]
        child = run_child(argv, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        try:
            value: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ExportError(
                f"{source}: reading it ended with {child.how_it_ended}", detail=child.output
            ) from None
    if "error" in value:
        kind: type[errors.TritonToolkitError] = getattr(errors, value["error"])
        raise kind(value["message"], hint=value["hint"], detail=value["detail"])
    return Findings(**value)


def _sample_lines(found: Findings, source: str) -> list[str]:
    """Return the sample's line, with why it could not be read; an offer where there is none."""
    if found.sample is None:
        name = f"{source.partition(':')[0]}:sample"
        return [f"# sample: {quoted(name)}    # a function there of this name gives example inputs by name"]
    lines = [f"sample: {quoted(found.sample)}"]
    if found.unread:
        lines += [
            f"# tt init could not run it: {' '.join(found.unread.split())}",
            "# The sizes that it takes must be names in dims.",
        ]
    return lines


def _remarks(found: Findings) -> list[str]:
    if not found.inputs:
        return [f"# optional parameter of forward, not an input: {name}" for name in found.optional]
    if any(_fixed(shape) for _, shape in found.inputs.values()):
        return ["# Where a size that is fixed below may vary, write a name for it, and its range in dims."]
    return []


def _fixed(shape: Sequence[Extent]) -> str:
    return ", ".join(str(extent) for extent in shape if isinstance(extent, int))


def _batch_name(found: Findings) -> str | None:
    """Return the name of the first dimension where all tensors share it, None where they do not."""
    firsts = {shape[0] if shape else None for _, shape in (*found.inputs.values(), *found.outputs.values())}
    if len(firsts) > 1 or None in firsts:
        return None
    first = next(iter(firsts), BATCH)
    return first if isinstance(first, str) else BATCH


def _placeholders(found: Findings) -> list[TensorLine]:
    names = found.parameters or ["input"]
    return [TensorLine(name=n, dtype=DataType.FP32, shape=(BATCH, 1), note=_PLACEHOLDER) for n in names]


def _lines(tensors: Mapping[str, tuple[str, Sequence[Extent]]], batch: str | None) -> list[TensorLine]:
    lines = []
    for name, (dtype, own) in tensors.items():
        shape = tuple(own) if batch is None else (batch, *own[1:])
        note = f"fixed as in the sample: {_fixed(shape)}" if _fixed(shape) else ""
        lines.append(TensorLine(name=name, dtype=DataType.parse(dtype), shape=shape, note=note))
    return lines
