"""Which nodes of a graph a list of patterns names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.errors import ExportError
from triton_toolkit.export.graph import load_graph
from triton_toolkit.optimise.layers import node_name

if TYPE_CHECKING:
    import onnx

_NEAR = 0.6
_SHOWN = 20


def matching_nodes(path: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Return the nodes of an ONNX file that are named by a pattern.

    ``tt``'s exports name a node after its module and its operator, ``/features/0/Conv``. A pattern may be a
    module's path as PyTorch writes it, ``features.0`` or ``features.*``, for all nodes in it; or the name of
    nodes, ``/features/*``. One that names no node may be that of a tensor, for the node that makes it.

    Args:
        path: The file.
        patterns: Shell-style patterns.

    Returns:
        Node name -> why it is named, in words.

    Raises:
        ExportError: A pattern matches nothing; names near modules, and those that there are.
    """
    nodes = list(load_graph(path).graph.node)
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = [node for node in nodes if _named_by(node, pattern)]
        matched = matched or [n for n in nodes if any(fnmatchcase(name, pattern) for name in n.output)]
        if not matched:
            raise _no_match(path, pattern, nodes)
        found |= {node_name(node): f"keep: {pattern}" for node in matched}
    return found


def _named_by(node: onnx.NodeProto, pattern: str) -> bool:
    """Whether a pattern matches a node's name, or the path of a module that it is in."""
    names = (node_name(node), *_paths(node))
    return any(fnmatchcase(name, one) for name in names for one in (pattern, _dotted(pattern)))


def _paths(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the paths of the modules that a node is in, then its own: a, a.b, a.b.Conv."""
    parts = _dotted(node_name(node)).split(".")
    yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _dotted(name: str) -> str:
    return name.strip("/").replace("/", ".")


def _no_match(path: Path, pattern: str, nodes: Sequence[onnx.NodeProto]) -> ExportError:
    modules = [_module(node) for node in nodes]
    names = list(dict.fromkeys(m or node_name(n) for m, n in zip(modules, nodes, strict=True)))
    known = list(dict.fromkeys(name for node in nodes for name in (*_paths(node), node_name(node))))
    wanted = _dotted(pattern).removesuffix(".*").lower()
    folded = {name.lower(): name for name in reversed(known)}
    near = [folded[name] for name in difflib.get_close_matches(wanted, folded, n=3, cutoff=_NEAR)]
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ExportError(
        f"keep: no node of {path.name} matches {pattern!r}",
        hint=(f"near is {', '.join(near)}; " if near else "")
        + f"{'modules with nodes' if any(modules) else 'its nodes'} are {', '.join(names[:_SHOWN])}{more}",
    )


def _module(node: onnx.NodeProto) -> str:
    """Return the path of the module that a node is in; empty for none."""
    return _dotted(node_name(node).rpartition("/")[0])
