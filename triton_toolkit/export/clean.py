"""Make an ONNX file depend on the model alone: no stack traces, no paths, the same bytes each time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import host_errors
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import all_graphs, all_tensors, versions_of
from triton_toolkit.export.source import reason

if TYPE_CHECKING:
    import onnx


def strip_traces(model: onnx.ModelProto) -> None:
    """Remove doc strings and metadata at every level, in place.

    The exporter writes the user's stack traces, file paths included, into the metadata of nodes.
    Names of nodes, tensors and dimensions stay.
    """
    model.ClearField("doc_string")
    del model.metadata_props[:]
    for graph in all_graphs(model):
        _strip(graph)
        values = list(getattr(graph, "value_info", ()))
        for kind in ("input", "output"):
            # A function's inputs are names; a graph's are messages.
            values += [value for value in getattr(graph, kind) if not isinstance(value, str)]
        for value in [*graph.node, *values]:
            _strip(value)
        for node in graph.node:
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
    for tensor in all_tensors(model):
        _strip(tensor)


def _strip(
    message: onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto,
) -> None:
    message.ClearField("doc_string")
    del message.metadata_props[:]


def lower_ir_version(model: onnx.ModelProto, highest: int) -> None:
    """Set the IR version to at most ``highest``, in place.

    The IR version says how to read the file; what newer ones brought (metadata on nodes, 4-bit
    types) is either stripped or refused by the checker.

    Raises:
        ExportError: The file's opset needs a newer IR version.
    """
    import onnx

    needed = onnx.helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    if needed > highest:
        raise ExportError(
            f"opset {versions_of(model)['opset'].get('')} needs ONNX IR version {needed}, "
            f"the release reads at most {highest}",
            hint="set a newer release in tt.yaml",
        )
    model.ir_version = min(model.ir_version, highest)


def write_graph(model: onnx.ModelProto, path: Path) -> None:
    """Write a model's message (external data stays where it is), then check the file.

    Raises:
        ExportError: onnx.checker, shapes included, refuses it.
        EnvironmentProblem: The disk is full or read-only.
    """
    with host_errors(f"write {path}"):
        path.write_bytes(model.SerializeToString(deterministic=True))
    check_graph(path)


def check_graph(path: Path) -> None:
    """Run onnx.checker on a file, type and shape inference included.

    Raises:
        ExportError: It refuses the file, with its reason.
    """
    import onnx

    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as exc:
        raise ExportError(
            f"{path.name} is not valid ONNX: {reason(exc)}", hint="the exporter or converter wrote it so"
        ) from exc
