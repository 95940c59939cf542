"""Load the user's code: ``module:callable`` found from the project's root.

This is the one place where any exception of the user's code becomes an ExportError that says
what was raised, where in the project, and what was being done.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import pickle
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError, TritonToolkitError
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.trust import HOW_TO_LOAD

if TYPE_CHECKING:
    import torch

_MAX_REASON = 300


def load_callable(files: ProjectFiles, target: str) -> Callable[..., Any]:
    """Import ``module:name`` (the name may be dotted) with the project's root on ``sys.path``.

    Raises:
        ExportError: Not of that form, the module does not exist or does not import, or has no such
            callable; near names are offered.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise ExportError(
            f"{target!r} is not module:callable", hint="write for example examples.digits:model"
        )
    module = _import(files, module_name, target)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in dir(found) if not name.startswith("_")]
            raise ExportError(
                f"{target}: {module_name} has no {attribute!r}{_near(part, names)}",
                hint=f"it has: {', '.join(names)}" if names else "",
            )
        found = getattr(found, part)
    if not callable(found):
        raise ExportError(f"{target} has type {type(found).__name__} and cannot be called")
    return found  # type: ignore[no-any-return]


def load_module(files: ProjectFiles, source: str) -> torch.nn.Module:
    """Call the factory ``source`` and return its module on the CPU, in evaluation mode.

    Evaluation mode is set here whatever the factory left: a served model never trains.

    Raises:
        ExportError: It does not import, raises, or gives something else than an nn.Module.
    """
    import torch

    factory = load_callable(files, source)
    if isinstance(factory, torch.nn.Module):  # an instance is callable too
        module: object = factory
    else:
        with user_code(f"{source} raised", files):
            module = factory()
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError(
            f"{source} gives a TorchScript module, which the exporter cannot trace",
            hint="return the nn.Module that the TorchScript was made from",
        )
    if not isinstance(module, torch.nn.Module):
        raise ExportError(
            f"{source} gives an object of type {type(module).__name__}, not a torch.nn.Module",
            hint="return the module itself, with its weights loaded",
        )
    with user_code(f"{source}: the module cannot be moved to the CPU", files):
        return module.cpu().eval()


def _import(files: ProjectFiles, name: str, target: str) -> ModuleType:
    make_importable(files)
    try:
        with user_code(f"{target}: cannot import {name}", files):
            return importlib.import_module(name)
    except ExportError as exc:
        cause = exc.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise _no_such_module(files, name, missing, target) from cause
        raise


def make_importable(files: ProjectFiles) -> None:
    """Put the project's root on ``sys.path``."""
    root = str(files.root)
    if root not in sys.path:
        sys.path.insert(0, root)
    importlib.invalidate_caches()


def _no_such_module(files: ProjectFiles, name: str, missing: str, target: str) -> ExportError:
    parent, _, last = missing.rpartition(".")
    package = sys.modules.get(parent) if parent else None
    folders = list(getattr(package, "__path__", [])) if package else [str(files.root)]
    names = [found.name for found in pkgutil.iter_modules(folders)]
    return ExportError(
        f"{target}: there is no module {name!r} in {files.root}{_near(last, names)}",
        hint="modules are found from the folder of tt.yaml",
    )


def _near(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


@contextlib.contextmanager
def user_code(doing: str, files: ProjectFiles) -> Iterator[None]:
    """Turn whatever the block raises into an ExportError "doing: Type: text (file:line)".

    Our own errors pass unchanged. Warnings of the user's code are shown, never errors.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            yield
        except TritonToolkitError:
            raise
        except (Exception, SystemExit) as exc:
            raise ExportError(
                f"{doing}: {reason(exc)}{_place(exc, files)}",
                hint=_hint(exc),
                detail="".join(traceback.format_exception(exc)),
            ) from exc


def reason(exc: BaseException) -> str:
    """Return an exception in one line: its type and the first paragraph of its text."""
    if isinstance(exc, SyntaxError):
        return f"{type(exc).__name__}: {exc.msg}"
    text = " ".join(str(exc).strip().partition("\n\n")[0].split())
    if len(text) > _MAX_REASON:
        text = text[: _MAX_REASON - 1] + "…"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def _place(exc: BaseException, files: ProjectFiles) -> str:
    """Return `` (file:line, in function)`` of the last frame in the project, or nothing."""
    if isinstance(exc, SyntaxError) and exc.filename:
        name = files.relative(exc.filename)
        return f" ({name or exc.filename}:{exc.lineno})"
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        name = files.relative(frame.filename)
        if name is not None and Path(frame.filename).is_file():
            return f" ({name}:{frame.lineno}, in {frame.name})"
    return ""


def _hint(exc: BaseException) -> str:
    if isinstance(exc, ModuleNotFoundError) and exc.name:
        return (
            f"install what brings {exc.name!r} into the model's environment: that of tt, or what env: names"
        )
    text = str(exc)
    if isinstance(exc, pickle.UnpicklingError) and "weights" in text.lower():
        return HOW_TO_LOAD
    if "CUDA" not in text and "cuda" not in text:
        return ""
    return (
        "the export runs on the CPU and sees no GPU, so that every machine gives the same bytes: "
        'use map_location="cpu" and no fixed device'
    )
