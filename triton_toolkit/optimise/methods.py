"""The ways to make each precision from an FP32 file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._progress import Progress, Silent
from triton_toolkit.optimise.calibration import Table, calibrate
from triton_toolkit.optimise.converted import Converted
from triton_toolkit.optimise.dynamic import to_int8_dynamic
from triton_toolkit.optimise.fp16 import to_fp16
from triton_toolkit.optimise.int8 import int8_candidates, to_int8
from triton_toolkit.optimise.int8_fp16 import to_int8_fp16
from triton_toolkit.optimise.job import OptimiseJob
from triton_toolkit.optimise.placement import read_placement
from triton_toolkit.optimise.ranges import TensorRange, scan_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A variant's file.

    Attributes:
        path: The file; large weights lie beside it.
        kept: Node name -> why it stays in FP32 (of INT8 layers: why not INT8).
        cut: Node name -> which bound or mask beyond FP16 was cut, and why that changes nothing.
        lowered: Names of the nodes that have the lower precision.
        placement: Which layers run in INT8; {} where none should.
    """

    path: Path
    kept: Mapping[str, str]
    cut: Mapping[str, str]
    lowered: tuple[str, ...]
    placement: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to make a precision.

    Attributes:
        name: What tells it from the others: ``entropy``.
        convert: Writes the file; takes the nodes that stay in FP32, and where to write.
        integers: Whether layers of it run in INT8.
        ends: First and last layers, which are the first to stay in FP32 where all in INT8 is too much.
    """

    name: str
    convert: Callable[[frozenset[str], Path], Converted]
    integers: bool
    ends: tuple[str, ...] = ()

    def make(self, keep: frozenset[str], out: Path) -> Made:
        """Write the variant to ``out``, whose folder is made.

        Raises:
            ExportError: The model cannot have this precision.
        """
        out.parent.mkdir(parents=True, exist_ok=True)
        converted = self.convert(keep, out)
        found = read_placement(out, converted.kept) if self.integers else None
        return Made(
            path=out,
            kept=converted.kept,
            cut=converted.cut,
            lowered=tuple(layer.name for layer in found.int8) if found else tuple(converted.lowered),
            placement=found.as_dict() if found else {},
        )


def methods_for(
    job: OptimiseJob, reference: Path, fit: Sequence[Arrays], progress: Progress | None = None
) -> list[Method]:
    """Return the ways to make the job's precision, with all ranges measured.

    Args:
        job: Its precision, and whether weights have 7 bits.
        reference: The FP32 file.
        fit: Inputs to measure ranges on.
        progress: Is told each batch of a calibration.

    Raises:
        ExportError: The model fails on the data.
    """
    if job.precision == "int8-dynamic":
        dynamic = partial(_dynamic, reference, job.reduce_range)
        return [Method(name="dynamic", convert=dynamic, integers=True)]
    if job.precision == "fp16":
        cast = partial(_cast, reference, scan_ranges(reference, fit))
        return [Method(name="cast", convert=cast, integers=False)]
    cache = job.state / "calibration"
    tables = calibrate(reference, fit, job.calibrators, cache=cache, progress=progress or Silent())
    convert: Callable[..., Converted]
    if job.precision == "int8":
        convert = partial(_int8, reference, job)
    else:
        convert = partial(_int8_fp16, reference, scan_ranges(reference, fit), job.opset)
    ends = int8_candidates(reference).ends
    return [
        Method(name=name, convert=partial(convert, table), integers=True, ends=ends)
        for name, table in tables.items()
    ]


def _dynamic(reference: Path, reduce_range: bool, keep: frozenset[str], out: Path) -> Converted:
    return to_int8_dynamic(reference, out, keep=keep, reduce_range=reduce_range)


def _cast(reference: Path, ranges: Mapping[str, TensorRange], keep: frozenset[str], out: Path) -> Converted:
    return to_fp16(reference, out, ranges=ranges, keep=keep)


def _int8(reference: Path, job: OptimiseJob, table: Table, keep: frozenset[str], out: Path) -> Converted:
    return to_int8(reference, out, table, keep=keep, reduce_range=job.reduce_range, unsigned=not job.on_gpu)


def _int8_fp16(
    reference: Path,
    ranges: Mapping[str, TensorRange],
    opset: int,
    table: Table,
    keep: frozenset[str],
    out: Path,
) -> Converted:
    return to_int8_fp16(reference, out, table, ranges=ranges, keep=keep, highest_opset=opset)
