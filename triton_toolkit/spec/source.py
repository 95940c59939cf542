"""Read YAML into plain values while remembering where each key stands.

PyYAML parses; this module makes the values, because ``yaml.safe_load`` forgets the marks, lets the
last of two equal keys win, and reads scalars by YAML 1.1: ``no`` and ``on`` as booleans, ``1e-4`` as
text, ``12:30`` and ``2026-01-01`` as a number and a date. Scalars here follow the core schema of YAML
1.2.2 (section 10.3.2), as editors do; merge keys (``<<``) work as in YAML 1.1.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import SpecError

if TYPE_CHECKING:
    import yaml

    _Pairs = dict[str, tuple[yaml.Node, yaml.Node]]

KeyPath = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[\w-]+")
_MAX_VALUES = 100_000
_MAX_DEPTH = 100
_MAX_DIGITS = 100
_TAG = "tag:yaml.org,2002:"


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
    """A YAML document as plain values.

    Attributes:
        value: Mappings, lists and scalars.
        marks: Where the key, or the list item, of each path stands.
        texts: What is written where an unquoted scalar is not text: ``24.10`` for 24.1.
    """

    value: Any
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)

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
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def read_yaml(path: Path, shown: str) -> Source:
    """Read one YAML file.

    Args:
        path: The file.
        shown: How to name it in messages (as the user gave it).

    Raises:
        SpecError: Missing or unreadable file, wrong encoding, syntax error, duplicate or
            non-text key, self-containing alias, a tag, too deep or too much, or an empty document.
    """
    import yaml

    text = _read_text(path, shown)
    try:
        node = yaml.compose(text, Loader=_loader())
        if node is None:
            raise SpecError(f"{shown}: the file is empty", hint="run `tt init` for a commented start")
        source = Source(None, {(): Mark(shown, 1, 1)})
        source.value = _Walker(shown, source).value(node, ())
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        problem = " ".join(part for part in (exc.context, exc.problem) if part)
        raise SpecError(f"{place}: YAML syntax error: {problem}", hint=_syntax_hint(problem)) from exc
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise SpecError(
            f"{shown}:{line}: the character {text[exc.position]!r} is not allowed in YAML"
        ) from exc
    except RecursionError:  # PyYAML's parser recurses before the walker can count
        raise SpecError(f"{shown}: nested too deeply to be read") from None
    return source


def _read_text(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SpecError(
            f"{shown}: no such file", hint="run `tt init` to write one, or name it with --spec FILE"
        ) from None
    except UnicodeDecodeError as exc:
        raise SpecError(f"{shown}: not UTF-8 text (byte {exc.start})", hint="save it as UTF-8") from exc
    except OSError as exc:
        raise SpecError(f"{shown}: cannot be read: {exc.strerror}") from exc


def _syntax_hint(problem: str) -> str:
    if "'\\t'" in problem:
        return "indent with spaces; YAML allows no tabs there"
    if "mapping values are not allowed" in problem:
        return "look for a missing quote or a wrong indentation; a value that contains ': ' must be quoted"
    return ""


@functools.cache
def _loader() -> type[yaml.BaseLoader]:
    """Return a PyYAML loader whose plain scalars get the tags of YAML 1.2's core schema."""
    import yaml

    class CoreLoader(yaml.BaseLoader):
        pass

    for name, pattern, first in (
        ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
        ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
        ("int", r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
        (
            "float",
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)"
            r"|\.(?:nan|NaN|NAN))$",
            list("-+.0123456789"),
        ),
    ):
        CoreLoader.add_implicit_resolver(_TAG + name, re.compile(pattern), first)
    return CoreLoader


def _scalar(tag: str, text: str) -> Any:
    """Return the value of a scalar.

    Raises:
        ValueError: The text does not fit the tag, or the tag is none of the core schema.
    """
    match tag.removeprefix(_TAG):
        case "str":
            return text
        case "null":
            return None
        case "bool" if text.lower() in ("true", "false"):
            return text.lower() == "true"
        case "int" if len(text) <= _MAX_DIGITS:
            return int(text, 0 if text[:2] in ("0o", "0x") else 10)
        case "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    raise ValueError(text)


class _Walker:
    """Turns a node tree into values and notes where each one stands."""

    def __init__(self, shown: str, source: Source) -> None:
        self._shown = shown
        self._source = source
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        import yaml

        self._source.marks.setdefault(path, self._mark(node))
        self._count += 1
        if self._count > _MAX_VALUES:
            raise SpecError(f"{self._mark(node)}: more than {_MAX_VALUES} values, aliases expanded")
        if len(path) > _MAX_DEPTH:
            raise SpecError(f"{self._mark(node)}: nested more than {_MAX_DEPTH} levels deep")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if node.tag not in (_TAG + "seq", _TAG + "map"):
            raise SpecError(f"{self._mark(node)}: the tag {node.tag.replace(_TAG, '!!')} is not supported")
        with self._inside(node):
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
            return dict(self._pairs(node, path))

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        try:
            value = _scalar(node.tag, node.value)
        except ValueError:
            shown = f"{node.tag.replace(_TAG, '!!')} {node.value[:40]!r}"
            raise SpecError(f"{self._mark(node)}: {shown} cannot be read; write the plain value") from None
        if not isinstance(value, str):
            self._source.texts[path] = node.value
        return value

    def _pairs(self, node: yaml.Node, path: KeyPath) -> Iterator[tuple[str, Any]]:
        for key, (key_node, value_node) in self._flatten(node).items():
            self._source.marks[(*path, key)] = self._mark(key_node)
            yield key, self.value(value_node, (*path, key))

    def _flatten(self, node: yaml.Node) -> _Pairs:
        """Return a mapping's keys in order, those merged by ``<<`` first, its own on top."""
        import yaml

        if not isinstance(node, yaml.MappingNode):
            raise SpecError(f"{self._mark(node)}: `<<` merges a mapping, or a list of mappings")
        merged: _Pairs = {}
        own: _Pairs = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise SpecError(f"{self._mark(key_node)}: a key must be text")
            key = str(key_node.value)
            if key in own:
                first = own[key][0].start_mark.line + 1
                raise SpecError(f"{self._mark(key_node)}: key {key!r} is given twice, first in line {first}")
            if key == "<<" and key_node.style is None:
                merged |= self._merged(value_node)
            else:
                own[key] = (key_node, value_node)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> _Pairs:
        import yaml

        merged: _Pairs = {}
        with self._inside(node):
            bases = node.value if isinstance(node, yaml.SequenceNode) else [node]
            for base in reversed(bases):  # of several bases, the first that has a key wins
                merged |= self._flatten(base)
        return merged

    @contextmanager
    def _inside(self, node: yaml.Node) -> Iterator[None]:
        if id(node) in self._open:
            raise SpecError(f"{self._mark(node)}: an alias contains itself")
        self._open.add(id(node))
        try:
            yield
        finally:
            self._open.discard(id(node))

    def _mark(self, node: yaml.Node) -> Mark:
        return Mark(self._shown, node.start_mark.line + 1, node.start_mark.column + 1)
