"""The child side of ``tt init --from module:factory``: ``… worker FOLDER SOURCE OUT.json``.

Runs the user's code, so that nothing of it, torch included, is loaded into ``tt``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit._files import write_json
from triton_toolkit._optional import require
from triton_toolkit.core.dims import Dim, Sizes
from triton_toolkit.core.tensors import DataType, Extent
from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export.original import Original
from triton_toolkit.export.samples import SampleFunction
from triton_toolkit.export.source import load_callable, load_module
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

_SAMPLE = "sample"


def look(folder: Path, source: str) -> dict[str, Any]:
    """Return what ``from_torch.Findings`` holds.

    Raises:
        ExportError: The user's code is at fault.
        MissingDependencyError: PyTorch is not installed.
    """
    require("torch", extra="torch", purpose="read a PyTorch model")
    files = ProjectFiles(folder, [])
    module = load_module(files, source)
    parameters = [
        parameter
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    found: dict[str, Any] = {
        "parameters": [p.name for p in parameters if p.default is p.empty],
        "optional": [p.name for p in parameters if p.default is not p.empty],
        "sample": None,
        "unread": "",
        "inputs": {},
        "outputs": {},
    }
    module_name = source.partition(":")[0]
    if hasattr(sys.modules[module_name], _SAMPLE):
        found |= _read_sample(files, f"{module_name}:{_SAMPLE}", module)
    return found


def _read_sample(files: ProjectFiles, name: str, module: torch.nn.Module) -> dict[str, Any]:
    """Run the sample; where it does not run at sizes that were guessed, say so instead of failing."""
    function = load_callable(files, name)
    sizes, guessed = _sizes(function)
    try:
        return _run_sample(files, name, function, sizes, module)
    except ExportError as exc:
        if not guessed:
            raise
        return {"sample": name, "unread": exc.message}


def _run_sample(
    files: ProjectFiles, name: str, function: Callable[..., Any], sizes: Sizes, module: torch.nn.Module
) -> dict[str, Any]:
    """Run the sample through the module; one run more for each size that the sample takes.

    The axes that grow with a size are the dynamic dimension of that name.
    """
    dims = {size: Dim(name=size, min=1, opt=value, max=value + 1) for size, value in sizes.items()}
    sample = SampleFunction(name, function, dims, files)

    def run(sizes: Sizes) -> tuple[Arrays, Arrays]:
        inputs = sample.call(sizes)
        doing = f"forward fails for {name}({', '.join(f'{n}={v}' for n, v in sizes.items())})"
        return inputs, Original(module, list(inputs), [], files).predict(inputs, doing)

    base = run(sizes)
    found = [_described(arrays) for arrays in base]
    for size, value in sizes.items():
        grown = run({**sizes, size: value + 1})
        for tensors, before, after in zip(found, base, grown, strict=True):
            for tensor, (_, shape) in tensors.items():
                for axis, extent in enumerate(before[tensor].shape):
                    shape[axis] = size if after[tensor].shape[axis] != extent else shape[axis]
    return {"sample": name, "inputs": found[0], "outputs": found[1]}


def _sizes(function: Callable[..., Any]) -> tuple[Sizes, bool]:
    """Return a size for each parameter that takes one, and whether any is our guess.

    Guessed are those without a default: 2, 4, 6, … so that neither they nor one more are equal.
    """
    sizes: Sizes = {}
    guessed = False
    guess = count(2, 2)
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            guessed = True  # it takes the spec's dimensions, which are not known yet
        elif p.default is p.empty and p.kind is not p.VAR_POSITIONAL:
            sizes[p.name] = next(guess)
            guessed = True
        elif type(p.default) is int and p.default > 0:
            sizes[p.name] = p.default
    return sizes, guessed


def _described(arrays: Arrays) -> dict[str, tuple[str, list[Extent]]]:
    return {
        name: ("bytes" if array.dtype == object else DataType.parse(array.dtype.name).spec, [*array.shape])
        for name, array in arrays.items()
    }


def main() -> None:
    """Look, and write what was found or the error, as JSON."""
    folder, source, out = sys.argv[1:]
    try:
        found = look(Path(folder), source)
    except TritonToolkitError as exc:
        found = dict(exc.as_dict())
    write_json(Path(out), found)


if __name__ == "__main__":
    main()
