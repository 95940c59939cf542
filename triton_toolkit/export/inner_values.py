"""The values inside of PyTorch's run of a model, under the names that the ONNX file gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.export.exported import Inner
from triton_toolkit.export.graph import load_graph

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from numpy.typing import NDArray

    from triton_toolkit.export.original import Original

Arrays = dict[str, "NDArray[Any]"]


def program_values(
    original: Original, program: torch.export.ExportedProgram, path: Path, inputs: Arrays
) -> Inner | None:
    """Run a program of torch.export operator by operator: its nodes have the names of ONNX values.

    Args:
        original: The model that it was made from.
        program: As torch.onnx.export decomposed it.
        path: Its ONNX file.
        inputs: Inputs by name.

    Returns:
        Its values, and its outputs; None where it does not run so.
    """
    import torch

    names = {name for node in load_graph(path).graph.node for name in node.output}
    values: Arrays = {}

    class Recorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if n.name in names and isinstance(result, torch.Tensor):
                values[n.name] = _array(result)
            return result

    try:
        with torch.no_grad():
            outputs = Recorder(program.graph_module).run(*_arguments(program, original.tensors(inputs)))
    except Exception:  # noqa: BLE001 - a search for evidence: without it the error stands as it is
        return None
    return Inner(values, dict(zip(original.outputs, map(_array, outputs), strict=False)))


def module_values(original: Original, path: Path, inputs: Arrays) -> Inner | None:
    """Run the model and return the outputs of its innermost modules.

    Nodes are named after the module that they stand in: the last node of ``/conv1/`` gives the output of
    ``conv1``, of its last call where there are several.
    """
    import torch

    last: dict[str, str] = {}
    for node in load_graph(path).graph.node:
        last[node.name.rpartition("/")[0].strip("/").replace("/", ".")] = node.output[0]
    values: Arrays = {}
    hooks = [
        module.register_forward_hook(_keep(values, last[name]))
        for name, module in original.modules.items()
        if name in last and not any(True for _ in module.children())
    ]
    try:
        with torch.no_grad():
            original.adapter(*original.tensors(inputs))
    except Exception:  # noqa: BLE001 - likewise
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return Inner(values, exact=False)


def _keep(values: Arrays, name: str) -> Any:
    """Return a hook that keeps a module's output, if it is one tensor."""
    import torch

    def hook(module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            values[name] = _array(output)

    return hook


def _arguments(program: torch.export.ExportedProgram, tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Return what the program's graph takes: weights and constants, and the inputs, in its order."""
    given = iter(tensors)
    return [
        next(given)
        if spec.kind.name == "USER_INPUT"
        else program.state_dict.get(str(spec.target), program.constants.get(str(spec.target)))
        for spec in program.graph_signature.input_specs
    ]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    import torch

    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy().copy()
