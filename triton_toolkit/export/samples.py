"""Inputs for the proof: the user's sample where there is one, seeded random arrays otherwise."""

from __future__ import annotations

import difflib
import inspect
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import ExportError
from triton_toolkit.export.nesting import flatten
from triton_toolkit.export.source import user_code
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
_SEED = 20240901
_GOLDEN_ROWS = 2


class SampleFunction:
    """The user's ``sample``, which may take sizes.

    Parameters named like dynamic dimensions (or ``**sizes``) receive the sizes wanted; a function
    without them gives arrays at sizes of its own.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        dims: Mapping[str, Dim],
        files: ProjectFiles,
        names: Collection[str] = (),
    ) -> None:
        self._name = name
        self._names = names
        self._function = function
        self._files = files
        self.takes = self._parameters(dims)

    def _parameters(self, dims: Mapping[str, Dim]) -> tuple[str, ...]:
        parameters = inspect.signature(self._function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return tuple(dims)
        for parameter in parameters:
            required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
            if required and (parameter.name not in dims or parameter.kind is parameter.POSITIONAL_ONLY):
                raise ExportError(
                    f"{self._name} needs a parameter {parameter.name!r}, which is no dimension of the model",
                    hint=f"it may take sizes by name: {', '.join(dims) or 'but the model has none'}",
                )
        return tuple(p.name for p in parameters if p.name in dims and p.kind is not p.VAR_POSITIONAL)

    def call(self, sizes: Sizes) -> Arrays:
        """Return what the function gives for these sizes, as arrays by name.

        Raises:
            ExportError: It raises, or does not give named arrays.
        """
        with user_code(f"{self._name} raised", self._files):
            result = self._function(**{name: sizes[name] for name in self.takes})
        return named_arrays(self._name, result, self._names)


class InputMaker:
    """Makes inputs at any sizes; the same job always gives the same ones."""

    def __init__(
        self, inputs: tuple[TensorSpec, ...], dims: Mapping[str, Dim], sample: SampleFunction | None
    ) -> None:
        self._inputs = inputs
        self._dims = dims
        self._sample = sample
        self._fixed: Arrays | None = None
        if sample is not None and not sample.takes:
            self._fixed = sample.call({})
            check_arrays(self._fixed, inputs, "the sample")

    @property
    def from_user(self) -> bool:
        """Whether the inputs come from the user's sample."""
        return self._sample is not None

    def at(self, sizes: Sizes) -> Arrays:
        """Return inputs at these sizes.

        A sample of other sizes is tiled or cropped along its dynamic dimensions, so that values such
        as token ids stay in the range that the user chose.
        """
        if self._sample is None:
            return random_arrays(self._inputs, sizes)
        arrays = self._fixed
        if arrays is None:
            arrays = self._sample.call(sizes)
            check_arrays(arrays, self._inputs, f"the sample for {format_sizes(sizes)}")
        return resized(arrays, self._inputs, sizes)

    def golden_sizes(self, batch_dim: str | None) -> Sizes:
        """Return the sizes of the golden sample.

        The sample's own, where it has fixed ones, brought into the declared ranges; otherwise the
        commonest sizes, with two rows in the batch to keep the file small.
        """
        sizes = {name: dim.opt for name, dim in self._dims.items()}
        if batch_dim is not None and batch_dim in self._dims:
            batch = self._dims[batch_dim]
            sizes[batch_dim] = batch.nearest(max(_GOLDEN_ROWS, batch.min))
        if self._fixed is not None:
            own = sizes_of(self._fixed, self._inputs)
            sizes |= {n: dim.nearest(own[n]) for n, dim in self._dims.items() if n in own}
        return sizes


def random_arrays(inputs: tuple[TensorSpec, ...], sizes: Sizes) -> Arrays:
    """Return seeded random arrays: floats from N(0, 1), integers 0 or 1, BYTES ``b"0"`` or ``b"1"``.

    Integers stay that small because they are mostly indices, and 0 and 1 exist in every table.
    """
    import numpy as np

    arrays: Arrays = {}
    for tensor in inputs:
        shape = tensor.concrete(sizes)
        rng = np.random.default_rng([_SEED, zlib.crc32(tensor.name.encode()), *shape])
        arrays[tensor.name] = _random(rng, tensor.dtype, shape)
    return arrays


def _random(rng: np.random.Generator, dtype: DataType, shape: tuple[int, ...]) -> NDArray[Any]:
    import numpy as np

    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    bits = rng.integers(0, 2, shape)
    if dtype is DataType.BYTES:
        return np.where(bits == 1, b"1", b"0").astype(object)
    return bits.astype(dtype.numpy)


