"""Calibration: the ranges of inner tensors on real data, by three methods, in one pass."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress, Silent
from triton_toolkit.errors import ExportError
from triton_toolkit.export.session import RunFailed, Session
from triton_toolkit.optimise.calibration_cache import CalibrationCache
from triton_toolkit.optimise.int8_plan import tensors_to_calibrate
from triton_toolkit.optimise.job import METHODS
from triton_toolkit.optimise.layers import Graph, check_floating_point, node_name
from triton_toolkit.optimise.model_file import PER_CHANNEL_OPSET, read_model
from triton_toolkit.optimise.thresholds import Histogram

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
Table = dict[str, tuple[float, float]]

LEAST_SAMPLES = 32
"""Fewest different samples. After n of them the next one exceeds the range seen of a tensor with
probability 1/(n + 1), whatever its distribution: 3 % at 32, and there are many tensors."""

_RANGE: dict[str, Callable[[Histogram], tuple[float, float]]] = {
    "minmax": Histogram.minmax,
    "entropy": Histogram.entropy,
    "percentile": Histogram.percentile,
}

_MOST_BYTES = 512 * 2**20
"""Inner tensors that are held at one time."""

_UNKNOWN_BYTES = _MOST_BYTES // 16
"""Size that is assumed of an inner tensor before it was seen, where shape inference does not tell."""


def check_calibration(batches: Sequence[Arrays], *, batched: bool = True, least: int = LEAST_SAMPLES) -> int:
    """Check that data can tell ranges; returns the number of different samples.

    Args:
        batches: Named input arrays.
        batched: Whether the first axis of every input counts samples; else a batch is one sample.
        least: Fewest samples that will do.

    Raises:
        ExportError: Too few samples, or mostly the same ones; a floating-point input that never
            changes; NaN or infinity.
    """
    for index, batch in enumerate(batches):
        for name, array in batch.items():
            check_finite(f"calibration: batch {index}, input {name!r}", array)
    samples = sum(rows(batch, batched) for batch in batches)
    why = (
        f"INT8 needs at least {least}: after n samples the next one leaves the range seen of a tensor "
        "with probability 1/(n + 1)"
    )
    if samples < least:
        raise ExportError(
            f"calibration has {samples} sample{'s' * (samples != 1)}; {why}",
            hint="let calibration give more inputs, as varied as those that will be served",
        )
    _check_varied(batches)
    different = len({digest for batch in batches for digest in _digests(batch, batched)})
    if different < least:
        raise ExportError(
            f"calibration has {samples} samples, but only {different} different one{'s' * (different != 1)}; "
            f"{why}",
            hint="give different inputs, not the same ones again",
        )
    return different


def check_finite(what: str, array: NDArray[Any]) -> None:
    """Refuse an array with NaN or infinity; ``what`` begins the message.

    Raises:
        ExportError: It has one; says the first and where.
    """
    import numpy as np

    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        place = [int(i) for i in np.argwhere(~np.isfinite(array))[0]]
        raise ExportError(
            f"{what} holds {array[tuple(place)]} at {place}",
            hint="calibration data has to be finite; look at how it is preprocessed",
        )


def _check_varied(batches: Sequence[Arrays]) -> None:
    """Refuse a floating-point input of several values that are all one and the same."""
    import numpy as np

    for name, first in batches[0].items():
        if not np.issubdtype(first.dtype, np.floating) or first.size < 2:
            continue
        value = first.reshape(-1)[0]
        if all((batch[name] == value).all() for batch in batches):
            raise ExportError(
                f"calibration: input {name!r} is {value:g} everywhere, in all samples",
                hint="give real inputs; ranges measured on a constant mean nothing",
            )


def rows(batch: Arrays, batched: bool) -> int:
    """Return how many samples a batch has: its rows, or one where no axis is the batch."""
    return min(len(array) for array in batch.values()) if batched else 1


def _digests(batch: Arrays, batched: bool) -> list[bytes]:
    """Return a digest of each sample of a batch."""
    arrays = [batch[name] for name in sorted(batch)]
    if not batched:
        return [_digest(arrays)]
    return [_digest([array[row : row + 1] for array in arrays]) for row in range(rows(batch, batched))]


def _digest(arrays: Sequence[NDArray[Any]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(repr((array.dtype.str, array.shape)).encode())
        digest.update(_bytes(array))
    return digest.digest()


def _bytes(array: NDArray[Any]) -> bytes:
    """Return the bytes of an array; BYTES elements with their lengths."""
    if array.dtype != object:
        return array.tobytes()
    return b"".join(b"%d:%b" % (len(item), item) for item in array.reshape(-1).tolist())


def data_digest(batches: Sequence[Arrays]) -> str:
    """Return a digest of calibration data: names, types, shapes and values, in their order."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(repr(sorted(batch)).encode())
        for sample in _digests(batch, batched=False):
            digest.update(sample)
    return digest.hexdigest()


