"""What is sent: inputs from the golden sample, else made up from what the server declares.

A case is the input of one row (one request of batch size 1); a payload is what one request
carries. Several different cases take turns, so that a server that mixes up the rows of a batch
gives answers that do not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import RepositoryError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from triton_toolkit.probe.model import LiveModel
    from triton_toolkit.repository.passport import Samples

    Arrays = dict[str, NDArray[Any]]

MAX_CASES = 8
_MAX_CASES_BYTES = 64 << 20
_EXAMPLE_SIZE = 128
_SEED = 20_240_229
_WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "rain", "falls")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the user says about dynamic dimensions.

    Attributes:
        shapes: Input -> full shape; the batch dimension may be left out or must be ``batch_size``.
        dims: Name of a dynamic dimension -> size.
        batch_size: Rows a request; None means 1, or what ``shapes`` say.
        known: Ranges of a passport or the spec: dimension -> [min, opt, max, …]; opt is the default.
        names: Inputs as these name their dimensions; ``dims`` and ``known`` may use those names.
        no_sample_because: Why no golden sample gives sizes; told to who has to give them.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    batch_size: int | None = None
    known: Mapping[str, Sequence[int]] = field(default_factory=dict)
    names: tuple[TensorSpec, ...] = ()
    no_sample_because: str = ""


@dataclass(frozen=True, slots=True)
class Payload:
    """The inputs of one request, and the outputs they must give where those are known."""

    inputs: Arrays
    expected: Arrays | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the tensors, in bytes."""
        return _size_bytes(self.inputs.values())


def batch_size_of(model: LiveModel, sizes: Sizes) -> int:
    """Return the rows that a request carries, checked against the model.

    Raises:
        UsageError: More than the model takes, or ``--shape`` and ``--batch-size`` disagree.
    """
    leading = {
        shape[0]
        for spec in model.inputs
        if model.batched and (shape := sizes.shapes.get(spec.name)) and len(shape) == len(spec.shape)
    }
    if sizes.batch_size is not None:
        leading.add(sizes.batch_size)
    if len(leading) > 1:
        raise UsageError(f"--shape and --batch-size give different batch sizes: {sorted(leading)}")
    rows = leading.pop() if leading else 1
    if not model.batched and rows > 1:
        raise UsageError(
            f"--batch-size {rows}: Triton does not batch model {model.name!r} (max_batch_size 0)",
            hint="give the size of its own dimensions with --shape or --dim",
        )
    if model.batched and rows > model.max_batch_size:
        raise UsageError(
            f"batch size {rows} is more than model {model.name!r} takes: "
            f"its max_batch_size is {model.max_batch_size}"
        )
    return rows


