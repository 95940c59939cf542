"""INT8 layers with the rest in FP16: Q/DQ pairs whose scales are FP16."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from triton_toolkit.core.releases import first_to_load
from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.fp16 import HALF_QDQ_OPSET, to_fp16
from triton_toolkit.optimise.fp16_limits import LIMIT
from triton_toolkit.optimise.int8 import planned, rewrite
from triton_toolkit.optimise.int8_plan import Ranges
from triton_toolkit.optimise.layers import node_name
from triton_toolkit.optimise.model_file import opset_of, read_model, write_model
from triton_toolkit.optimise.ranges import TensorRange
from triton_toolkit.optimise.weights import LEVELS

_IR_VERSION = 9
"""IR version that opset 19 needs."""


def to_int8_fp16(
    model: Path,
    out: Path,
    table: Ranges,
    *,
    ranges: Mapping[str, TensorRange],
    keep: Collection[str] = (),
    highest_opset: int | None = None,
) -> Converted:
    """Write a model with INT8 layers as ``to_int8`` makes them, and the rest as ``to_fp16`` does.

    A Q/DQ model whose rest is FP32 gains little: TensorRT runs it as it is typed. Scales are rounded
    to FP16 before the weights are, so that no error comes from the scales. Weights always have 8 bits:
    what runs FP16 does not run INT8 on a CPU without VNNI. A model of an older opset
    is brought to 19, the first whose Q/DQ take FP16.

    Args:
        model: The FP32 file.
        out: The file to write; large weights go beside it.
        table: Tensor -> (low, high), as ``calibrate`` gives them.
        ranges: Tensor -> range, as ``scan_ranges`` gives them for the FP32 file.
        keep: Names of nodes that stay in FP32.
        highest_opset: Highest opset that the serving release runs; None for any.

    Returns:
        ``kept`` has the layers that are not in INT8 and the nodes that are in FP32, each with its reason.

    Raises:
        ExportError: The release does not run opset 19, and what ``to_int8`` and ``to_fp16`` say.
    """
    if opset_of(load_graph(model)) < HALF_QDQ_OPSET and (highest_opset or HALF_QDQ_OPSET) < HALF_QDQ_OPSET:
        first = first_to_load(opset=HALF_QDQ_OPSET, ir_version=_IR_VERSION)
        raise ExportError(
            f"INT8 with the rest in FP16 needs opset {HALF_QDQ_OPSET}, whose Q/DQ take FP16; the release "
            f"runs at most {highest_opset}",
            hint=f'set release: "{first}" or later in tt.yaml, or precision: int8',
        )
    file = read_model(model, opset=HALF_QDQ_OPSET)
    own = {node_name(node) for node in file.model.graph.node}
    plan = planned(file, model.name, table, keep, largest=LIMIT)
    rewrite(file, plan, table, levels=LEVELS, half=True)
    with tempfile.TemporaryDirectory(prefix=".tt-int8-", dir=out.parent) as folder:
        between = Path(folder, out.name)
        write_model(file.model, between)
        halved = to_fp16(between, out, ranges=ranges, keep=keep)
    kept = dict(plan.kept)
    for name, reason in halved.kept.items():
        kept[name] = f"{kept[name]}; in FP32: {reason}" if name in kept else reason
    return Converted(kept=kept, cut=halved.cut, lowered=tuple(name for name in halved.lowered if name in own))