def calibrate(
    model: Path,
    batches: Sequence[Arrays],
    methods: Sequence[str] = METHODS,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Table]:
    """Measure the ranges of the tensors that INT8 would quantize.

    Args:
        model: The FP32 file.
        batches: Real inputs; see ``check_calibration``.
        methods: Of ``minmax`` (the extremes), ``entropy`` (``thresholds.entropy_bins``) and
            ``percentile`` (99.99 % of the magnitudes other than 0).
        cache: Folder of calibration tables: one is taken where model, data, method and versions are
            the same and it has all tensors.
        progress: Told of each batch.

    Returns:
        Method -> tensor -> (low, high). Infinite bounds are infinities in the tensor.

    Raises:
        ExportError: The model is quantized already or fails on a batch, or a tensor holds NaN.
    """
    tables: dict[str, Table] = {}
    graph = Graph(read_model(model, opset=PER_CHANNEL_OPSET, weights=False))
    check_floating_point(graph)
    tensors = tensors_to_calibrate(graph)
    store = None if cache is None else CalibrationCache(cache, model, data_digest(batches))
    for method in methods:
        if store is not None and (found := store.get(method, tensors)) is not None:
            tables[method] = found
    missing = [method for method in methods if method not in tables]
    if not missing:
        return tables
    histograms = _measure(graph, model, tensors, batches, progress or Silent())
    for method in missing:
        tables[method] = {tensor: _RANGE[method](histograms[tensor]) for tensor in tensors}
        if store is not None:
            store.put(method, tables[method])
    return {method: tables[method] for method in methods}


def _measure(
    graph: Graph, path: Path, tensors: Sequence[str], batches: Sequence[Arrays], progress: Progress
) -> dict[str, Histogram]:
    """Run the model on all batches and take in what the tensors hold.

    The session is optimized, as ten times faster: exposed tensors survive every rewrite of the graph.
    """
    histograms = {tensor: Histogram() for tensor in tensors}
    inputs = {value.name for value in graph.file.model.graph.input}
    inner = [tensor for tensor in tensors if tensor not in inputs]
    session = Session(path, content=_exposing(graph, inner))
    sizes: dict[str, int] = {}
    for index, batch in enumerate(batches):
        progress.step(path.name, f"calibrate: batch {index + 1} of {len(batches)}")
        for tensor in inputs.intersection(tensors):
            histograms[tensor].add(batch[tensor])
        sizes |= _known_sizes(graph, batch, inner)
        for group in _groups(inner, sizes):
            for tensor, array in _run(session, batch, group, index).items():
                histograms[tensor].add(array)
                sizes[tensor] = array.nbytes
                if histograms[tensor].has_nan:
                    raise _nan(graph, tensor, index)
    return histograms


def _exposing(graph: Graph, tensors: Sequence[str]) -> bytes:
    """Return the model's bytes with some inner tensors as further outputs."""
    import onnx

    model = graph.file.model
    own = len(model.graph.output)
    for name in tensors:
        if name not in graph.outputs:
            kind = graph.elem_type(name) or onnx.TensorProto.FLOAT
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, None))
    content: bytes = model.SerializeToString()
    del model.graph.output[own:]
    return content


def _known_sizes(graph: Graph, batch: Arrays, tensors: Sequence[str]) -> dict[str, int]:
    """Return the bytes of the tensors whose shapes follow from those of the inputs."""
    extents: dict[int | str | None, int] = {}
    for name, array in batch.items():
        info = graph.file.tensors.get(name)
        if info is not None and info.shape is not None:
            extents |= {name: n for name, n in zip(info.shape, array.shape, strict=False) if name}
    found = {}
    for tensor in tensors:
        info = graph.file.tensors.get(tensor)
        shape = None if info is None else info.shape
        if shape is not None and all(isinstance(size, int) or size in extents for size in shape):
            found[tensor] = 4 * math.prod(size if isinstance(size, int) else extents[size] for size in shape)
    return found


def _groups(tensors: Sequence[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """Return tensors in groups that fit in memory together."""
    groups: list[list[str]] = []
    room = 0
    for tensor in tensors:
        need = sizes.get(tensor, _UNKNOWN_BYTES)
        if not groups or need > room:
            groups.append([])
            room = _MOST_BYTES
        groups[-1].append(tensor)
        room -= need
    return groups


def _run(session: Session, batch: Arrays, tensors: Sequence[str], index: int) -> dict[str, NDArray[Any]]:
    try:
        return session.predict(batch, tensors)
    except RunFailed as exc:
        node = f" in node {exc.node!r} ({exc.operator})" if exc.node else ""
        raise ExportError(f"the model fails on calibration batch {index}{node}: {exc.reason}") from exc


def _nan(graph: Graph, tensor: str, index: int) -> ExportError:
    node = graph.producer.get(tensor)
    maker = f", which node {node_name(node)!r} ({node.op_type}) computes," if node is not None else ""
    return ExportError(
        f"tensor {tensor!r}{maker} holds NaN on calibration batch {index}",
        hint="the FP32 model itself gives no number there; look at that input, or at the model",
    )
