"""The user's own metric, for the original and for the export."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.errors import ExportError, ParityError
from triton_toolkit.export.samples import check_arrays, named_arrays
from triton_toolkit.export.source import user_code
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]
Predict = Callable[[Arrays], Arrays]


class Metric:
    """The user's metric: ``predict`` -> a number, higher is better.

    Args:
        name: ``module:callable``, for messages.
        function: The callable.
        inputs: What ``predict`` takes; any size of a dynamic dimension.
        files: The project's files, for messages.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], inputs: tuple[TensorSpec, ...], files: ProjectFiles
    ) -> None:
        self.name = name
        self._function = function
        self._inputs = inputs
        self._files = files

    def __call__(self, predict: Predict, which: str) -> float:
        """Evaluate it.

        Args:
            predict: Runs the model.
            which: The model, for messages: ``the export``.

        Raises:
            ExportError: The metric raises or gives no finite number.
        """
        checked = _checked(predict, self._inputs)
        with user_code(f"{self.name} raised with {which}", self._files):
            value = self._function(checked)
        return _number(self.name, value)


def check_accuracy(
    metric: Metric, original_of: Predict, exported_of: Predict | None, max_absolute_drop: float
) -> dict[str, Any]:
    """Evaluate the metric with the original and with the export.

    Args:
        metric: The metric.
        original_of: The original.
        exported_of: The export; None where only the original is to be measured.
        max_absolute_drop: Largest loss, in the metric's own unit.

    Returns:
        ``metric``, ``original``, and of an export ``exported`` and ``drop`` (negative where it is better).

    Raises:
        ExportError: The metric raises or gives no finite number.
        ParityError: The export loses more than allowed.
    """
    original = metric(original_of, "the original")
    if exported_of is None:
        return {"metric": metric.name, "original": original}
    exported = metric(exported_of, "the export")
    drop = original - exported
    if drop > max_absolute_drop:
        raise ParityError(
            f"{metric.name} falls from {original:.6g} to {exported:.6g}: a drop of {drop:.6g}, allowed is "
            f"{max_absolute_drop:g}",
            hint="raise accuracy.max_absolute_drop only if that loss is acceptable",
        )
    return {"metric": metric.name, "original": original, "exported": exported, "drop": drop}


def _checked(predict: Predict, inputs: tuple[TensorSpec, ...]) -> Predict:
    what = "what the metric gives to predict"
    names = [tensor.name for tensor in inputs]

    def checked(arrays: Arrays) -> Arrays:
        flat = named_arrays(what, arrays, names)
        check_arrays(flat, inputs, what)
        return predict(flat)

    return checked


def _number(name: str, value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise ExportError(f"{name} gives an object of type {type(value).__name__}, not a number") from exc
    if not math.isfinite(number):
        raise ExportError(f"{name} gives {number}, not a finite number")
    return number
