"""``tt serve``: the embedded Triton server on a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from triton_toolkit.cli._options import json_option, parse_timeout, spec_option
from triton_toolkit.cli._output import Console
from triton_toolkit.errors import EXIT_NO, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from triton_toolkit.server.detached import DetachedServer
    from triton_toolkit.server.embedded import EmbeddedServer, ModelReport, ServeOptions

_DEFAULT_REPOSITORY = Path("model_repository")
_port = click.IntRange(1, 65535)


@click.command(
    epilog="""\b
    Examples:
      tt serve                         the spec's repository, on free ports, until ctrl-C
      tt serve model_repository --grpc-port 8001 --detach
      tt serve --stop"""
)
@click.argument("repository", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--detach", is_flag=True, help="Leave the server running, and return when it is ready.")
@click.option("--stop", is_flag=True, help="End the detached server of this repository.")
@click.option("--grpc-port", type=_port, metavar="N", help="Port for gRPC; a free one by default.")
@click.option("--http-port", type=_port, metavar="N", help="Port for HTTP; a free one by default.")
@click.option("--metrics-port", type=_port, metavar="N", help="Port for metrics; a free one by default.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Load only this; may be repeated.")
@click.option(
    "--ready-timeout", default="120s", show_default=True, metavar="TIME", help="For the start and all loads."
)
@click.option(
    "--exit-timeout",
    default="10s",
    show_default=True,
    metavar="TIME",
    help="For requests in flight at the end.",
)
@spec_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    repository: Path | None,
    detach: bool,
    stop: bool,
    spec_path: Path,
    json_mode: bool,
    **options: Any,
) -> None:
    """Serve a model repository with a real Triton, no container.

    REPOSITORY is the spec's by default, or ./model_repository where there is no spec. It is only read. A
    model that does not load is shown with the server's own reason, and does not stop the others.

    With --detach the exit code is 1 when a model did not load; the server stays up.
    """
    console = Console(json_mode)
    folder = repository or _repository_of_spec(ctx, spec_path)
    if stop:
        _stop(console, folder, detach=detach)
        return
    wanted = _options(folder, **options)
    if detach:
        if not _detach(console, wanted):
            ctx.exit(EXIT_NO)
        return
    _serve(console, wanted)


def _options(
    repository: Path, *, models: tuple[str, ...], ready_timeout: str, exit_timeout: str, **rest: Any
) -> ServeOptions:
    from triton_toolkit.server.embedded import ServeOptions

    exit_timeout_s = parse_timeout("--exit-timeout", exit_timeout, zero=True)
    if exit_timeout_s != int(exit_timeout_s):
        raise UsageError(f"--exit-timeout: {exit_timeout!r} is not a whole number of seconds")
    return ServeOptions(
        repository=repository,
        load=models or "all",
        ready_timeout_s=parse_timeout("--ready-timeout", ready_timeout),
        exit_timeout_s=int(exit_timeout_s),
        **rest,
    )


def _repository_of_spec(ctx: click.Context, spec_path: Path) -> Path:
    given = ctx.get_parameter_source("spec_path") is not click.core.ParameterSource.DEFAULT
    if not given and not spec_path.exists():
        return _DEFAULT_REPOSITORY
    from triton_toolkit.spec.load import load_project

    return load_project(spec_path).repository


def _serve(console: Console, options: ServeOptions) -> None:
    """Serve until ctrl-C, which is a clean end; a server that ends by itself is an error."""
    from triton_toolkit.server.embedded import EmbeddedServer

    server: EmbeddedServer
    with console.progress() as progress:
        server = EmbeddedServer(options, progress=progress)
        server.start()
    try:
        _show(console, server, server.models(), detached=False)
        console.line("Press ctrl-C to stop.")
        server.wait()
    except KeyboardInterrupt:
        console.line("Stopping.")
    finally:
        server.stop()


def _detach(console: Console, options: ServeOptions) -> bool:
    """Start a server that stays; return whether all its models are READY."""
    from triton_toolkit.server.detached import start_detached

    with console.progress() as progress:
        server, models = start_detached(options, progress=progress)
    _show(console, server, models, detached=True)
    console.line(f"It runs until `tt serve --stop {server.repository}`. Its log: {server.log}")
    return all(model.ready for model in models if model.state != "UNLOADED")


def _stop(console: Console, repository: Path, *, detach: bool) -> None:
    from triton_toolkit.server.detached import list_detached, stop_detached

    if detach:
        raise UsageError("--stop and --detach exclude each other")
    with console.progress() as progress:
        progress.step("server", "stopping")
        stopped = stop_detached(repository)
    if console.json_mode:
        console.json({"repository": str(repository.absolute()), "stopped": stopped is not None})
    if stopped is not None:
        console.line(f"Stopped the server on {stopped.repository}.")
        return
    console.line(f"No detached server runs on {repository.absolute()}.")
    for other in list_detached():
        console.line(f"One runs on {other.repository}, at {other.grpc_url}.")


def _show(
    console: Console,
    server: EmbeddedServer | DetachedServer,
    models: Sequence[ModelReport],
    *,
    detached: bool,
) -> None:
    if console.json_mode:
        console.json(
            {
                "grpc_url": server.grpc_url,
                "http_url": server.http_url,
                "metrics_url": server.metrics_url,
                "pid": server.pid,
                "detached": detached,
                "models": [model.as_dict() for model in models],
            }
        )
    console.line(f"gRPC     {server.grpc_url}")
    console.line(f"HTTP     {server.http_url}")
    console.line(f"metrics  {server.metrics_url}")
    columns = ["MODEL", "VERSION", "STATE", *(["REASON"] if any(model.reason for model in models) else [])]
    rows = [[model.name, model.version, model.state, model.reason][: len(columns)] for model in models]
    console.table(columns, rows)
