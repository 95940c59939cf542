"""What a config asks of ONNX Runtime's TensorRT accelerator, held against the model that it is to serve.

The accelerator lowers the precision inside of the server, where no build sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.config.message import parse_config
from triton_toolkit.core.releases import EMBEDDED_RELEASE, at_most, has_feature

if TYPE_CHECKING:
    import onnx
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_FALLBACK = "trt_layer_norm_fp32_fallback"
_TRUE = ("true", "on", "1")
"""What the server reads as true, in any case; from backend_common.cc, ParseBoolValue."""

_PARAMETERS = "onnxruntime-tensorrt-parameters"
"""Feature of the releases that know ``_FALLBACK``; before, a parameter they do not know ends the load."""

_MEANS = ("ReduceMean", "ReduceSum")


def accelerator_notes(config: str, version_folder: Path, release: str | None) -> Iterator[str]:
    """Yield what to know of the precision that a config asks TensorRT for; nothing for most configs.

    Args:
        config: Text of the ``config.pbtxt``.
        version_folder: Where the ONNX file lies that it serves.
        release: Oldest Triton container that must run it; None for the embedded server's.

    Source:
        onnxruntime_backend, onnxruntime.cc (the accelerator's parameters); ONNX Runtime's TensorRT
        provider (its fallback finds a Pow before a reduction); TensorRT's explicit quantization, which
        up to version 10 needs the INT8 flag.
    """
    from triton_toolkit.export.context import MODEL_NAME
    from triton_toolkit.export.graph import load_graph

    model = version_folder / MODEL_NAME
    for parameters in _tensorrt(parse_config(config, "config.pbtxt")) if model.is_file() else ():
        graph = load_graph(model)
        mode = parameters.get("precision_mode", "FP32")
        if mode != "FP32":
            yield (
                f"TensorRT is asked to compute in {mode} (precision_mode), which no build can prove: only "
                "`tt deploy` to a server with TensorRT compares it with the golden sample"
            )
        if mode != "INT8" and _is_quantized(graph):
            yield (
                "it has Q/DQ pairs, and TensorRT up to 10 builds no engine of them without precision_mode: "
                f"INT8, which is {mode}"
            )
        if mode == "FP16" and parameters.get(_FALLBACK, "").lower() not in _TRUE:
            yield from _squares(graph, release)


def _tensorrt(config: ModelConfig) -> Iterator[dict[str, str]]:
    if config.backend != "onnxruntime":
        return
    accelerators = config.optimization.execution_accelerators
    for accelerator in accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            yield dict(accelerator.parameters)


def _is_quantized(model: onnx.ModelProto) -> bool:
    return any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)


def _squares(model: onnx.ModelProto, release: str | None) -> Iterator[str]:
    """Yield that there are means of powers, as in a layer norm that is written out."""
    powers = {node.output[0]: node for node in model.graph.node if node.op_type == "Pow"}
    found = [
        powers[node.input[0]].name or powers[node.input[0]].output[0]
        for node in model.graph.node
        if node.op_type in _MEANS and node.input[0] in powers
    ]
    if not found:
        return
    names = ", ".join(map(repr, found[:3])) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    what = f"its layer norms square in FP16, which ends at 65504 (node {names}): "
    container = at_most(release or EMBEDDED_RELEASE).container
    if has_feature(container, _PARAMETERS):
        yield f'{what}give the accelerator the parameter {_FALLBACK}: "1"'
    else:
        yield f"{what}{_FALLBACK}, which would keep them in FP32, needs release 24.04; {container} is older"
