"""``tt init``: a commented tt.yaml, and an example or what can be read off a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from triton_toolkit.cli._options import json_option

if TYPE_CHECKING:
    from triton_toolkit._progress import Progress


@click.command(
    epilog="""\b
Examples:
  tt init                              a tiny example in this folder
  tt init shop                         the same in the new folder shop
  tt init --from detector.onnx         names, types and dimensions read from the file
  tt init --from nets.unet:build       read from the signature of forward, and from a sample
"""
)
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="An ONNX file, or module:function (found from FOLDER) that returns a torch.nn.Module.",
)
@json_option
def command(folder: Path, source: str | None, json_mode: bool) -> None:
    """Write a commented tt.yaml into FOLDER; nothing is overwritten.

    FOLDER is the current one where none is given. Without --from the spec describes a tiny example,
    whose module is written too.
    """
    from triton_toolkit.cli._output import Console
    from triton_toolkit.scaffold.files import SPEC_NAME, check_free, example_project, write_project

    console = Console(json_mode)
    check_free(folder, [SPEC_NAME])
    with console.progress() as progress:
        files = example_project() if source is None else _files_from(source, folder, progress)
    written = write_project(folder, files)
    if json_mode:
        console.json({"files": [str(path) for path in written]})
        return
    for path in written:
        console.line(f"wrote {path}")
    look = "" if source is None else f"look through {written[0].name}, then "
    go = "" if folder == Path() else f"cd {folder} && "
    console.line(f"next: {look}{go}tt build")


def _files_from(source: str, folder: Path, progress: Progress) -> dict[str, str]:
    from triton_toolkit.errors import UsageError
    from triton_toolkit.scaffold.from_onnx import onnx_project
    from triton_toolkit.scaffold.from_torch import torch_project

    if Path(source).is_file():
        return onnx_project(Path(source), folder)
    module, separator, function = source.partition(":")
    if separator and module and function and "/" not in source:
        return torch_project(source, folder, progress)
    raise UsageError(
        f"--from {source!r} is neither a file nor module:function",
        hint="give an ONNX file, or for example nets.unet:build",
    )
