"""Rewrite the main graph of a model: new nodes and constants with free names, nothing left unused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from triton_toolkit.optimise.layers import Graph, graphs_of, reads

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray


class Editor:
    """Collects the nodes of the new graph, in order; ``finish`` puts them in place."""

    def __init__(self, graph: Graph) -> None:
        self._model = graph.file.model
        self._nodes: list[onnx.NodeProto] = []
        self._unused = _unused(self._model)
        self._taken = {*graph.initializers, *graph.producer, *graph.file.tensors}
        for node in graph.nodes:
            for inner in graphs_of(node):
                self._taken |= {name for one in inner.node for name in one.output}
                self._taken |= {tensor.name for tensor in inner.initializer}

    def append(self, node: onnx.NodeProto) -> None:
        """Take a node over, changed or not."""
        self._nodes.append(node)

    def add(self, operator: str, inputs: list[str], *outputs: str, name: str = "", **attributes: int) -> None:
        """Append a new node; without a name it is called after its first output."""
        import onnx

        node = onnx.helper.make_node(operator, inputs, list(outputs), name or f"{outputs[0]}/{operator}")
        node.attribute.extend(onnx.helper.make_attribute(key, value) for key, value in attributes.items())
        self._nodes.append(node)

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add an initializer; returns its name, which is free."""
        import onnx

        name = self.new(name)
        self._model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        return name

    def new(self, name: str) -> str:
        """Return a name that no tensor has yet: this one, or it with a number."""
        free = next(n for i in count() if (n := f"{name}_{i}" if i else name) not in self._taken)
        self._taken.add(free)
        return free

    def finish(self) -> None:
        """Replace the graph's nodes; drop nodes and weights that nothing reads any more."""
        graph = self._model.graph
        used = {value.name for value in graph.output}
        kept = []
        for node in reversed(self._nodes):
            if any(name in used for name in node.output):
                kept.append(node)
                used.update(reads(node))
        del graph.node[:]
        graph.node.extend(reversed(kept))
        dropped = _unused(self._model) - self._unused
        _keep_only(graph.initializer, lambda name: name not in dropped)
        _keep_only(graph.input, lambda name: name not in dropped)  # before IR version 4 weights are there too
        made = {name for node in graph.node for name in node.output}
        _keep_only(graph.value_info, made.__contains__)


def _keep_only(messages: Any, wanted: Callable[[str], bool]) -> None:
    """Drop the messages of a repeated field whose names are not wanted."""
    kept = [message for message in messages if wanted(message.name)]
    del messages[:]
    messages.extend(kept)


def _unused(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that no node reads and no output passes on."""
    used = {name for node in model.graph.node for name in reads(node)}
    used |= {value.name for value in model.graph.output}
    return {tensor.name for tensor in model.graph.initializer} - used
