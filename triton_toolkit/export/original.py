"""The PyTorch model as it is: the reference that the export is measured against."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import ExportError
from triton_toolkit.export.outputs import named_outputs
from triton_toolkit.export.source import user_code
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Arrays = dict[str, "NDArray[Any]"]


class Original:
    """An nn.Module that takes and gives named numpy arrays.

    ``adapter`` is the module that is exported: it takes the inputs by position in the order of the
    spec and returns a tuple of the declared outputs, so that the exporter sees neither keywords nor
    dicts, and its inputs and outputs stand in the spec's order.
    """

    def __init__(
        self, module: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str], files: ProjectFiles
    ) -> None:
        self._files = files
        self._type = type(module).__name__
        self._inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        keywords = _keywords(module, inputs)
        self.adapter = _adapter(module, keywords, self)

    def predict(self, arrays: Mapping[str, NDArray[Any]], doing: str = "fails") -> Arrays:
        """Run the module without gradients.

        Args:
            arrays: Every input by name; they are copied, so forward may change its own.
            doing: What forward does when the user's code raises, such as ``fails at batch=8``.

        Raises:
            ExportError: forward raises, returns something that does not fit the declared outputs,
                or a type that Triton cannot serve.
        """
        import torch

        tensors = [torch.from_numpy(arrays[name].copy()) for name in self._inputs]
        with torch.no_grad(), user_code(f"forward {doing}", self._files):
            result = self.adapter(*tensors)
        return {name: _to_numpy(name, value) for name, value in zip(self.outputs, result, strict=True)}

    def select(self, result: object) -> tuple[torch.Tensor, ...]:
        """Return a forward's result as a tuple in the order of ``outputs``, which it may set."""
        named = named_outputs(result, self.outputs)
        if not self.outputs:
            self.outputs = tuple(named)
        return tuple(named.values())


def _adapter(
    module: torch.nn.Module, keywords: tuple[str, ...] | None, original: Original
) -> torch.nn.Module:
    import torch

    class Adapter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if keywords is None:
                return original.select(self.model(*tensors))
            return original.select(self.model(**dict(zip(keywords, tensors, strict=True))))

    return Adapter().eval()


def _keywords(module: torch.nn.Module, inputs: Sequence[str]) -> tuple[str, ...] | None:
    """Return the input names to pass by keyword, or None to pass them by position.

    By keyword where forward has a parameter of every name; by position where no input carries the
    name of a parameter at another place, which would swap two inputs unnoticed.

    Raises:
        ExportError: Names and parameters contradict each other, or forward needs more or takes fewer.
    """
    signature = inspect.signature(module.forward)
    shown = f"{type(module).__name__}.forward{signature}"
    named = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    names = [parameter.name for parameter in named]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    keywords = tuple(inputs) if takes_any or set(inputs) <= set(names) else None
    try:
        if keywords is None:
            signature.bind(*inputs)
        else:
            signature.bind(**dict.fromkeys(keywords))
    except TypeError as exc:
        raise ExportError(
            f"the inputs {', '.join(inputs)} do not fit {shown}: {exc}",
            hint="name the inputs like the parameters of forward, or declare them in its order",
        ) from exc
    if keywords is None:
        for index, name in enumerate(inputs):
            if name in names and names.index(name) != index:
                raise ExportError(
                    f"input {name!r} is number {index + 1} of the spec but number {names.index(name) + 1} "
                    f"of {shown}, and not all inputs have a parameter's name",
                    hint="name all inputs like the parameters of forward, or declare them in its order",
                )
    return keywords


def _to_numpy(name: str, tensor: torch.Tensor) -> NDArray[Any]:
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ExportError(
            f"output {name!r} is a sparse or quantized tensor, which Triton cannot serve",
            hint=f"return {name}.to_dense() or .dequantize()",
        )
    try:
        DataType.parse(kind)
    except ValueError as exc:
        raise ExportError(
            f"output {name!r} has type {kind}, which Triton's ONNX Runtime backend cannot serve",
            hint=f"return {name}.float() from forward" if not tensor.is_complex() else "return real tensors",
        ) from exc
    return tensor.detach().cpu().contiguous().numpy()
