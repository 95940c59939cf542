"""The inputs that ranges are measured on, and those that a variant is compared on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from triton_toolkit.core.dims import proof_sizes
from triton_toolkit.errors import ExportError
from triton_toolkit.export.samples import (
    InputMaker,
    SampleFunction,
    check_arrays,
    named_arrays,
    resized,
    sizes_of,
)
from triton_toolkit.export.source import user_code
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.user_code import UserCode
from triton_toolkit.optimise.calibration import check_calibration, check_finite, rows
from triton_toolkit.optimise.job import OptimiseJob

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

_HELD_OUT = 4
"""One batch in so many is held out: enough to compare on, and most is left to measure ranges with."""

MOST_SAMPLES = 4096
"""Samples that are read at most: the next one leaves a range seen with probability 1 / 4097, and a whole
training set would only take time."""

_FEW_ROWS = 4
"""Rows at sizes that the calibration data does not have."""

_MOST_BYTES = 2**30
"""Calibration data beyond this is left unread, for the memory's sake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Input batches of one model.

    Attributes:
        fit: Batches that ranges are measured on.
        held_out: Batches that variants are compared on; the same ones where there is only one.
        origin: Where they come from.
        samples: How many samples (batches, where no axis is the batch) there are in all.
        cut: Whether the calibration function had more to give than was read.
    """

    fit: tuple[Arrays, ...]
    held_out: tuple[Arrays, ...]
    origin: Literal["calibration", "sample", "random"]
    samples: int
    cut: bool = False

    @property
    def held_out_is_fit(self) -> bool:
        """Whether nothing could be held out."""
        return self.fit[0] is self.held_out[0]


def load_data(job: OptimiseJob, files: ProjectFiles, functions: UserCode) -> Data:
    """Call the user's calibration function; without one, make inputs as the export's proof does.

    Raises:
        ExportError: The function does not import, raises, or its arrays do not fit the inputs.
    """
    sample = None
    if job.sample is not None:
        names = [tensor.name for tensor in job.inputs]
        loaded = functions.load(job.sample, names)
        sample = SampleFunction(job.sample, loaded, job.dims, files, names)
    if job.calibration is not None:
        batches, cut = calibration_batches(job, files, functions)
        if job.precision in ("int8", "int8-fp16"):
            check_calibration(batches, batched=job.batched)
        fit, held_out = (part + _at_other_sizes(job, part, sample) for part in split(batches, job.batched))
        samples = sum(rows(batch, job.batched) for batch in batches)
        return Data(fit=fit, held_out=held_out, origin="calibration", samples=samples, cut=cut)
    maker = InputMaker(job.inputs, job.dims, sample)
    made = tuple(maker.at(sizes) for sizes in proof_sizes(job.dims))
    samples = sum(rows(batch, job.batched) for batch in made)
    origin: Literal["sample", "random"] = "random" if sample is None else "sample"
    return Data(fit=made, held_out=made, origin=origin, samples=samples)


def _at_other_sizes(
    job: OptimiseJob, batches: Sequence[Arrays], sample: SampleFunction | None
) -> tuple[Arrays, ...]:
    """Return a few rows of real inputs at the smallest and the largest sizes that are declared.

    Calibration data often has one size, and what a reduction over a dimension gives grows with it: a
    variant holds for the whole range that its passport names. A sample function that takes these sizes
    makes the inputs: it knows what is legal, as indices of nodes are that there are. Otherwise rows are
    repeated or cut along the dimension, so that values stay real.
    """
    dims = {name: dim for name, dim in job.dims.items() if name != job.batch_dim}
    if not dims:
        return ()
    batch = {} if job.batch_dim is None else {job.batch_dim: min(_FEW_ROWS, job.dims[job.batch_dim].max)}
    ends = [{name: dim.min for name, dim in dims.items()}, {name: dim.max for name, dim in dims.items()}]
    given = sizes_of(batches[0], job.inputs)
    wanted = [{**batch, **end} for end in ends if any(given.get(name) != size for name, size in end.items())]
    if sample is not None and dims.keys() <= set(sample.takes):
        maker = InputMaker(job.inputs, job.dims, sample)
        return tuple(maker.at(sizes) for sizes in wanted)
    return tuple(resized(batches[0], job.inputs, sizes) for sizes in wanted)


def calibration_batches(
    job: OptimiseJob, files: ProjectFiles, functions: UserCode
) -> tuple[list[Arrays], bool]:
    """Return what ``calibration`` gives, checked, and whether it had more than was read.

    It gives mappings of named arrays, one a batch; a single mapping is one batch. Reading stops after
    ``MOST_SAMPLES``.
    """
    what = str(job.calibration)
    names = [tensor.name for tensor in job.inputs]
    function = functions.load(what, names)
    batches: list[Arrays] = []
    count = size = 0
    with user_code(f"{what} raised", files):
        for batch in _each(what, function()):
            arrays = named_arrays(what, batch, names)
            subject = f"batch {len(batches)} of {what}"
            check_arrays(arrays, job.inputs, subject)
            for tensor in job.inputs:
                check_finite(f"{subject}: {tensor.name}", arrays[tensor.name])
            batches.append({tensor.name: arrays[tensor.name] for tensor in job.inputs})
            count += rows(arrays, job.batched)
            size += sum(array.nbytes for array in arrays.values())
            if count >= MOST_SAMPLES or size > _MOST_BYTES:
                return batches, True
    if not batches:
        raise ExportError(f"{what} gives no batch", hint="return a list of named arrays")
    return batches, False


def _each(what: str, given: object) -> Iterable[object]:
    if isinstance(given, Mapping):
        return [given]
    if isinstance(given, Iterable):
        return given
    raise ExportError(
        f"{what} gives an object of type {type(given).__name__}, not batches",
        hint='return for example [{"image": array}, …]',
    )


def split(batches: Sequence[Arrays], batched: bool) -> tuple[tuple[Arrays, ...], tuple[Arrays, ...]]:
    """Return the batches to measure on and those held out.

    Every fourth is held out, not the last ones: data often comes sorted. Fewer than four batches are
    split by rows where the first axis is the batch; where that cannot be, all serve for both.
    """
    if len(batches) >= _HELD_OUT:
        held = tuple(batches[_HELD_OUT - 1 :: _HELD_OUT])
        fit = tuple(b for index, b in enumerate(batches) if index % _HELD_OUT != _HELD_OUT - 1)
        return fit, held
    rows = min((len(array) for batch in batches for array in batch.values()), default=0) if batched else 0
    if rows < _HELD_OUT:
        return tuple(batches), tuple(batches)
    return tuple(_rows(batch, held=False) for batch in batches), tuple(_rows(b, held=True) for b in batches)


def _rows(batch: Arrays, *, held: bool) -> Arrays:
    import numpy as np

    def is_chosen(array: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((np.arange(len(array)) % _HELD_OUT == _HELD_OUT - 1) == held)

    return {name: array[is_chosen(array)] for name, array in batch.items()}
