"""The PyTorch model as it is: the reference that the export is measured against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import ExportError
from triton_toolkit.export.node_names import WRAPPER
from triton_toolkit.export.outputs import named_outputs
from triton_toolkit.export.signature import Call, binder, placed_inputs, signature_of
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
    nested values, and its inputs and outputs stand in the spec's order. ``placed`` says to which
    parameters of forward inputs of other names go.
    """

    def __init__(
        self, module: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str], files: ProjectFiles
    ) -> None:
        self._files = files
        self._inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        signature = signature_of(module)
        self.placed = placed_inputs(signature, inputs)
        self.adapter = _adapter(module, binder(signature, inputs), self)

    def predict(self, arrays: Mapping[str, NDArray[Any]], doing: str = "fails") -> Arrays:
        """Run the module without gradients.

        Args:
            arrays: Every input by name; they are copied, so forward may change its own.
            doing: What forward does when the user's code raises, such as ``fails at batch=8``.

        Raises:
            ExportError: forward raises, returns something that does not fit the declared outputs,
                or a type that Triton cannot serve.
        """
        return self.run(self.tensors(arrays), doing)

    def tensors(self, arrays: Mapping[str, NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Return inputs as ``adapter`` takes them; they share no memory with the arrays."""
        import torch

        return tuple(torch.from_numpy(arrays[name].copy()) for name in self._inputs)

    def run(self, tensors: Sequence[torch.Tensor], doing: str = "fails") -> Arrays:
        """Run the module on tensors; see ``predict``."""
        import torch

        with torch.no_grad(), user_code(f"forward {doing}", self._files):
            result = self.adapter(*tensors)
        return {name: _to_numpy(name, value) for name, value in zip(self.outputs, result, strict=True)}

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The user's modules by path; the model itself has the path ""."""
        return dict(self.adapter.get_submodule(WRAPPER).named_modules())

    @property
    def compiled(self) -> bool:
        """Whether TorchScript is in it, whose branches and loops a trace keeps as they are."""
        import torch

        return any(isinstance(module, torch.jit.ScriptModule) for module in self.adapter.modules())

    def traceable(self, tensors: tuple[torch.Tensor, ...]) -> torch.nn.Module:
        """Return the adapter as the TorchScript-based exporter takes it: with TorchScript inside, traced."""
        import torch

        if not self.compiled:
            return self.adapter
        traced: torch.nn.Module = torch.jit.trace(  # type: ignore[no-untyped-call]
            self.adapter, tensors, check_trace=False
        )
        return traced

    def select(self, result: object) -> tuple[torch.Tensor, ...]:
        """Return a forward's result as a tuple in the order of ``outputs``, which it may set."""
        named = named_outputs(result, self.outputs)
        if not self.outputs:
            self.outputs = tuple(named)
        return tuple(named.values())


def _adapter(
    module: torch.nn.Module, bind: Callable[[Sequence[Any]], Call], original: Original
) -> torch.nn.Module:
    import torch

    class Adapter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = module  # WRAPPER

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            positional, named = bind(tensors)
            return original.select(self.model(*positional, **named))

    return Adapter().eval()


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
