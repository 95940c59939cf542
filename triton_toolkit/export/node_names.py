"""Names of nodes: the module that a node stands in, and its operator: ``/features/0/Conv``.

Users know a model by its modules. The exporter based on torch.export numbers nodes, and writes their
modules into the metadata; the one based on TorchScript writes the part of a module's path that follows the
last number, and counts calls in it (``/model/enc/enc.0/fc_1/Gemm``). Both come out the same here.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING

from triton_toolkit.export.graph import all_graphs

if TYPE_CHECKING:
    import onnx

WRAPPER = "model"
"""What ``original.Original`` calls the user's model inside of the module that is exported."""

_SCOPES = "pkg.torch.onnx.name_scopes"
_RULE = "pkg.onnxscript.rewriter.rule_name"
_AGAIN = re.compile(r"_\d+$")
"""What a trace adds to a module that is called again."""


def name_nodes(model: onnx.ModelProto, modules: Collection[str]) -> None:
    """Name every node after its module and its operator, in place.

    Further nodes of the same name are counted in the graph's order: ``/head/Gemm``, ``/head/Gemm_1``. Nodes
    of forward itself, and those that the exporter adds, stand at the top: ``/Add``.

    Args:
        model: As the exporter wrote it, metadata included.
        modules: Paths of the user's modules, such as ``features.0``.
    """
    tree = _Tree(modules)
    seen: Counter[str] = Counter()
    for graph in all_graphs(model):
        for node in graph.node:
            module = tree.module_of(node)
            name = f"/{module.replace('.', '/')}/{node.op_type}" if module else f"/{node.op_type}"
            node.name = f"{name}_{seen[name]}" if seen[name] else name
            seen[name] += 1


class _Tree:
    """The modules of a model, by what exporters call them."""

    def __init__(self, modules: Collection[str]) -> None:
        self._modules = frozenset(modules)
        self._by_short: dict[str, list[str]] = defaultdict(list)
        for module in sorted(modules, key=lambda path: (path.count("."), path)):
            self._by_short[_short(f"{WRAPPER}.{module}")].append(module)

    def module_of(self, node: onnx.NodeProto) -> str:
        """Return the path of the module that a node stands in, empty for none."""
        metadata = {entry.key: entry.value for entry in node.metadata_props}
        if _SCOPES not in metadata:
            return self._traced(node.name)
        rule = metadata.get(_RULE, "")
        if "BatchNorm" in rule or (rule and node.op_type.startswith("Conv")):
            # Several nodes became one, which has the place of the last; its weights are the layer's.
            return self._owner(node) or _recorded(metadata[_SCOPES])
        return _recorded(metadata[_SCOPES])

    def _owner(self, node: onnx.NodeProto) -> str:
        weight = node.input[1].removeprefix(f"{WRAPPER}.")
        module = weight.rpartition(".")[0]
        return module if module in self._modules else ""

    def _traced(self, name: str) -> str:
        """Follow a trace's scopes down from the model; of two modules that may be meant, to the nearest."""
        path = ""
        parts = name.split("/")[1:-1]
        for part in parts[1:] if parts[:1] == [WRAPPER] else parts:
            path = self._below(path, part) or self._below(path, _AGAIN.sub("", part)) or _join(path, part)
        return path

    def _below(self, path: str, short: str) -> str:
        return next((m for m in self._by_short.get(short, ()) if not path or m.startswith(f"{path}.")), "")


def _recorded(scopes: str) -> str:
    """Return the module of a node from the scopes that torch.export recorded: modules, then the node."""
    *modules, _ = ast.literal_eval(scopes)
    path = str(modules[-1]).partition("@")[0] if modules else ""  # "@1" counts calls
    return "" if path == WRAPPER else path.removeprefix(f"{WRAPPER}.")


def _short(path: str) -> str:
    """Return what follows the last dot, or where that is a number, the last part that is none, and on."""
    parts = path.split(".")
    last = next((index for index in reversed(range(len(parts))) if not parts[index].isnumeric()), 0)
    return ".".join(parts[last:])


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
