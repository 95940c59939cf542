"""PyTorch's own export of a model: one program for all sizes, and what it took for granted about them."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.dims import Dim
from triton_toolkit.export.branches import Branch, find_branches, fixed_place, input_shapes
from triton_toolkit.export.job import ExportJob
from triton_toolkit.export.original import Original
from triton_toolkit.export.refusals import fixed_dimension, refusal
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Shapes = tuple[dict[int, Any], ...]
"""For each input: axis -> how torch.export shall take it."""


_CHECKS = "prefer_deferred_runtime_asserts_over_guards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A program of torch.export.

    Attributes:
        program: The program, its inputs in the order of the spec.
        branches: Conditions on sizes that it needs and that not all declared sizes fulfil.
    """

    program: torch.export.ExportedProgram
    branches: tuple[Branch, ...] = ()


def capture(
    job: ExportJob, original: Original, example: Mapping[str, NDArray[Any]], files: ProjectFiles
) -> Captured:
    """Export a model with torch.export.

    Where the model takes another path at some of the declared sizes, the program is that of the
    example's path; its ``branches`` say at which sizes that has to be proven.

    Args:
        job: The declared inputs and dimensions.
        original: The model.
        example: Inputs at ``core.dims.example_sizes``.
        files: The project's files, to name the user's line.

    Raises:
        ExportError: torch.export refuses, or a dynamic dimension came out fixed.
    """
    import torch

    tensors = tuple(torch.from_numpy(example[tensor.name].copy()) for tensor in job.inputs)
    with _quiet(), torch.no_grad(), _settings():
        return _capture(job, original.adapter, tensors, files)


def _capture(
    job: ExportJob, adapter: torch.nn.Module, tensors: tuple[torch.Tensor, ...], files: ProjectFiles
) -> Captured:
    named = _shapes(job, named=True)
    program: torch.export.ExportedProgram | None = None
    refused: Exception | None = None
    branches: tuple[Branch, ...] = ()
    try:
        program = _export(adapter, tensors, named)
    except Exception as exc:  # noqa: BLE001 - torch.export raises of all kinds
        refused = exc
    if refused is not None and "Constraints violated" not in str(refused):
        program = _strict(adapter, tensors, named, refused, files)
    if program is not None:
        branches = find_branches(program, job.inputs, job.dims, files)
        if not branches:
            return Captured(program=program)
    try:  # again with sizes that are as free as the model leaves them, to learn what it does with them
        free = _export(adapter, tensors, _shapes(job, named=False), checks=False)
    except Exception as exc:
        if program is None:
            raise refusal(refused or exc, files, "torch.export") from exc
        return Captured(program=program, branches=branches)
    _check_fixed(free, job, files)
    return Captured(program=program or free, branches=find_branches(free, job.inputs, job.dims, files))


def _export(
    adapter: torch.nn.Module,
    tensors: tuple[torch.Tensor, ...],
    shapes: Shapes,
    *,
    checks: bool = True,
    strict: bool = False,
) -> torch.export.ExportedProgram:
    """Run torch.export.

    Args:
        adapter: The model.
        tensors: The example.
        shapes: The dynamic dimensions.
        checks: Turn conditions on sizes into checks of the program where that is possible.
        strict: Capture through the bytecode, which can do some things that the other way cannot.
    """
    import torch

    options: dict[str, Any] = {}
    if _CHECKS in inspect.signature(torch.export.export).parameters:  # not before torch 2.8
        options[_CHECKS] = checks
    return torch.export.export(adapter, tensors, dynamic_shapes=(shapes,), strict=strict, **options)


def _strict(
    adapter: torch.nn.Module,
    tensors: tuple[torch.Tensor, ...],
    shapes: Shapes,
    first: Exception,
    files: ProjectFiles,
) -> torch.export.ExportedProgram:
    try:
        return _export(adapter, tensors, shapes, strict=True)
    except Exception as exc:
        raise refusal(first, files, "torch.export") from exc


def _shapes(job: ExportJob, *, named: bool) -> Shapes:
    """Return how torch.export shall take each axis; the same name is the same object.

    A dimension with a single size is exported as a fixed one: torch.export needs min < max.

    Args:
        job: The declared inputs and dimensions.
        named: By name, so that a size must truly be free; or free as far as the model leaves it so.
    """
    import torch

    def taken(name: str, dim: Dim) -> Any:
        if not named:
            return torch.export.Dim.AUTO(min=dim.min, max=dim.max)
        if dim.multiple_of == 1:
            return torch.export.Dim(name, min=dim.min, max=dim.max)
        step = dim.multiple_of
        return step * torch.export.Dim(f"{name}_by_{step}", min=dim.min // step, max=dim.max // step)

    known = {name: taken(name, dim) for name, dim in job.dims.items() if dim.min < dim.max}
    return tuple(
        {axis: known[extent] for axis, extent in enumerate(tensor.shape) if extent in known}
        for tensor in job.inputs
    )


def _check_fixed(program: torch.export.ExportedProgram, job: ExportJob, files: ProjectFiles) -> None:
    free = {name for name, dim in job.dims.items() if dim.min < dim.max}
    for tensor, shape in zip(job.inputs, input_shapes(program), strict=True):
        for extent, size in zip(tensor.shape, shape, strict=True):
            if extent in free and isinstance(size, int):
                place = fixed_place(program, size, files)
                raise fixed_dimension(str(extent), size, f" ({place})" if place else "")


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Set what torch.onnx.export sets for its own use of torch.export, as far as this torch has it.

    Sizes 0 and 1 are no special cases, and recurrent networks become loops instead of as many copies
    as the example is long.
    """
    import torch.fx.experimental._config as config

    with contextlib.ExitStack() as stack:
        if hasattr(config, "backed_size_oblivious"):
            stack.enter_context(config.patch(backed_size_oblivious=True))  # type: ignore[attr-defined]
        with contextlib.suppress(ImportError):  # before torch 2.9
            from torch.export import _patches

            for name in ("lstm", "gru"):
                stack.enter_context(getattr(_patches, f"register_{name}_while_loop_decomposition")())
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings of torch and of forward, whose own were shown when it was tried."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
