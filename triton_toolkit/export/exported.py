"""How a PyTorch model came to be an ONNX file: by which exporter, and what it took for granted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from triton_toolkit.core.dims import Sizes
from triton_toolkit.errors import ExportError
from triton_toolkit.export.branches import Branch

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]

Exporter = Literal["dynamo", "torchscript"]
"""As PyTorch calls them: ``torch.onnx.export(..., dynamo=True)`` and the one before."""

WORDS: dict[str, str] = {
    "dynamo": "the torch.export-based exporter",
    "torchscript": "the TorchScript-based exporter",
}


@dataclass(frozen=True, slots=True)
class Inner:
    """Values inside of PyTorch's run, to compare a graph with.

    Attributes:
        values: Name of the value in the ONNX file -> the value.
        outputs: The outputs of the program that was written, by name; empty where they are the model's.
        exact: Whether a value of another shape is wrong, or only taken for another one.
    """

    values: Arrays
    outputs: Arrays = field(default_factory=dict)
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export that is written and still to be proven.

    Attributes:
        exporter: Which exporter wrote the file.
        sources: Node name -> place in the user's code.
        branches: Conditions on sizes that the written path needs and not all sizes fulfil.
        sizes: Combinations of sizes to prove it at, beyond those that every file is proven at.
        refused: Why the exporter that was tried first refused.
        widened: Whether the file computes in float32 what the model computes in bfloat16.
        inner: Gives PyTorch's inner values for some inputs; None where it cannot.
        again: Exports once more, with other sizes of some dimensions in the example; None where that
            fails, or would tell nothing.
    """

    exporter: Exporter
    sources: Mapping[str, str] = field(default_factory=dict)
    branches: tuple[Branch, ...] = ()
    sizes: tuple[Sizes, ...] = ()
    refused: ExportError | None = None
    widened: bool = False
    inner: Callable[[Arrays], Inner | None] = lambda inputs: None
    again: Callable[[Sequence[str]], onnx.ModelProto | None] | None = None
