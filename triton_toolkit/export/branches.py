"""Where forward takes another path at some sizes than the one that was exported.

torch.export follows one path, that of the example's sizes, and writes down what it took for granted about
sizes on the way. The torch.onnx exporter drops those notes; here they are read, and turned into the sizes
at which they do not hold, so that the proof runs at these too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.core.tensors import TensorSpec
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch

_MOST_SIZES = 1024
"""Up to so many sizes of a dimension each one is looked at; of more, evenly spaced ones and those near
the numbers of the condition."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A condition on sizes that the exported path needs and that some sizes do not fulfil.

    Attributes:
        condition: In the names of the dimensions, such as ``batch != 7``.
        place: ``file:line, in function`` of the user's code, empty where unknown.
        sizes: Up to three combinations of declared sizes that do not fulfil it.
        holds: Whether a combination of sizes fulfils it.
    """

    condition: str
    place: str
    sizes: tuple[Sizes, ...]
    holds: Callable[[Sizes], bool] = field(compare=False, repr=False)

    def __str__(self) -> str:
        """Return it as part of a sentence."""
        return f"{self.condition} ({self.place})" if self.place else self.condition


def find_branches(
    program: torch.export.ExportedProgram,
    inputs: Sequence[TensorSpec],
    dims: Mapping[str, Dim],
    files: ProjectFiles,
) -> tuple[Branch, ...]:
    """Return the conditions of a program that do not hold at all declared sizes.

    Args:
        program: From torch.export, its inputs in the order of ``inputs``.
        inputs: The declared inputs.
        dims: Ranges of their dynamic dimensions.
        files: The project's files, to name lines.
    """
    symbols = size_symbols(program, inputs)
    environment = _shape_environment(program)
    if environment is None or not symbols:
        return ()
    found: dict[str, Branch] = {}
    for expression, frame in _conditions(environment):
        if not expression.free_symbols <= symbols.keys():
            continue  # about sizes that come from values, which have checks of their own
        holds = partial(_holds, expression, symbols)
        sizes = [each for each in _combinations(expression, symbols, dims) if not holds(each)]
        if sizes:
            text = _text(expression, symbols)
            found.setdefault(text, Branch(text, _place(frame, files), _spread(sizes), holds))
    return tuple(found.values())


def size_symbols(
    program: torch.export.ExportedProgram, inputs: Sequence[TensorSpec]
) -> dict[Any, tuple[str, int]]:
    """Return symbol -> name of the dimension and what the symbol is multiplied by to give its size."""
    found: dict[Any, tuple[str, int]] = {}
    for tensor, shape in zip(inputs, input_shapes(program), strict=True):
        for name, size in zip(tensor.shape, shape, strict=True):
            if isinstance(name, str) and not isinstance(size, int):
                factor, symbol = size.node.expr.as_coeff_Mul()
                if symbol.is_Symbol:
                    found[symbol] = (name, int(factor))
    return found


def input_shapes(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """Return the shapes of a program's inputs: numbers, and torch.SymInt for what is dynamic."""
    names = set(program.graph_signature.user_inputs)
    nodes = (node for node in program.graph.nodes if node.op == "placeholder" and node.name in names)
    return [tuple(map(_plain, node.meta["val"].shape)) for node in nodes]


def _plain(size: Any) -> Any:
    """Return a size as a number where it is one, though it may be written as a symbolic one."""
    return int(size.node.expr) if not isinstance(size, int) and size.node.expr.is_number else size


def fixed_place(program: torch.export.ExportedProgram, size: int, files: ProjectFiles) -> str:
    """Return where a program fixed a dimension at a size; empty where unknown."""
    environment = _shape_environment(program)
    for expression, frame in _conditions(environment) if environment is not None else ():
        if expression.is_Equality and size in expression.args:
            return _place(frame, files)
    return ""


def _shape_environment(program: torch.export.ExportedProgram) -> Any:
    import torch

    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and getattr(value, "fake_mode", None) is not None:
            return value.fake_mode.shape_env  # type: ignore[attr-defined]
    return None


def _conditions(environment: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each condition on sizes, and the frame of code that made it."""
    for guard in environment.guards:
        yield guard.expr, guard.sloc.framework_loc
    for checks in environment.deferred_runtime_asserts.values():
        for check in checks:
            yield check.expr, None


def _place(frame: Any, files: ProjectFiles) -> str:
    name = files.relative(frame.filename) if hasattr(frame, "filename") else None
    return f"{name}:{frame.lineno}, in {frame.name}" if name else ""


def _holds(expression: Any, symbols: Mapping[Any, tuple[str, int]], sizes: Sizes) -> bool:
    import sympy  # type: ignore[import-untyped]

    values = {}
    for symbol in expression.free_symbols:
        name, factor = symbols[symbol]
        values[symbol] = sympy.Integer(sizes[name] // factor)
    return bool(expression.xreplace(values))


def _combinations(
    expression: Any, symbols: Mapping[Any, tuple[str, int]], dims: Mapping[str, Dim]
) -> Iterator[Sizes]:
    """Yield sizes of the dimensions in a condition, the others at opt.

    Of several dimensions one varies at a time, from all at opt, at min and at max, and those of a
    common range also together.
    """
    involved = sorted({symbols[symbol][0] for symbol in expression.free_symbols})
    numbers = {int(atom) for atom in expression.atoms() if atom.is_Integer}
    opt = {name: dim.opt for name, dim in dims.items()}
    candidates = {name: _candidates(dims[name], numbers) for name in involved}
    for end in ("opt", "min", "max"):
        base = opt | {name: getattr(dims[name], end) for name in involved}
        for name in involved:
            for size in candidates[name]:
                yield base | {name: size}
        if len(involved) == 1:
            return
    for one, other in itertools.combinations(involved, 2):
        for size in sorted(set(candidates[one]) & set(candidates[other])):
            yield opt | {one: size, other: size}


def _candidates(dim: Dim, numbers: set[int]) -> list[int]:
    sizes = dim.sizes()
    if len(sizes) <= _MOST_SIZES:
        return list(sizes)
    spaced = sizes[:: len(sizes) // _MOST_SIZES + 1]
    near = {dim.nearest(number + shift * dim.multiple_of) for number in numbers for shift in (-1, 0, 1)}
    return sorted({*spaced, *near, dim.min, dim.opt, dim.max})


def _spread(sizes: Sequence[Sizes]) -> tuple[Sizes, ...]:
    picked = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
    return tuple(each for index, each in enumerate(picked) if each not in picked[:index])


def _text(expression: Any, symbols: Mapping[Any, tuple[str, int]]) -> str:
    import sympy
    from torch.utils._sympy.printers import PythonPrinter

    names = {}
    for symbol in expression.free_symbols:
        name, factor = symbols[symbol]
        size = sympy.Symbol(name, integer=True, positive=True)
        names[symbol] = size if factor == 1 else size / factor
    return str(PythonPrinter().doprint(expression.xreplace(names)))
