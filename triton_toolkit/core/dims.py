"""Dynamic dimensions: their ranges, and the sizes at which an export is proven."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Sizes = dict[str, int]
"""Dimension name -> size, one for each dynamic dimension of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """The declared range of one dynamic dimension; the same name is the same dimension.

    Attributes:
        name: Its name.
        min: Smallest size.
        opt: Commonest size.
        max: Largest size.
        multiple_of: Only multiples of this are sizes, as for images that a network halves five times.
    """

    name: str
    min: int
    opt: int
    max: int
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """Check 1 <= min <= opt <= max, all of them multiples of ``multiple_of``.

        Raises:
            ValueError: That does not hold.
        """
        if not 1 <= self.min <= self.opt <= self.max:
            raise ValueError(
                f"dimension {self.name}: needs 1 <= min <= opt <= max, "
                f"got min {self.min}, opt {self.opt}, max {self.max}"
            )
        if self.multiple_of < 1:
            raise ValueError(f"dimension {self.name}: multiple_of must be 1 or more, got {self.multiple_of}")
        for end in ("min", "opt", "max"):
            if getattr(self, end) % self.multiple_of:
                raise ValueError(
                    f"dimension {self.name}: {end} {getattr(self, end)} is no multiple of {self.multiple_of}"
                )

    def sizes(self) -> range:
        """Return all its sizes, ascending."""
        return range(self.min, self.max + 1, self.multiple_of)

    def nearest(self, size: int) -> int:
        """Return the size that is nearest to ``size`` from below, within the range."""
        return min(max(size - size % self.multiple_of, self.min), self.max)

    def probe_sizes(self) -> tuple[int, ...]:
        """Return up to five sizes: min, the next one, an odd multiple between, opt, max; ascending.

        The next one after min shows a dimension that broadcasts only at 1; the odd one, code that halves.
        """
        step = self.multiple_of
        between = ((self.min + self.max) // step // 2 | 1) * step
        wanted = {self.min, min(self.min + step, self.max), min(between, self.max), self.opt, self.max}
        return tuple(sorted(wanted))

    def example_size(self, taken: set[int]) -> int:
        """Return a size for the example input of an export.

        At least 2 where the range allows it (torch.export specialises 0 and 1), inside the bounds
        and different from ``taken``, so that two dimensions are not taken for one.
        """
        inside = range(max(2, self.min + self.multiple_of), self.max, self.multiple_of)
        candidates = itertools.chain(inside, (self.max, self.min))
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
    """Return the ranges as JSON values: name -> [min, opt, max], and the step where it is not 1."""
    ends = {name: [dim.min, dim.opt, dim.max] for name, dim in dims.items()}
    return {
        name: [*ends[name], dim.multiple_of] if dim.multiple_of > 1 else ends[name]
        for name, dim in dims.items()
    }


def dims_from_json(value: Mapping[str, Sequence[int]]) -> dict[str, Dim]:
    """Read what ``dims_to_json`` gave."""
    return {
        name: Dim(name=name, min=ends[0], opt=ends[1], max=ends[2], multiple_of=(*ends, 1)[3])
        for name, ends in value.items()
    }
