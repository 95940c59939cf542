"""A spec for an ONNX file: its inputs, outputs and dynamic dimensions, as far as they can be read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.export.graph import graph_inputs, graph_outputs, load_graph
from triton_toolkit.scaffold.files import (
    BATCH,
    SPEC_NAME,
    ModelText,
    TensorLine,
    model_name,
    quoted,
    spec_text,
)


def onnx_project(file: Path, folder: Path) -> dict[str, str]:
    """Return the files of a project in ``folder`` that serves an ONNX file: name -> text.

    Dynamic dimensions keep the names of the file; one without a name is called after its tensor and
    axis, except the first: where it is dynamic in every tensor, it is taken for the batch; where not, a
    comment says why Triton will not batch the model. Output shapes that the file lacks are inferred.

    Raises:
        ExportError: Not an ONNX file, one with types that Triton cannot serve, or with an output whose
            rank is unknown.
    """
    graph = load_graph(file)
    inputs, outputs = graph_inputs(graph), graph_outputs(graph)
    batch = batch_name(inputs, outputs)
    source = os.path.relpath(file.resolve(), folder.resolve()).replace(os.sep, "/")
    model = ModelText(
        name=model_name(file.stem),
        head=(
            "kind: onnx",
            f"source: {quoted(source)}    # taken as it is, with its external data",
            *_why_not_batched(inputs, outputs, batch),
        ),
        inputs=[_line(tensor, batch) for tensor in inputs],
        outputs=[_line(tensor, batch) for tensor in outputs],
        batch_dim=batch,
    )
    return {SPEC_NAME: spec_text(model)}


def batch_name(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str | None:
    """Return what to call the batch dimension, None where there is none.

    It must be the first of every input and output, dynamic, and have one name, or none, in the file.
    """
    tensors = (*inputs, *outputs)
    if not inputs or not all(tensor.shape and isinstance(tensor.shape[0], str) for tensor in tensors):
        return None
    names = {str(tensor.shape[0]) for tensor in tensors if tensor.shape[0] != f"{tensor.name}_0"}
    return None if len(names) > 1 else next(iter(names), BATCH)


def _why_not_batched(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batch: str | None
) -> list[str]:
    """Return comments that say why Triton will not batch the model; none where it can."""
    if batch is not None or not inputs:
        return []
    reason = "the file calls its first dimensions by several names"
    for kind, tensors in (("output", outputs), ("input", inputs)):  # the first input at fault is named
        for tensor in reversed(tensors):
            if not tensor.shape:
                reason = f"{kind} {quoted(tensor.name)} is a scalar, without a dimension for the batch"
            elif isinstance(tensor.shape[0], int):
                size = tensor.shape[0]
                reason = f"the file fixes the first dimension of {kind} {quoted(tensor.name)} at {size}"
    return [
        f"# Triton will not batch this model (max_batch_size 0): {reason}.",
        "# To change that, export it with one dynamic first dimension in every input and output.",
    ]


def _line(tensor: TensorSpec, batch: str | None) -> TensorLine:
    shape = tensor.shape if batch is None else (batch, *tensor.shape[1:])
    return TensorLine(name=tensor.name, dtype=tensor.dtype, shape=shape)
