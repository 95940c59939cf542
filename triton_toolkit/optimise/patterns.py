"""Which nodes of a graph a list of patterns names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.optimise.layers import node_name

if TYPE_CHECKING:
    import onnx


def matching_nodes(path: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Return the nodes of an ONNX file whose name, or one of whose outputs, matches a pattern.

    A node without a name is called by its first output, as everywhere in this package.

    Args:
        path: The file.
        patterns: Shell-style patterns, such as ``/head/*``.

    Returns:
        Node name -> why it is named, in words.

    Raises:
        ExportError: A pattern matches nothing; offers a near name.
    """
    nodes = load_graph(path).graph.node
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = [node_name(node) for node in nodes if _matches(node, pattern)]
        if not matched:
            near = difflib.get_close_matches(pattern, [node_name(node) for node in nodes], n=3, cutoff=0.4)
            raise ExportError(
                f"keep: no node of {path.name} matches {pattern!r}",
                hint=f"near names: {', '.join(near)}"
                if near
                else "nodes have names such as " + ", ".join(node_name(node) for node in nodes[:3]),
            )
        found |= {name: f"keep: {pattern}" for name in matched}
    return found


def _matches(node: onnx.NodeProto, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (node_name(node), *node.output))
