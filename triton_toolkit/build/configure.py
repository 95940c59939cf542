"""From a passport and the spec's ``serve:`` to the text of ``config.pbtxt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triton_toolkit.build.recipe import Context
from triton_toolkit.config.describe import ConfigDescription, EnsembleStep, ServeKeyError, check_serve
from triton_toolkit.config.render import render_config
from triton_toolkit.core.dims import Sizes
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def check_keys(context: Context, name: str, serve: Mapping[str, Any]) -> None:
    """Check the names, types and units of the keys below ``serve:``, before anything is built.

    Raises:
        SpecError: The server has no such field, or the value cannot be one of its values.
    """
    fields = {key: value for key, value in serve.items() if key != "warmup"}
    at = ("models", name, "serve")
    warmup = serve.get("warmup", "none")
    if warmup not in ("auto", "none"):
        hint = "for samples of your own write model_warmup"
        raise context.project.error((*at, "warmup"), f"is auto or none, got {warmup!r}", hint)
    try:
        check_serve(fields)
    except ServeKeyError as exc:
        raise context.project.error((*at, *exc.path), exc.message, exc.hint) from exc


def render(
    context: Context, passport: Passport, serve: Mapping[str, Any], steps: tuple[EnsembleStep, ...] = ()
) -> str:
    """Render the config of a built model.

    Raises:
        SpecError: A key below ``serve:`` that the server does not know or would refuse.
        RepositoryError: A template that fails, or renders something else than the spec says.
    """
    project = context.project
    fields = dict(serve)
    warmup = fields.pop("warmup", "none")
    at = ("models", passport.model, "serve")
    description = ConfigDescription(
        name=passport.model,
        backend=passport.backend,
        platform="" if passport.backend else "ensemble",
        max_batch_size=passport.dims[passport.batch_dim][2] if passport.batch_dim else 0,
        inputs=passport.inputs,
        outputs=passport.outputs,
        batch_dim=passport.batch_dim,
        serve=fields,
        warmup=warmup,
        warmup_sizes=_warmup_sizes(passport),
        ensemble_steps=steps,
    )
    templates = project.root / project.spec.templates if project.spec.templates else None
    try:
        return render_config(description, templates)
    except ServeKeyError as exc:
        raise project.error((*at, *exc.path), exc.message, exc.hint) from exc


def _warmup_sizes(passport: Passport) -> list[Sizes]:
    """Return the sizes of the dynamic dimensions to warm: the commonest and the largest."""
    dims = {name: sizes for name, sizes in passport.dims.items() if name != passport.batch_dim}
    corners = [{name: sizes[end] for name, sizes in dims.items()} for end in (1, 2)]
    return corners if corners[0] != corners[1] else corners[:1]
