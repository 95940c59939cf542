"""What is wrong with one answer: against what the server declares, and against another answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.compare import Difference, Tolerance, Tolerances, compare_outputs
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.probe.payload import np_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from triton_toolkit.client.types import InferResult
    from triton_toolkit.probe.model import LiveModel

    Arrays = Mapping[str, NDArray[Any]]

_LOOSE = Tolerances(default=Tolerance(absolute=0.0, relative=0.01, range=0.01))
"""Without a tolerance of the model's own: 1 % of the output's largest magnitude, room enough for
reduced precision that depends on the batch size."""


def answer_problems(model: LiveModel, result: InferResult, rows: int, *, exempt: Arrays) -> list[str]:
    """Return what an answer has that the server does not declare, in words; [] when it is as declared.

    Args:
        model: The model as declared.
        result: The answer.
        rows: Rows of the request.
        exempt: Outputs that are compared elsewhere, where NaN may be right.
    """
    problems = []
    if result.model_name != model.name:
        problems.append(f"model {result.model_name!r} answered for {model.name!r}")
    if model.version and result.model_version != model.version:
        problems.append(f"version {result.model_version} answered, version {model.version} was asked")
    declared = {spec.name: spec for spec in model.outputs}
    problems += [f"output {name!r} is missing" for name in declared if name not in result.outputs]
    for name, array in result.outputs.items():
        spec = declared.get(name)
        if spec is None:
            problems.append(f"output {name!r} is not declared")
            continue
        problems += _shape_problems(model, spec, array, rows)
        if name not in exempt:
            problems += _value_problems(name, array)
    return problems


def _shape_problems(model: LiveModel, spec: TensorSpec, array: NDArray[Any], rows: int) -> list[str]:
    if array.dtype != np_dtype(spec.dtype):
        return [f"output {spec.name!r} is declared as {spec.dtype.spec}, the model answered {array.dtype}"]
    declared = (rows, *spec.shape[1:]) if model.batched and spec.shape else spec.shape
    fits = len(declared) == array.ndim and all(
        isinstance(extent, str) or extent == size for extent, size in zip(declared, array.shape, strict=True)
    )
    if fits:
        return []
    wanted = ", ".join(str(extent) for extent in declared)
    return [f"output {spec.name!r} is declared as [{wanted}], the model answered {list(array.shape)}"]


def _value_problems(name: str, array: NDArray[Any]) -> list[str]:
    import numpy as np

    if array.dtype.kind != "f":
        return []
    nans, infinities = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    problems = [f"output {name!r} has NaN in {nans} of {array.size} elements"] if nans else []
    if infinities:
        problems.append(f"output {name!r} is infinite in {infinities} of {array.size} elements")
    return problems


def loose_differences(actual: Arrays, expected: Arrays) -> list[Difference]:
    """Compare with 1 % of each output's largest magnitude; types that are not floats must be equal."""
    return compare_outputs(actual, expected, _LOOSE)


def differs_only_there(a: tuple[int, ...], b: tuple[int, ...], dynamic: tuple[bool, ...]) -> bool:
    """Say whether two shapes differ, and in dynamic axes alone."""
    if a == b or not len(a) == len(b) == len(dynamic):
        return False
    return all(free or size == other for size, other, free in zip(a, b, dynamic, strict=True))