def named_arrays(what: str, value: object, names: Collection[str] = ()) -> Arrays:
    """Return what a function of the user gave as arrays by name.

    Nested values are flattened as those of forward are: ``past.0.key``; None is left out. A list or tuple
    is one array, unless it holds a mapping, or ``names`` has names within it.

    Args:
        what: Begins the messages.
        value: What the function gave.
        names: The inputs' names, where they are known.

    Raises:
        ExportError: It is no mapping, a value is no array, or two have the same name.
    """
    if not isinstance(value, Mapping):
        raise ExportError(
            f"{what} gives an object of type {type(value).__name__}, not a mapping",
            hint='return for example {"image": array}',
        )

    def is_array(name: str, item: Any) -> bool:
        if name in names:
            return True
        if any(other.startswith(f"{name}.") for other in names):
            return False
        return type(item) in (list, tuple) and not any(isinstance(inner, Mapping) for inner in item)

    flat = flatten({str(name): item for name, item in value.items()}, is_array)
    return {name: _to_array(f"{what}: {name}", item) for name, item in flat.items()}


def check_arrays(arrays: Arrays, inputs: tuple[TensorSpec, ...], what: str) -> None:
    """Check names, types, ranks, fixed sizes, and that a dimension has one size everywhere.

    Raises:
        ExportError: One does not fit; ``what`` begins the message.
    """
    wanted = {tensor.name: tensor for tensor in inputs}
    for name in arrays:
        if name not in wanted:
            near = difflib.get_close_matches(name, list(wanted), n=1)
            raise ExportError(
                f"{what} has {name!r}, which is no input" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"inputs: {', '.join(wanted)}",
            )
    for name, tensor in wanted.items():
        if name not in arrays:
            raise ExportError(
                f"{what} lacks input {name!r}", hint=f"it has: {', '.join(arrays) or 'nothing'}"
            )
        _check_array(arrays[name], tensor, what)
    sizes_of(arrays, inputs)


def _check_array(array: NDArray[Any], tensor: TensorSpec, what: str) -> None:
    if str(array.dtype) != tensor.dtype.numpy:
        raise ExportError(
            f"{what}: {tensor.name} has type {array.dtype}, the spec says {tensor.dtype.spec}",
            hint=f'convert it with .astype("{tensor.dtype.numpy}")',
        )
    fits = array.ndim == len(tensor.shape) and all(
        isinstance(extent, str) or extent == size
        for extent, size in zip(tensor.shape, array.shape, strict=True)
    )
    if not fits or 0 in array.shape:
        raise ExportError(
            f"{what}: {tensor.name} has shape {list(array.shape)}, the spec says {list(tensor.shape)}"
        )


def sizes_of(arrays: Arrays, tensors: tuple[TensorSpec, ...]) -> Sizes:
    """Return the size of each dynamic dimension in some arrays.

    Raises:
        ExportError: One dimension has two sizes.
    """
    sizes: Sizes = {}
    where: dict[str, str] = {}
    for tensor in tensors:
        for extent, size in zip(tensor.shape, arrays[tensor.name].shape, strict=True):
            if not isinstance(extent, str):
                continue
            if sizes.setdefault(extent, size) != size:
                raise ExportError(
                    f"dimension {extent!r} is {sizes[extent]} in {where[extent]} but {size} in {tensor.name}"
                )
            where.setdefault(extent, tensor.name)
    return sizes


def format_sizes(sizes: Sizes) -> str:
    """Return sizes as people read them: ``batch=8, seq=128``."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "its fixed sizes"


def resized(arrays: Arrays, inputs: tuple[TensorSpec, ...], sizes: Sizes) -> Arrays:
    """Return arrays of other sizes, tiled or cropped along their dynamic dimensions."""
    return {tensor.name: _resize(arrays[tensor.name], tensor, sizes) for tensor in inputs}


def _resize(array: NDArray[Any], tensor: TensorSpec, sizes: Sizes) -> NDArray[Any]:
    import numpy as np

    for axis, extent in enumerate(tensor.shape):
        if isinstance(extent, str) and array.shape[axis] != sizes[extent]:
            array = np.take(array, np.arange(sizes[extent]) % array.shape[axis], axis=axis)
    return array


def _to_array(what: str, value: object) -> NDArray[Any]:
    """Return a tensor, array, list or scalar as an array; text becomes UTF-8 bytes."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as exc:  # ragged lists
        raise ExportError(f"{what} is not an array: {exc}") from exc
    if array.dtype.kind not in "OSU":
        return array
    encoded = [item.encode() if isinstance(item, str) else item for item in array.ravel().tolist()]
    for item in encoded:
        if not isinstance(item, bytes):
            raise ExportError(f"{what} holds values of type {type(item).__name__}, not numbers or bytes")
    result = np.empty(len(encoded), dtype=object)
    result[:] = encoded
    return result.reshape(array.shape)
