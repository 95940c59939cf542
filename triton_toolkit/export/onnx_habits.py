"""What ONNX files bring along from how they were made: training mode, random numbers, counted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from triton_toolkit.errors import ExportError
from triton_toolkit.export.finish import contrib_operators
from triton_toolkit.export.graph import all_graphs
from triton_toolkit.export.job import ExportJob

if TYPE_CHECKING:
    import onnx

_RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def check_drawn(model: onnx.ModelProto, source: str, *, same: bool) -> None:
    """Refuse a file that draws random numbers, unless they have no effect, or was exported for training.

    Args:
        model: The graph.
        source: The file's name.
        same: Whether two runs on the same inputs gave the same outputs, bit for bit.

    Raises:
        ExportError: Names the nodes.
    """
    drawn = [] if same else [_words(node) for node in _nodes(model) if node.op_type in _RANDOM]
    training = [_words(node) for node in _training(model)]
    if drawn:
        raise ExportError(
            f"the model is not deterministic: random numbers are drawn by {', '.join(drawn)}",
            hint="make the noise an input of the model",
        )
    if training:
        raise ExportError(
            f"{source} was exported in training mode: {', '.join(training)}",
            hint="call model.eval() before the export, and do not export with TrainingMode.TRAINING",
        )


def notes_on(model: onnx.ModelProto, job: ExportJob) -> Iterator[str]:
    """Yield what the user should know of a file that is legal as it is."""
    contrib = contrib_operators(model)
    if contrib:
        yield (
            f"{job.source} has operators of ONNX Runtime's own ({', '.join(contrib)}): TensorRT has none of "
            "them, and another version of ONNX Runtime may lack some"
        )
    weights = {weight.name for weight in model.graph.initializer}
    values = [("input", v.name) for v in model.graph.input if v.name not in weights]
    values += [("output", v.name) for v in model.graph.output]
    for kind, name in values:
        if name.isdigit():
            yield (
                f"{kind} {name!r} is a name that an exporter counted up, and another export may count "
                f"otherwise: give {kind}_names when exporting"
            )


def _training(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    import onnx

    true = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.BOOL and bool(onnx.numpy_helper.to_array(tensor).all())
    }
    for node in _nodes(model):
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            if tensor.data_type == onnx.TensorProto.BOOL and bool(onnx.numpy_helper.to_array(tensor).all()):
                true.add(node.output[0])
    for node in _nodes(model):
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in true:
            yield node
        if node.op_type == "BatchNormalization" and any(
            attribute.name == "training_mode" and attribute.i for attribute in node.attribute
        ):
            yield node


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    return (node for graph in all_graphs(model) for node in graph.node)


def _words(node: onnx.NodeProto) -> str:
    return f"node {node.name!r} ({node.op_type})" if node.name else node.op_type
