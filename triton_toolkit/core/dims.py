"""Dynamic dimensions: their ranges, and the sizes at which an export is proven."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Sizes = dict[str, int]
"""Dimension name -> size, one for each dynamic dimension of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """The declared range of one dynamic dimension; the same name is the same dimension."""

    name: str
    min: int
    opt: int
    max: int

    def __post_init__(self) -> None:
        """Check 1 <= min <= opt <= max.

        Raises:
            ValueError: The order does not hold.
        """
        if not 1 <= self.min <= self.opt <= self.max:
            raise ValueError(
                f"dimension {self.name}: needs 1 <= min <= opt <= max, "
                f"got min {self.min}, opt {self.opt}, max {self.max}"
            )

    def probe_sizes(self) -> tuple[int, ...]:
        """Return up to five sizes: min, min + 1, an odd one between, opt, max; ascending.

        min + 1 shows a dimension that broadcasts only at 1; the odd one, code that halves.
        """
        between = (self.min + self.max) // 2 | 1
        wanted = {self.min, min(self.min + 1, self.max), min(between, self.max), self.opt, self.max}
        return tuple(sorted(wanted))

    def example_size(self, taken: set[int]) -> int:
        """Return a size for the example input of an export.

        At least 2 where the range allows it (torch.export specialises 0 and 1), inside the bounds
        and different from ``taken``, so that two dimensions are not taken for one.
        """
        candidates = [*range(max(2, self.min + 1), self.max), self.max, self.min]
        return next((size for size in candidates if size not in taken), self.max)


def example_sizes(dims: Mapping[str, Dim]) -> Sizes:
    """Return distinct example sizes, one a dimension, in name order of declaration."""
    sizes: Sizes = {}
    for name, dim in dims.items():
        sizes[name] = dim.example_size(set(sizes.values()))
    return sizes


def proof_sizes(dims: Mapping[str, Dim]) -> Iterator[Sizes]:
    """Yield the combinations of sizes at which an export is compared with its original.

    All at opt, all at min, all at max; then each dimension through its ``probe_sizes`` while the
    others stay at opt. Each combination once. A model without dynamic dimensions yields ``{}``.
    """
    corners = [{name: getattr(dim, end) for name, dim in dims.items()} for end in ("opt", "min", "max")]
    opt = corners[0]
    single = [{**opt, name: size} for name, dim in dims.items() for size in dim.probe_sizes()]
    seen: list[Sizes] = []
    for sizes in corners + single:
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def dims_to_json(dims: Mapping[str, Dim]) -> dict[str, list[int]]:
    """Return the ranges as JSON values: name -> [min, opt, max]."""
    return {name: [dim.min, dim.opt, dim.max] for name, dim in dims.items()}


def dims_from_json(value: Mapping[str, Sequence[int]]) -> dict[str, Dim]:
    """Read what ``dims_to_json`` gave."""
    return {name: Dim(name=name, min=low, opt=opt, max=high) for name, (low, opt, high) in value.items()}
