"""Where in a graph something goes wrong: the first node that gives NaN, or other values than it should."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.export.session import RunFailed, Session

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
_AT_ONCE = 64
"""Tensors that one run exposes: ONNX Runtime holds them all until it ends."""

_WRONG = 1e-3
"""An error of a tensor above this share of its largest magnitude is more than rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """One node of a graph.

    Attributes:
        node: Its name.
        operator: Its operator type.
        place: ``file:line, in function`` of the user's code that it comes from, empty where unknown.
        tensor: The output that shows it.
        figures: What it gives, in words.
    """

    node: str
    operator: str
    place: str
    tensor: str
    figures: str

    def __str__(self) -> str:
        """Return it as part of a sentence."""
        made = f", made from {self.place}" if self.place else ""
        return f"node {self.node!r} ({self.operator}{made}): {self.figures}"


def first_nonfinite(
    path: Path,
    inputs: Arrays,
    *,
    infinite: bool = False,
    sources: Mapping[str, str] | None = None,
) -> Located | None:
    """Find the first node that gives a NaN (or an infinity) where its inputs have none.

    Nodes inside of If, Loop and Scan are not shown by any runtime; the outer node is named.

    Args:
        path: ONNX file; it is run node by node, without graph optimizations.
        inputs: Inputs that show it.
        infinite: Look for infinities too; attention masks use them on purpose.
        sources: Node name -> place in the user's code.

    Returns:
        The node, or None where all values are finite, or the graph does not run.
    """
    import numpy as np

    def bad(array: NDArray[Any]) -> bool:
        if not np.issubdtype(array.dtype, np.floating):
            return False
        return bool((~np.isfinite(array)).any() if infinite else np.isnan(array).any())

    model = load_graph(path)
    for node, values in _values(path, model, inputs, with_inputs=True):
        outputs = {name: values[name] for name in node.output if name in values}
        wrong = next((name for name, array in outputs.items() if bad(array)), None)
        if wrong is not None and not any(bad(values[n]) for n in node.input if n in values):
            of = "; ".join(
                f"{n} is {_range(values[n])}" for n in node.input if n in values and values[n].size
            )
            kind = "NaN" if np.isnan(outputs[wrong]).any() else "an infinity"
            return _located(node, wrong, sources, f"gives {kind}" + (f" where {of}" if of else ""))
    return None


def first_diverging(
    path: Path,
    inputs: Arrays,
    expected: Arrays,
    *,
    exact: bool = True,
    sources: Mapping[str, str] | None = None,
) -> Located | None:
    """Find the first node whose values are not the expected ones.

    Args:
        path: ONNX file; it is run node by node, without graph optimizations.
        inputs: Inputs that show it.
        expected: Tensors of the graph by name, as many as are known.
        exact: Whether a tensor of another shape is wrong; or passed over, as another one.
        sources: Node name -> place in the user's code.

    Returns:
        The node, or None where all known tensors are right, or the graph does not run.
    """
    model = load_graph(path)
    for node, values in _values(path, model, inputs, only=expected.keys()):
        for name in node.output:
            if name in values and (exact or values[name].shape == expected[name].shape):
                figures = _divergence(values[name], expected[name])
                if figures:
                    return _located(node, name, sources, figures)
    return None


def first_changed_by_optimization(
    path: Path, inputs: Arrays, *, sources: Mapping[str, str] | None = None
) -> Located | None:
    """Find the first node whose values ONNX Runtime's graph optimizations change.

    To expose a tensor keeps it from being optimized away, so one is exposed at a time, in a search by
    halves along the graph.
    """
    model = load_graph(path)
    plain = {name: value for _, values in _values(path, model, inputs) for name, value in values.items()}
    nodes = [(node, name) for node in model.graph.node for name in node.output if name in plain]

    def figures(index: int) -> str:
        name = nodes[index][1]
        session = Session(path, content=_exposing(model, [name]))
        return _divergence(session.predict(inputs)[name], plain[name])

    low, high = 0, len(nodes) - 1
    try:
        if high < 0 or not figures(high):
            return None
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if figures(middle) else (middle + 1, high)
        node, name = nodes[low]
        return _located(node, name, sources, figures(low))
    except (RunFailed, ExportError):
        return None


def _values(
    path: Path,
    model: onnx.ModelProto,
    inputs: Arrays,
    *,
    only: Container[str] | None = None,
    with_inputs: bool = False,
) -> Iterator[tuple[onnx.NodeProto, dict[str, NDArray[Any]]]]:
    """Yield each node of the main graph with values of its outputs, in the graph's order.

    Args:
        path: The file.
        model: Its graph.
        inputs: Inputs.
        only: The tensors that are wanted; all without.
        with_inputs: Also give the values of what nodes take, weights apart.
    """
    nodes = list(model.graph.node)
    computed = {name for node in nodes for name in node.output}
    for start in range(0, len(nodes), _AT_ONCE):
        group = nodes[start : start + _AT_ONCE]
        names = dict.fromkeys(n for node in group for n in node.output if n and (only is None or n in only))
        if with_inputs:
            names |= dict.fromkeys(n for node in group for n in node.input if n in computed)
        values: dict[str, NDArray[Any]] = dict(inputs) if with_inputs else {}
        if names:
            with contextlib.suppress(RunFailed, ExportError):  # what cannot be an output is not shown
                session = Session(path, optimized=False, content=_exposing(model, list(names)))
                found = session.predict(inputs)
                # A value of another kind, such as a sequence, is no array.
                values |= {n: value for n, value in found.items() if hasattr(value, "dtype")}
        for node in group:
            yield node, values


def _exposing(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """Return the model's bytes with these tensors as its only outputs."""
    import onnx

    outputs = list(model.graph.output)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    content: bytes = model.SerializeToString(deterministic=True)
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    return content


def _divergence(got: NDArray[Any], wanted: NDArray[Any]) -> str:
    """Say how a tensor differs from what it should be; empty where it does not, rounding apart."""
    import numpy as np

    if got.shape != wanted.shape:
        return f"gives shape {list(got.shape)}, expected {list(wanted.shape)}"
    if not np.issubdtype(wanted.dtype, np.number) or not got.size:
        return "" if np.array_equal(got, wanted) else "gives other values than expected"
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.where(same, 0.0, np.nan_to_num(np.abs(a - b), nan=np.inf))
    finite = np.abs(b[np.isfinite(b)])
    if float(error.max()) <= _WRONG * float(finite.max() if finite.size else 0.0):
        return ""
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(error)), error.shape))
    return f"gives {a[at]:.6g} at {list(at)}, expected {b[at]:.6g}"


def _range(array: NDArray[Any]) -> str:
    import numpy as np

    if not np.issubdtype(array.dtype, np.number):
        return str(array.dtype)
    return f"{array.min():.6g}" if array.size == 1 else f"from {array.min():.6g} to {array.max():.6g}"


def _located(node: onnx.NodeProto, tensor: str, sources: Mapping[str, str] | None, figures: str) -> Located:
    place = (sources or {}).get(node.name, "")
    return Located(node=node.name, operator=node.op_type, place=place, tensor=tensor, figures=figures)
