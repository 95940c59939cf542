"""Read YAML into plain values while remembering where each key stands.

YAML itself is PyYAML's job; this module only keeps the marks that ``safe_load`` throws away
and refuses duplicate keys, which ``safe_load`` lets the last one win.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import SpecError

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        """Return ``file:line:column``."""
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(slots=True)
class Source:
    """A YAML document as plain values, with the mark of each key path."""

    value: Any
    marks: dict[KeyPath, Mark] = field(default_factory=dict)

    def mark(self, path: KeyPath) -> Mark:
        """Return the mark of ``path``, or of the nearest enclosing key that has one."""
        while path not in self.marks and path:
            path = path[:-1]
        return self.marks[path]

    def error(self, path: KeyPath, message: str, hint: str = "") -> SpecError:
        """Return (not raise) a SpecError that names file, line, column and key."""
        key = format_path(path)
        place = f"{self.mark(path)}: {key}: " if key else f"{self.mark(path)}: "
        return SpecError(place + message, hint=hint)


def format_path(path: KeyPath) -> str:
    """Return a key path as people write it: ``models.digits.inputs.image.shape[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_yaml(path: Path, shown: str) -> Source:
    """Read one YAML file.

    Args:
        path: The file.
        shown: How to name it in messages (as the user gave it).

    Raises:
        SpecError: Missing or unreadable file, wrong encoding, syntax error, duplicate or
            non-text key, self-containing alias, or an empty document.
    """
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SpecError(
            f"{shown}: no such file", hint="run `tt init` to write one, or name it with --spec FILE"
        ) from None
    except UnicodeDecodeError as exc:
        raise SpecError(f"{shown}: not UTF-8 text (byte {exc.start})") from exc
    except OSError as exc:
        raise SpecError(f"{shown}: cannot be read: {exc.strerror}") from exc
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise SpecError(f"{shown}: the file is empty", hint="run `tt init` for a commented start")
        source = Source(None)
        walker = _Walker(shown, source.marks)
        source.marks[()] = Mark(shown, 1, 1)
        source.value = walker.value(node, ())
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        problem = " ".join(part for part in (exc.context, exc.problem) if part)
        raise SpecError(f"{place}: YAML syntax error: {problem}") from exc
    except yaml.YAMLError as exc:
        raise SpecError(f"{shown}: YAML error: {exc}") from exc
    return source


class _Walker:
    """Turns a node tree into values; PyYAML's SafeConstructor makes the scalars."""

    def __init__(self, shown: str, marks: dict[KeyPath, Mark]) -> None:
        from yaml.constructor import SafeConstructor

        self._shown = shown
        self._marks = marks
        self._scalars = SafeConstructor()
        self._open: set[int] = set()

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        import yaml

        self._marks.setdefault(path, self._mark(node))
        if isinstance(node, yaml.ScalarNode):
            return self._scalars.construct_object(node)
        if id(node) in self._open:
            raise SpecError(f"{self._mark(node)}: an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return dict(self._pairs(node, path))
        finally:
            self._open.discard(id(node))

    def _pairs(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, Any]]:
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise SpecError(f"{self._mark(node)}: unsupported YAML node")
        own = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        self._refuse_duplicates(node)
        self._scalars.flatten_mapping(node)
        seen: set[str] = set()
        for key_node, value_node in reversed(node.value):  # merged keys come first; own keys win
            key = self._key(key_node)
            if key in seen and key in own:
                continue
            seen.add(key)
            self._marks[(*path, key)] = self._mark(key_node)
            yield key, self.value(value_node, (*path, key))

    def _refuse_duplicates(self, node: yaml.MappingNode) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            key = self._key(key_node)
            if key in first and key != "<<":
                raise SpecError(
                    f"{self._mark(key_node)}: key {key!r} is given twice, first in line {first[key]}"
                )
            first[key] = key_node.start_mark.line + 1

    def _key(self, node: yaml.Node) -> str:
        import yaml

        if not isinstance(node, yaml.ScalarNode):
            raise SpecError(f"{self._mark(node)}: a key must be text")
        return str(node.value)

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self._shown, node.start_mark.line + 1, node.start_mark.column + 1)
