"""A ConfigDescription -> the text of config.pbtxt, through templates, proven by parsing it back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.config.describe import ConfigDescription, build_message
from triton_toolkit.config.message import format_config, parse_config
from triton_toolkit.config.rules import Severity, check_config
from triton_toolkit.config.view import MessageView
from triton_toolkit.config.vocabulary import descriptor_of, field_names
from triton_toolkit.errors import RepositoryError

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

_KEPT = ("name", "backend", "platform", "input", "output")


def render_config(description: ConfigDescription, overrides: Path | None = None) -> str:
    """Render the config.pbtxt of a model. Equal descriptions and templates give equal text.

    Args:
        description: What to render.
        overrides: The user's folder of templates; a file there replaces the shipped one of its name.

    Raises:
        ServeKeyError: As ``build_message``.
        SpecError: ``overrides`` is no folder, or replaces nothing.
        RepositoryError: A template fails; or its text is no config, loses or changes what the build
            has found, or makes a config that Triton refuses. Names the template.
    """
    from triton_toolkit.config.templates import MAIN, overridden, shipped_folder

    message = build_message(description)
    replaced = overridden(overrides)
    text = render_message(message, overrides)
    if overrides is not None:
        where = " or ".join(str(overrides / name) for name in replaced)
        _check_override(message, _parse(text, where), where)
    else:
        where = str(shipped_folder() / MAIN)
        changed = changed_fields(message, _parse(text, where), field_names(descriptor_of(message)))
        if changed:
            raise RepositoryError(f"template {where}: changes {', '.join(changed)}")
    return text


def render_message(message: ModelConfig, overrides: Path | None = None) -> str:
    """Render any config through the templates, without the checks of ``render_config``.

    Raises:
        RepositoryError: A template fails.
    """
    from triton_toolkit.config.templates import MAIN, environment, template_errors

    with template_errors():
        template = environment(overrides).get_template(MAIN)
        return _tidy(template.render(config=MessageView(message)))


def changed_fields(before: ModelConfig, after: ModelConfig, names: Iterable[str]) -> list[str]:
    """Return those of the top-level fields that differ between two configs."""
    return [name for name in names if _only(before, name) != _only(after, name)]


def _only(message: ModelConfig, name: str) -> ModelConfig:
    part = type(message)()
    part.CopyFrom(message)
    for field in field_names(descriptor_of(message)):
        if field != name:
            part.ClearField(field)
    return part


def _parse(text: str, where: str) -> ModelConfig:
    try:
        return parse_config(text, "the rendered text")
    except RepositoryError as exc:
        raise RepositoryError(
            f"template {where}: does not render a config: {exc.message}", hint=exc.hint, detail=text
        ) from exc


def _check_override(built: ModelConfig, rendered: ModelConfig, where: str) -> None:
    """Raise where a user's template contradicts the build, or the server's rules."""
    for name in changed_fields(built, rendered, _KEPT):
        wanted, got = (format_config(_only(config, name)).strip() for config in (built, rendered))
        raise RepositoryError(
            f"template {where}: changes {name}, which comes from the build",
            hint=f"keep {{{{ config.{name} }}}} in it, or include the shipped template",
            detail=f"the build has:\n{wanted or '(nothing)'}\nthe template renders:\n{got or '(nothing)'}",
        )
    largest, got = built.max_batch_size, rendered.max_batch_size
    if got != largest and not 1 <= got <= largest:
        raise RepositoryError(
            f"template {where}: max_batch_size {got} is not what the build has proven, {largest}",
            hint="a template may lower it to 1 and above",
        )
    for finding in check_config(rendered):
        if finding.severity is Severity.ERROR:
            raise RepositoryError(f"template {where}: {finding}", hint=finding.hint)


def _tidy(text: str) -> str:
    """Drop blanks at line ends and runs of empty lines; text literals hold no line breaks."""
    lines = "\n".join(line.rstrip(" \t") for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", lines).strip("\n") + "\n"
