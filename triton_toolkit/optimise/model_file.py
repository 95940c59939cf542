"""Read an ONNX file to change it, and write what came out: whole, checked, the same bytes each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import host_errors
from triton_toolkit.errors import ExportError
from triton_toolkit.export.clean import write_graph
from triton_toolkit.export.graph import load_graph, versions_of
from triton_toolkit.export.job import EXTERNAL_DATA_BYTES
from triton_toolkit.export.source import reason

if TYPE_CHECKING:
    import onnx

PER_CHANNEL_OPSET = 13
"""First opset whose DequantizeLinear has an axis."""

_FREE_INITIALIZERS = 4
"""First IR version whose initializers need not be inputs as well."""

_SMALL_BYTES = 1024
"""Tensors below this stay in the model when the others go beside it: shapes are read from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What shape inference knows of a tensor.

    Attributes:
        elem_type: ``onnx.TensorProto.DataType``.
        shape: Sizes; names or None where they are open. None where not even the rank is known.
    """

    elem_type: int
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model in memory, free to be changed.

    Attributes:
        model: The message; local functions are inlined.
        tensors: Type and shape of the main graph's inputs, inner values and outputs.
    """

    model: onnx.ModelProto
    tensors: Mapping[str, TensorInfo]


def read_model(path: Path, *, opset: int = 0, weights: bool = True) -> ModelFile:
    """Read a file with its external data.

    Args:
        path: The file.
        opset: Lowest opset of the default domain that will do; an older model is converted.
        weights: Whether to read external data too.

    Raises:
        ExportError: Not an ONNX file, its external data is missing, or onnx's version converter
            cannot bring it to the opset.
    """
    import onnx
    from onnx import inliner

    model = load_graph(path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    model.ir_version = max(model.ir_version, _FREE_INITIALIZERS)
    # By way of the opset that calibration reads: tensors that the converter adds are then called the same.
    for wanted in (min(opset, PER_CHANNEL_OPSET), opset):
        if opset_of(model) < wanted:
            model = _converted(model, wanted, path.name)
    tensors = _tensors(onnx.shape_inference.infer_shapes(model, data_prop=True).graph)
    if not weights:
        return ModelFile(model=model, tensors=tensors)
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (FileNotFoundError, onnx.checker.ValidationError) as exc:
        raise ExportError(
            f"{path}: its external data cannot be read: {reason(exc)}",
            hint="it belongs beside the .onnx file",
        ) from exc
    return ModelFile(model=model, tensors=tensors)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the opset of the default domain; 0 where the model imports none."""
    return int(versions_of(model)["opset"].get("", 0))


def write_model(
    model: onnx.ModelProto, path: Path, *, external_data_bytes: int = EXTERNAL_DATA_BYTES
) -> None:
    """Write a model, with its weights beside it where they are large, and check the file.

    Args:
        model: Its tensors lose their data where that goes into ``<name>.data``.
        path: The file to write.
        external_data_bytes: Weights larger than this in total go beside the model.

    Raises:
        ExportError: onnx.checker, shapes included, refuses it.
        EnvironmentProblem: The disk is full or read-only.
    """
    from onnx import external_data_helper

    beside = path.with_name(f"{path.name}.data")
    with host_errors(f"write {path}"):
        beside.unlink(missing_ok=True)  # onnx appends to a file that exists
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > external_data_bytes:
            external_data_helper.convert_model_to_external_data(
                model, location=beside.name, size_threshold=_SMALL_BYTES
            )
            external_data_helper.write_external_data_tensors(model, str(path.parent))
    write_graph(model, path)


def _converted(model: onnx.ModelProto, opset: int, name: str) -> onnx.ModelProto:
    """Return the model at a higher opset; its inputs and outputs stay as they are."""
    import onnx

    try:
        changed = onnx.version_converter.convert_version(model, opset)
    except (RuntimeError, onnx.version_converter.ConvertError) as exc:
        raise ExportError(
            f"{name} has opset {opset_of(model)}, opset {opset} is needed, and onnx cannot convert it: "
            f"{reason(exc)}",
            hint=f"export the model with opset {opset} or later",
        ) from exc
    needed = onnx.helper.find_min_ir_version_for(list(changed.opset_import), ignore_unknown=True)
    changed.ir_version = max(changed.ir_version, needed)
    return changed


def _tensors(graph: onnx.GraphProto) -> dict[str, TensorInfo]:
    found = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(
                d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim
            )
        found[value.name] = TensorInfo(elem_type=tensor.elem_type, shape=shape)
    for weight in graph.initializer:
        found[weight.name] = TensorInfo(elem_type=weight.data_type, shape=tuple(weight.dims))
    return found
