"""The range of every float32 tensor in a graph, seen on real inputs.

What FP16 can hold is a question of magnitudes, and ONNX Runtime's CPU cannot be asked it: it
computes FP16 graphs in FP32, so an overflow shows in no output. The magnitudes of the FP32 graph
answer it instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.session import RunFailed, Session

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_FIRST_TENSORS = 32
"""Tensors that the first session exposes, before their sizes are known."""

_MOST_BYTES = 256 * 2**20
"""Exposed tensors of one run: ONNX Runtime holds them all until it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRange:
    """What values a tensor had. Figures are over its finite values, 0 where it had none.

    Attributes:
        low: Smallest.
        high: Largest.
        absmax: Largest magnitude.
        smallest_nonzero: Smallest magnitude other than 0; 0 where all are 0.
        nan: Whether a NaN was among them.
        inf: Whether an infinity was among them.
        whole: Whether all were whole numbers.
        elements: Most elements that it had in one run.
        lowest_peak: Smallest of the largest values of its rows, along the last axis.
    """

    low: float
    high: float
    absmax: float
    smallest_nonzero: float
    nan: bool = False
    inf: bool = False
    whole: bool = False
    elements: int = 1
    lowest_peak: float = 0.0

    def joined(self, other: TensorRange) -> TensorRange:
        """Return the range of both."""
        smallest = [r.smallest_nonzero for r in (self, other) if r.smallest_nonzero > 0]
        return TensorRange(
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            absmax=max(self.absmax, other.absmax),
            smallest_nonzero=min(smallest, default=0.0),
            nan=self.nan or other.nan,
            inf=self.inf or other.inf,
            whole=self.whole and other.whole,
            elements=max(self.elements, other.elements),
            lowest_peak=min(self.lowest_peak, other.lowest_peak),
        )


def range_of(array: NDArray[Any]) -> TensorRange:
    """Return the range of one floating-point array."""
    import numpy as np

    finite = array if np.isfinite(array).all() else array[np.isfinite(array)]
    nan, inf = bool(np.isnan(array).any()), bool(np.isinf(array).any())
    if not finite.size:
        return TensorRange(
            low=0.0, high=0.0, absmax=0.0, smallest_nonzero=0.0, nan=nan, inf=inf, elements=array.size
        )
    low, high = float(finite.min()), float(finite.max())
    magnitudes = np.abs(finite)
    smallest = float(np.min(magnitudes, where=magnitudes > 0, initial=np.inf))
    return TensorRange(
        low=low,
        high=high,
        absmax=max(abs(low), abs(high)),
        smallest_nonzero=smallest if smallest < np.inf else 0.0,
        nan=nan,
        inf=inf,
        whole=bool((finite == np.rint(finite)).all()),
        elements=array.size,
        lowest_peak=float(array.max(axis=-1).min()) if array.ndim else high,
    )


def scan_ranges(model: Path, batches: Sequence[Arrays]) -> dict[str, TensorRange]:
    """Run a model node by node and return the range of each float32 input and computed tensor.

    Tensors are exposed a group at a time, so memory stays bounded. Weights are not in the result, nor
    are tensors inside of If, Loop and Scan, which no runtime shows.

    Args:
        model: ONNX file; one with Q/DQ nodes is run as written.
        batches: Real inputs, each at sizes that the model takes.

    Raises:
        ExportError: ONNX Runtime refuses the file, or a run fails; there is no batch.
    """
    if not batches:
        raise ExportError(f"{model.name}: there are no inputs to measure ranges on")
    graph = _inlined(load_graph(model))
    found: dict[str, TensorRange] = {}
    for batch in batches:
        _merge(found, batch)
    todo = _computed(graph)
    group = _FIRST_TENSORS
    while todo:
        exposed, todo = todo[:group], todo[group:]
        largest = _scan(model, graph, exposed, batches, found)
        group = max(1, min(4 * group, int(len(exposed) * _MOST_BYTES / max(largest, 1))))
    return found


def _scan(
    model: Path,
    graph: onnx.ModelProto,
    exposed: Sequence[str],
    batches: Sequence[Arrays],
    found: dict[str, TensorRange],
) -> int:
    """Add the ranges of some tensors to those found; return the most bytes that one run gave."""
    import onnx

    outputs = list(graph.graph.output)
    del graph.graph.output[:]
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in exposed)
    content = graph.SerializeToString(deterministic=True)
    del graph.graph.output[:]
    graph.graph.output.extend(outputs)
    session = Session(model, optimized=False, content=content)
    largest = 0
    for index, batch in enumerate(batches):
        try:
            given = session.predict(batch)
        except RunFailed as exc:
            node = f" in node {exc.node!r} ({exc.operator})" if exc.node else ""
            raise ExportError(
                f"{model.name} fails on batch {index} of the inputs to measure ranges on{node}: {exc.reason}"
            ) from exc
        largest = max(largest, sum(getattr(array, "nbytes", 0) for array in given.values()))
        _merge(found, given)
    return largest


def _merge(found: dict[str, TensorRange], arrays: Arrays) -> None:
    """Join the ranges of float32 arrays with those found before; other types are left out."""
    import numpy as np

    for name, array in arrays.items():
        # An output of unknown type may turn out to be a sequence, which is a list here.
        if getattr(array, "dtype", None) == np.float32:
            now = range_of(array)
            found[name] = found[name].joined(now) if name in found else now


def _computed(model: onnx.ModelProto) -> list[str]:
    """Return the outputs of nodes that are float32, or whose type shape inference does not know."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type for v in [*inferred.input, *inferred.value_info, *inferred.output]}
    names = [name for node in model.graph.node for name in node.output if name]
    return [
        name
        for name in names
        if name not in types or types[name].tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without local functions, with the names that ``read_model`` gives."""
    from onnx.inliner import inline_local_functions

    return inline_local_functions(model) if model.functions else model
