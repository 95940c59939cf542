"""Load a model from whatever its ``source`` names: a function, a file, or a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit.core.sources import SourceKind, near_path, source_kind
from triton_toolkit.errors import ExportError
from triton_toolkit.export.checkpoints import load_file
from triton_toolkit.export.huggingface import folder_files, load_folder
from triton_toolkit.export.source import load_module

if TYPE_CHECKING:
    import torch

    from triton_toolkit.export.context import Context


def load_model(context: Context) -> torch.nn.Module:
    """Return the job's module, on the CPU and in evaluation mode.

    It may be a TorchScript module, which torch.export cannot trace. What a path names becomes a
    dependency of the build: PyTorch reads files unseen.

    Raises:
        ExportError: It does not exist, does not load, holds no model, or would run code untrusted.
        MissingDependencyError: A folder needs transformers, which is not installed.
    """
    job = context.job
    if source_kind(job.source) is not SourceKind.PATH:
        return load_module(context.files, job.source)
    path = job.root / job.source
    if path.is_dir():
        _depend(context, folder_files(path))
        context.seen_readers |= {"safetensors", "tokenizers"}
        module, notes = load_folder(
            path, job.source, tuple(job.outputs), trust=job.trust, files=context.files
        )
        for note in notes:
            context.note(note)
        return module
    if not path.is_file():
        near = near_path(path)
        raise ExportError(
            f"there is no file or folder {job.source!r}" + (f"; did you mean {near!r}?" if near else ""),
            hint="paths start at the folder of tt.yaml; a function is named module:callable",
        )
    _depend(context, [path])
    return load_file(path, job.source, trust=job.trust, files=context.files)


def _depend(context: Context, paths: list[Path]) -> None:
    context.dependencies.update(Path(os.path.relpath(path, context.job.root)).as_posix() for path in paths)
