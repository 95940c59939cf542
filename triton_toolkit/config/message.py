"""Text of a config.pbtxt <-> the ModelConfig protobuf.

google.protobuf's text format does the parsing; here its errors get a place, a near match and the
consequence. The server parses with the same library in C++: tests compare what the two accept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.config.vocabulary import (
    data_type_alias,
    did_you_mean,
    field_names,
    near,
    places,
)
from triton_toolkit.errors import RepositoryError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from google.protobuf.text_format import ParseError
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_CONSEQUENCE = "Triton refuses the whole file: the model does not load"
_UNKNOWN_FIELD = re.compile(r'Message type "inference\.([\w.]+)" has no field named "([^"]+)"')
_SWITCH_OFF = re.compile(r"\b(input_pinned_memory|output_pinned_memory|response_cache) \{\n *\}")
_EMPTY_BLOCK = re.compile(r"\{\n *\}")
_UNKNOWN_VALUE = re.compile(r'Enum type "inference\.([\w.]+)" has no value named (\w+)')


def parse_config(text: str, where: str) -> ModelConfig:
    """Parse the text of a config.pbtxt.

    Args:
        text: The file's content.
        where: How messages name the file.

    Raises:
        RepositoryError: The text is no ModelConfig: syntax, an unknown field or enum value, a value out
            of range, a field given twice. Says line and column, and offers a near name.
    """
    from google.protobuf import text_format
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as exc:
        raise _parse_error(exc, text, where) from exc


def load_config(path: Path, where: str = "") -> ModelConfig:
    """Read and parse a config.pbtxt file; ``where`` is how messages name it (the path where left out).

    Raises:
        RepositoryError: The file is missing, unreadable, not UTF-8, or no ModelConfig.
    """
    where = where or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise RepositoryError(f"{where}: not UTF-8 text (byte {exc.start}). {_CONSEQUENCE}") from exc
    except OSError as exc:
        raise RepositoryError(f"{where}: cannot be read: {exc.strerror}") from exc
    return parse_config(text, where)


def format_config(message: Message) -> str:
    """Return the canonical text of a config, or of a part of one.

    Fields in the order of the proto, maps by key, lists of numbers on one line; fields at their default
    are left out, as the protobuf cannot tell them from unset ones, but for ``enable: false``, which an
    empty block would hide. Equal messages give equal text.
    """
    from google.protobuf import text_format

    text = text_format.MessageToString(message, as_utf8=True, use_short_repeated_primitives=True)
    # text literals hold no line breaks, so these match blocks only
    return _EMPTY_BLOCK.sub("{ }", _SWITCH_OFF.sub(r"\1 { enable: false }", text))


def _parse_error(exc: ParseError, text: str, where: str) -> RepositoryError:
    line, column = exc.GetLine(), exc.GetColumn()
    problem = str(exc)
    if line is not None and column is not None:
        where = f"{where}:{line}:{column}"
        problem = problem.removeprefix(f"{line}:{column} : ")
        # protobuf quotes the whole line, or nothing at the end of the text, before some messages
        quoted = ("", *text.split("\n")[line - 1 : line])
        problem = min((problem.removeprefix(f"'{part}': ") for part in quoted), key=len)
    problem, hint = _explain(problem.rstrip("."))
    return RepositoryError(f"{where}: {problem}. {_CONSEQUENCE}", hint=hint)


def _explain(problem: str) -> tuple[str, str]:
    """Return protobuf's message in terms of the config, and a hint."""
    from tritonclient.grpc import model_config_pb2

    pool = model_config_pb2.DESCRIPTOR.pool
    if match := _UNKNOWN_FIELD.fullmatch(problem):
        block, name = match.groups()
        known = field_names(pool.FindMessageTypeByName(f"inference.{block}"))
        elsewhere = places(model_config_pb2.ModelConfig.DESCRIPTOR, name)
        guess = near(name, known)
        if elsewhere and not guess:
            return f"{block} has no field {name!r}", f"it is a field of {', '.join(elsewhere)}"
        return f"{block} has no field {name!r}{did_you_mean(guess)}", f"its fields: {', '.join(known)}"
    if match := _UNKNOWN_VALUE.fullmatch(problem):
        names = [value.name for value in pool.FindEnumTypeByName(f"inference.{match[1]}").values]
        guess = data_type_alias(match[2])
        guess = guess if guess in names else near(match[2], names)
        return f"{match[1]} has no value {match[2]!r}{did_you_mean(guess)}", f"its values: {', '.join(names)}"
    return problem.replace('"inference.', '"'), ""