def case_shapes(model: LiveModel, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input for one row, every dynamic dimension given a size.

    Raises:
        UsageError: A dimension has no size (names it), or an option names what the model has not.
    """
    _check_names(model, sizes)
    ranks = {spec.name: len(spec.shape) for spec in model.inputs}
    aliases = {spec.name: spec.shape for spec in sizes.names if len(spec.shape) == ranks.get(spec.name)}
    shapes, open_shapes = {}, {}
    for spec in model.inputs:
        if spec.name in model.optional and spec.name not in sizes.shapes:
            continue
        shape = _case_shape(model, spec, aliases.get(spec.name, ()), sizes)
        shapes[spec.name] = tuple(extent for extent in shape if isinstance(extent, int))
        if len(shapes[spec.name]) < len(shape):
            open_shapes[spec.name] = shape
    if open_shapes:
        raise _open(model, open_shapes, sizes.no_sample_because)
    return shapes


def _open(
    model: LiveModel, shapes: Mapping[str, tuple[int | str, ...]], no_sample_because: str
) -> UsageError:
    """Return the error for inputs with dimensions that nothing gives a size: both ways out, complete."""
    name, shape = next(iter(shapes.items()))
    axis, dim = next((axis, extent) for axis, extent in enumerate(shape) if isinstance(extent, str))
    dims = dict.fromkeys(extent for shape in shapes.values() for extent in shape if isinstance(extent, str))
    others = (
        f" (likewise {', '.join(repr(other) for other in dims if other != dim)})" if len(dims) > 1 else ""
    )
    start = 1 if model.batched else 0  # --shape leaves the batch dimension out
    whole = (
        f"--shape {name}:" + ",".join(str(_EXAMPLE_SIZE if isinstance(e, str) else e) for e in shape[start:])
        for name, shape in shapes.items()
    )
    return UsageError(
        f"input {name!r}: dimension {dim!r} (axis {axis}) is dynamic, and nothing gives its size{others}",
        hint=f"give it with {' '.join(f'--dim {dim}={_EXAMPLE_SIZE}' for dim in dims)}, "
        f"or the whole shape with {' '.join(whole)}"
        + (f"; no golden sample gives it: {no_sample_because}" if no_sample_because else ""),
    )


def _check_names(model: LiveModel, sizes: Sizes) -> None:
    inputs = [spec.name for spec in model.inputs]
    for name in sizes.shapes:
        if name not in inputs:
            raise UsageError(
                f"--shape {name}: model {model.name!r} has no such input", hint=f"inputs: {', '.join(inputs)}"
            )
    dims = {name for spec in (*model.inputs, *sizes.names) for name in spec.dynamic}
    if model.batched:
        dims.discard("batch")
    for name in sizes.dims:
        if name not in dims:
            listed = ", ".join(sorted(dims)) or "none"
            raise UsageError(
                f"--dim {name}: model {model.name!r} has no such dynamic dimension",
                hint=f"dynamic dimensions: {listed}; for the batch dimension use --batch-size",
            )


def _case_shape(
    model: LiveModel, spec: TensorSpec, alias: tuple[int | str, ...], sizes: Sizes
) -> tuple[int | str, ...]:
    """Return the shape of one row; a dimension without a size keeps its name."""
    given = sizes.shapes.get(spec.name)
    if given is not None:
        return _given_shape(model, spec, given)
    shape: list[int | str] = []
    for axis, extent in enumerate(spec.shape):
        if model.batched and axis == 0:
            shape.append(1)
        elif isinstance(extent, int):
            shape.append(extent)
        else:
            names = [extent, *(str(name) for name in alias[axis : axis + 1])]
            shape.append(_size(names, sizes))
    return tuple(shape)


def _given_shape(model: LiveModel, spec: TensorSpec, given: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``--shape`` for one row, checked against what the server declares."""
    rank = len(spec.shape)
    whole = (1, *given) if model.batched and len(given) == rank - 1 else given
    fits = len(whole) == rank and all(
        isinstance(extent, str) or extent == size for extent, size in zip(spec.shape, whole, strict=True)
    )
    if not fits:
        declared = ",".join(str(extent) for extent in spec.shape)
        raise UsageError(
            f"--shape {spec.name}:{','.join(map(str, given))} does not fit the model's input: {declared}"
        )
    return (1, *whole[1:]) if model.batched else whole


def _size(names: list[str], sizes: Sizes) -> int | str:
    """Return the size of a dimension known by any of these names, else the last of them."""
    for name in names:
        if name in sizes.dims:
            return sizes.dims[name]
    for name in names:
        if name in sizes.known:
            return sizes.known[name][1]
    return names[-1]


def generate_cases(model: LiveModel, shapes: Mapping[str, tuple[int, ...]]) -> list[Payload]:
    """Return up to eight different cases of these shapes; the same model gives the same ones.

    Floats are uniform in [0, 1); uint8 covers its range; other integers and booleans are 0 or 1,
    which are valid token ids, masks and indices; strings are a few English words.
    """
    import numpy as np

    rng = np.random.default_rng(_SEED)
    types = {spec.name: spec.dtype for spec in model.inputs}

    def case() -> Payload:
        return Payload({name: _values(rng, types[name], shape) for name, shape in shapes.items()})

    cases = [case()]
    count = min(MAX_CASES, max(1, _MAX_CASES_BYTES // max(1, cases[0].size_bytes)))
    return cases + [case() for _ in range(count - 1)]


def _values(rng: np.random.Generator, dtype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy as np

    if dtype is DataType.BYTES:
        texts = np.empty(shape, dtype=object)
        flat = texts.reshape(-1)
        for index in range(flat.size):
            flat[index] = " ".join(rng.choice(_WORDS, size=4)).encode()
        return texts
    if dtype.is_float:
        return rng.random(shape, dtype=np.float32).astype(dtype.numpy)
    high = 256 if dtype is DataType.UINT8 else 2
    return rng.integers(0, high, size=shape).astype(dtype.numpy)


def check_samples(model: LiveModel, samples: Samples, origin: str) -> None:
    """Check that golden inputs can be sent to this model.

    Outputs are left to the comparison with what the model answers: that tells a wrong sample from a
    model that does not answer as it declares.

    Raises:
        RepositoryError: Names, types or ranks are others, or an output is not one of the model's.
    """
    required = {spec.name for spec in model.inputs} - model.optional
    problems = [f"input {name!r} is missing" for name in sorted(required - set(samples.inputs))]
    declared = {spec.name: spec for spec in model.inputs}
    for name, array in samples.inputs.items():
        spec = declared.get(name)
        if spec is None:
            problems.append(f"the server's model has no input {name!r}")
        elif array.ndim != len(spec.shape):
            problems.append(f"input {name!r} has rank {len(spec.shape)} on the server, {array.ndim} here")
        elif array.dtype != np_dtype(spec.dtype):
            problems.append(f"input {name!r} is {spec.dtype.spec} on the server, {array.dtype} here")
    unknown = sorted(set(samples.outputs) - {spec.name for spec in model.outputs})
    problems += [f"the server's model has no output {name!r}" for name in unknown]
    if model.batched:
        flat = [name for name, array in samples.outputs.items() if array.ndim == 0]
        problems += [f"output {name!r} has no batch dimension here" for name in flat]
    if problems:
        raise RepositoryError(
            f"model {model.name!r} and the golden sample of {origin} do not fit: {'; '.join(problems)}",
            hint="the sample may be another model's or version's, or the config.pbtxt that is served "
            "declares other tensors than the build's",
        )


def np_dtype(dtype: DataType) -> np.dtype[Any]:
    """Return the numpy type of a Triton type."""
    import numpy as np

    return np.dtype(dtype.numpy)


def sample_cases(model: LiveModel, samples: Samples, *, independent: bool) -> list[Payload]:
    """Return the rows of the golden sample as cases; without batching the sample is one case.

    Args:
        model: The model.
        samples: Its golden sample.
        independent: Whether rows are proven not to influence each other. Otherwise a row alone need
            not give what it gave in the sample's batch (texts may be padded to the longest), so the
            sample's outputs are not expected of it.
    """
    rows = _sample_rows(model, samples)
    if rows <= 1:
        return [Payload(dict(samples.inputs), dict(samples.outputs))]
    cases = [_rows_of(samples, row, row + 1) for row in range(min(rows, MAX_CASES))]
    return cases if independent else [Payload(case.inputs) for case in cases]


def golden_payloads(model: LiveModel, samples: Samples) -> list[Payload]:
    """Return the golden sample as it was recorded, or in parts of the most rows that the model takes."""
    rows = _sample_rows(model, samples)
    if rows <= max(1, model.max_batch_size):
        return [Payload(dict(samples.inputs), dict(samples.outputs))]
    size = model.max_batch_size
    return [_rows_of(samples, start, start + size) for start in range(0, rows, size)]


def _sample_rows(model: LiveModel, samples: Samples) -> int:
    if not model.batched:
        return 1
    return min(len(array) for array in (*samples.inputs.values(), *samples.outputs.values()))


def _rows_of(samples: Samples, start: int, stop: int) -> Payload:
    return Payload(
        {name: array[start:stop] for name, array in samples.inputs.items()},
        {name: array[start:stop] for name, array in samples.outputs.items()},
    )


def build_payloads(cases: Sequence[Payload], batch_size: int) -> list[Payload]:
    """Return one payload a case, each with ``batch_size`` rows that follow one another.

    Fewer where together they would take more than 64 MiB, but at least one.
    """
    if batch_size == 1:
        return list(cases)
    count = len(cases)
    payloads = min(count, max(1, _MAX_CASES_BYTES // max(1, cases[0].size_bytes * batch_size)))
    return [join([cases[(first + row) % count] for row in range(batch_size)]) for first in range(payloads)]


def join(cases: Sequence[Payload]) -> Payload:
    """Return one payload with the rows of several cases."""
    import numpy as np

    def rows(arrays: Sequence[Arrays]) -> Arrays:
        return {name: np.concatenate([item[name] for item in arrays]) for name in arrays[0]}

    expected = [case.expected for case in cases if case.expected is not None]
    return Payload(
        rows([case.inputs for case in cases]), rows(expected) if len(expected) == len(cases) else None
    )


def _size_bytes(arrays: Iterable[NDArray[Any]]) -> int:
    return sum(
        sum(len(item) for item in array.ravel()) if array.dtype == object else array.nbytes
        for array in arrays
    )
