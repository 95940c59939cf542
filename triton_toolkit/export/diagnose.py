"""Why an export is not what the model is: looked for once the proof has failed, to say it in the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import compare_outputs
from triton_toolkit.core.dims import Sizes, example_sizes
from triton_toolkit.errors import ExportError
from triton_toolkit.export.baked import differing, holding, listed
from triton_toolkit.export.context import Candidate, Context
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.locate import first_changed_by_optimization, first_diverging, first_nonfinite
from triton_toolkit.export.parity import blame
from triton_toolkit.export.session import RunFailed, Session

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


def diagnose(context: Context, candidate: Candidate, failed: Sequence[Sizes], right: Sequence[Sizes]) -> str:
    """Return what is at fault, as part of a sentence; empty where nothing is found.

    Args:
        context: The run.
        candidate: What failed.
        failed: Combinations of sizes at which it fails.
        right: Those at which it does not.
    """
    sizes = min(failed, key=lambda each: math.prod(each.values()))
    inputs = candidate.maker.at(sizes)
    try:
        wanted = candidate.predict(inputs, "fails")
    except ExportError:  # the original itself fails there
        return "" if candidate.exported else _constants(context, candidate, blame(failed, right), right)
    return (
        _branch(candidate, failed, right)
        or _optimization(context, candidate, inputs, wanted)
        or _constants(context, candidate, blame(failed, right), right)
        or _node(context, candidate, inputs, wanted)
    )


def _branch(candidate: Candidate, failed: Sequence[Sizes], right: Sequence[Sizes]) -> str:
    for branch in candidate.exported.branches if candidate.exported else ():
        if not any(branch.holds(sizes) for sizes in failed) and all(branch.holds(sizes) for sizes in right):
            return f"forward takes another path there: what was exported needs {branch}"
    return ""


def _optimization(context: Context, candidate: Candidate, inputs: Arrays, wanted: Arrays) -> str:
    try:
        plain = Session(context.path, optimized=False)
        got = plain.predict(inputs)
    except (RunFailed, ExportError):
        return ""
    if not all(difference.ok for difference in compare_outputs(got, wanted, context.job.tolerances)):
        return ""
    node = first_changed_by_optimization(context.path, inputs, sources=candidate.sources)
    first = f", first in {node}" if node else ""
    return (
        f"without ONNX Runtime's graph optimizations it is right, so one of those is at fault{first}; serve "
        "it with optimization: {graph: {level: 2}}, which turns them off, or with another ONNX Runtime"
    )


def _constants(context: Context, candidate: Candidate, blamed: Sequence[str], right: Sequence[Sizes]) -> str:
    """Name the nodes that hold the size at which the export was made."""
    if not blamed:
        return ""
    model, exported = load_graph(context.path), candidate.exported
    if exported is not None and exported.again is not None:
        other = exported.again(blamed)
        found = [] if other is None else differing(model, other, candidate.sources)
    else:
        sizes = [example_sizes(candidate.dims)] if exported else right
        found = holding(model, sorted({each[name] for each in sizes for name in blamed}), candidate.sources)
    if not found:
        return ""
    return f"the size of {' and '.join(map(repr, blamed))} stands in the graph as a constant: {listed(found)}"


def _node(context: Context, candidate: Candidate, inputs: Arrays, wanted: Arrays) -> str:
    """Name the first node whose values are not those of PyTorch."""
    located = None if _has_nan(wanted) else first_nonfinite(context.path, inputs, sources=candidate.sources)
    inner = candidate.exported.inner(inputs) if candidate.exported and located is None else None
    if inner is not None:
        differences = compare_outputs(
            inner.outputs, {n: wanted[n] for n in inner.outputs}, context.job.tolerances
        )
        if not all(difference.ok for difference in differences):
            return "the program of torch.export is already not what the model is"
        located = first_diverging(
            context.path, inputs, inner.values, exact=inner.exact, sources=candidate.sources
        )
    return f"the first node that is not what PyTorch has: {located}" if located else ""


def _has_nan(arrays: Arrays) -> bool:
    import numpy as np

    floats = (array for array in arrays.values() if np.issubdtype(array.dtype, np.floating))
    return any(bool(np.isnan(array).any()) for array in floats)
