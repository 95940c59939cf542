"""FP16: cast in the graph, with what FP16 cannot hold left in FP32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from triton_toolkit.errors import ExportError
from triton_toolkit.export.job import EXTERNAL_DATA_BYTES
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.fp16_plan import ISLAND, plan_fp16
from triton_toolkit.optimise.fp16_rewrite import rewrite_fp16
from triton_toolkit.optimise.int8_plan import check_keep
from triton_toolkit.optimise.layers import Graph
from triton_toolkit.optimise.model_file import ModelFile, opset_of, read_model, write_model
from triton_toolkit.optimise.ranges import TensorRange

HALF_QDQ_OPSET = 19
"""First opset whose QuantizeLinear and DequantizeLinear take FP16."""


def to_fp16(
    model: Path,
    out: Path,
    *,
    ranges: Mapping[str, TensorRange],
    keep: Collection[str] = (),
    external_data_bytes: int = EXTERNAL_DATA_BYTES,
) -> Converted:
    """Write a model's FP16 variant.

    Inputs, outputs, opset, IR version and the names of nodes stay. A node stays in FP32 where its
    measured values or constants overflow, vanish or must be exact, where ONNX gives it no FP16 form,
    and where it lies between such nodes only. Masks and bounds beyond FP16 are cut where that
    provably changes nothing. Both are in the result, each with its reason.

    Args:
        model: The FP32 file, or one with Q/DQ nodes whose rest is FP32.
        out: The file to write; large weights go beside it.
        ranges: Tensor -> range, as ``scan_ranges`` gives them for this very file.
        keep: Names of nodes that stay in FP32; of an unnamed node, its first output.
        external_data_bytes: Weights larger than this in total are stored beside the model.

    Raises:
        ExportError: Nothing of the model can be FP16 (where ``keep`` is the reason, it is written in
            FP32); it has Q/DQ nodes at an opset whose Q/DQ take FP32 only; its external data is
            missing; ``keep`` names no node.
    """
    file = read_model(model)
    graph = Graph(file)
    _check_quantized(file, model)
    check_keep(graph, keep)
    plan = plan_fp16(graph, ranges, keep)
    kept = {plan.slots[index].name: reason for index, reason in sorted(plan.kept.items())}
    lowered = tuple(slots.name for index, slots in enumerate(plan.slots) if plan.is_half(index))
    if not lowered and not set(keep) & kept.keys():
        raise ExportError(
            f"{model.name}: nothing of it can run in FP16{_most(kept)}", hint="serve it in fp32"
        )
    cut = {plan.slots[index].name: clamp.reason for (index, _), clamp in sorted(plan.clamps.items())}
    rewrite_fp16(graph, plan)
    write_model(file.model, out, external_data_bytes=external_data_bytes)
    return Converted(kept=kept, cut=cut, lowered=lowered)


def _check_quantized(file: ModelFile, path: Path) -> None:
    opset = opset_of(file.model)
    if opset >= HALF_QDQ_OPSET:
        return
    for node in file.model.graph.node:
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            raise ExportError(
                f"{path.name} has {node.op_type} nodes at opset {opset}, which take FP32 only; "
                f"the rest in FP16 needs opset {HALF_QDQ_OPSET}",
                hint=f"make the INT8 model at opset {HALF_QDQ_OPSET} or later",
            )


def _most(kept: Mapping[str, str]) -> str:
    """Return the commonest reason that a node has of its own, with one node that has it."""
    if not kept:
        return ": it has no float32 nodes"
    own = {name: reason for name, reason in kept.items() if reason != ISLAND}
    reason, count = Counter(own.values()).most_common(1)[0]
    name = next(name for name, why in own.items() if why == reason)
    others = f" and {count - 1} others" if count > 1 else ""
    return f": for example {name!r}{others}, since {reason}"
