"""How far an output may lie from what it should be, for each output of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

_ABSOLUTE, _RELATIVE = 1e-4, 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What one output must satisfy; ``compare.compare_outputs`` has the rule.

    Attributes:
        absolute: Allowed error of each element, in the output's own unit.
        relative: Further allowed error, a fraction of the element's expected magnitude.
        range: Further allowed error, a fraction of the largest expected magnitude, or of the distance
            from the smallest to the largest expected value where that is less: of the whole output,
            or of the element's own range where the output mixes several.
        max_noise: Largest root mean square of the error, a fraction of that of the expected values
            around their mean, in each range (``absolute`` and ``relative`` are allowed beyond it);
            None does not ask for it.
        top1: Least share, 0 to 1, of rows whose largest element (of the last axis) is where it
            should be; of integer outputs, least share of equal elements. None likewise.
        min_distinct: Least share, 0 to 1, of distinct values that each range keeps; None likewise.
        max_zero_share_rise: Most that the share of exact zeros in a range may rise; None likewise.
    """

    absolute: float
    relative: float
    range: float = 0.0
    max_noise: float | None = None
    top1: float | None = None
    min_distinct: float | None = None
    max_zero_share_rise: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is absolute and relative alone."""
        return set(self.as_dict()) == {"absolute", "relative"}

    def as_dict(self) -> dict[str, float]:
        """Return it as JSON values: absolute and relative always, the others where they are set."""
        required = {item.name for item in fields(self) if item.default is MISSING}
        unset = {item.name: item.default for item in fields(self) if item.default is not MISSING}
        values = asdict(self).items()
        return {name: value for name, value in values if name in required or value != unset[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """The tolerance of each output of a model."""

    default: Tolerance
    outputs: Mapping[str, Tolerance] = field(default_factory=dict)

    def of(self, output: str) -> Tolerance:
        """Return the tolerance of an output: its own, else the one for all."""
        return self.outputs.get(output, self.default)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values: the default's keys, and ``outputs`` where some have their own."""
        own = {name: tolerance.as_dict() for name, tolerance in self.outputs.items()}
        return {**self.default.as_dict(), **({"outputs": own} if own else {})}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Tolerances:
        """Read what ``as_dict`` wrote; absolute and relative may be missing, those of FP32 hold then.

        Raises:
            ValueError: A key that this version does not know, or a value that is not a number.
        """
        rest = dict(value)
        outputs = rest.pop("outputs", {})
        if not isinstance(outputs, Mapping):
            raise ValueError(f"tolerance: outputs is not a mapping but {outputs!r}")
        return cls(
            default=_tolerance(rest), outputs={name: _tolerance(each) for name, each in outputs.items()}
        )


def _tolerance(value: Mapping[str, Any]) -> Tolerance:
    known = {item.name for item in fields(Tolerance)}
    for name, number in value.items():
        if name not in known:
            raise ValueError(f"tolerance: unknown key {name!r}")
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"tolerance: {name} is not a number but {number!r}")
    return Tolerance(**{"absolute": _ABSOLUTE, "relative": _RELATIVE, **value})


_DEFAULTS: dict[str, Tolerance] = {
    "fp32": Tolerance(absolute=_ABSOLUTE, relative=_RELATIVE),
    "fp16": Tolerance(absolute=_ABSOLUTE, relative=_RELATIVE, range=0.01, max_noise=0.01),
    "int8": Tolerance(absolute=_ABSOLUTE, relative=_RELATIVE, range=0.15, max_noise=0.15, min_distinct=0.05),
    "int8-fp16": Tolerance(
        absolute=_ABSOLUTE, relative=_RELATIVE, range=0.15, max_noise=0.15, min_distinct=0.05
    ),
    "int8-dynamic": Tolerance(
        absolute=_ABSOLUTE, relative=_RELATIVE, range=0.1, max_noise=0.1, min_distinct=0.05
    ),
}


def default_tolerances(precision: str) -> Tolerances:
    """Return the tolerances of a precision where a model states none.

    All precisions start from what FP32 allows: an export may differ from its original by that much
    already. The rest was chosen from 23 networks with random weights (residual, plain and
    depthwise CNNs, ResNet-50, ConvNeXt, ViT, BERT, T5; 1 to 50 layers), by largest error over R and
    by noise: what a healthy network of that precision reaches, and what only a broken one does.

    - FP16, every operation computed in it: up to 0.005 and 0.005, but 0.03 and 0.03 in MobileNetV2.
    - INT8, with or without FP16: up to 0.08 and 0.06 in 21 networks, 0.14 and 0.13 in ResNet-50, but
      0.58 and 0.55 in MobileNetV2, whose logits then agree in 19 % of the rows only.
    - dynamic INT8: up to 0.04 and 0.04; 0.11 where 8-bit weights saturate on a CPU without VNNI.
    - Distinct values: all networks kept all of them; scores that share a scale with boxes 100 times
      larger keep one or two. 0.05 asks for five where 64 or more are expected.

    How many rows must agree is the task's to say (0.9 to 1.0 here, for random weights), and so is how
    many zeros may appear: scores below half a step of eight bits become 0 and are none the worse.

    Args:
        precision: fp32, fp16, int8, int8-fp16 or int8-dynamic.
    """
    return Tolerances(default=_DEFAULTS[precision])
