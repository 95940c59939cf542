"""Models that come as one file: exported programs (.pt2), TorchScript, and pickled modules where trusted.

What a file is, its content decides, not its ending: ``.pt`` is used for all of them.
"""

from __future__ import annotations

import enum
import inspect
import sys
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError
from triton_toolkit.export.signature import Signature
from triton_toolkit.export.source import make_importable, user_code
from triton_toolkit.export.structures import of_tree_spec, spec_children
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.trust import HOW_TO_LOAD

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_BUILD_IT = (
    "name a function that builds the module and loads these weights into it, such as examples.digits:model"
)
_NATIVE_CODE = "data/aotinductor/"
_PICKLED_OBJECT = "opaque_obj"


class FileKind(enum.Enum):
    """What a file holds."""

    PROGRAM = "an exported program"
    SCRIPT = "a TorchScript module"
    PICKLE = "a checkpoint"
    ONNX = "an ONNX file"
    SAFETENSORS = "weights"
    POINTER = "a Git LFS pointer"
    UNKNOWN = "nothing that is known"


def file_kind(path: Path) -> FileKind:
    """Return what a file holds, read off its first bytes and, for an archive, its table of contents."""
    if path.suffix in (".onnx", ".safetensors"):
        return FileKind.ONNX if path.suffix == ".onnx" else FileKind.SAFETENSORS
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        return FileKind.POINTER
    if not zipfile.is_zipfile(path):
        # A pickle of protocol 2 and up, or the tar that PyTorch wrote before 1.6.
        return FileKind.PICKLE if head[:1] == b"\x80" else FileKind.UNKNOWN
    inner = {name.partition("/")[2] for name in zipfile.ZipFile(path).namelist()}
    if any(name.startswith("models/") for name in inner) and "archive_format" in inner:
        return FileKind.PROGRAM
    if "constants.pkl" in inner:
        return FileKind.SCRIPT
    return FileKind.PICKLE if "data.pkl" in inner else FileKind.UNKNOWN


def load_file(path: Path, shown: str, *, trust: bool, files: ProjectFiles) -> torch.nn.Module:
    """Return the module that a file holds, on the CPU and in evaluation mode where it has modes.

    Args:
        path: The file.
        shown: Its name in the spec, for messages.
        trust: Whether it may run code of its own.
        files: The project's files; a trusted checkpoint finds its classes in the project.

    Raises:
        ExportError: It holds no model, would run code and is not trusted, or cannot be read.
    """
    kind = file_kind(path)
    match kind:
        case FileKind.PROGRAM:
            return _load_program(path, shown, trust=trust, files=files)
        case FileKind.SCRIPT:
            return _load_script(path, shown, files)
        case FileKind.PICKLE:
            return _load_pickle(path, shown, trust=trust, files=files)
    hints = {
        FileKind.ONNX: "set kind: onnx",
        FileKind.SAFETENSORS: _BUILD_IT,
        FileKind.POINTER: "fetch the file itself: git lfs pull",
        FileKind.UNKNOWN: "a source is a .pt2 (torch.export.save), a TorchScript file, or module:callable",
    }
    raise ExportError(f"{shown} holds {kind.value}, not a PyTorch model", hint=hints[kind])


def _load_script(path: Path, shown: str, files: ProjectFiles) -> torch.nn.Module:
    """Load a TorchScript archive: its code is PyTorch's operators, run by PyTorch's own interpreter."""
    import torch

    with _reading(shown, files), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        module: torch.nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
        return module.eval()


def _load_program(path: Path, shown: str, *, trust: bool, files: ProjectFiles) -> torch.nn.Module:
    """Load an exported program.

    Its weights are raw bytes and its graph is JSON, but it may hold compiled libraries, and objects that
    PyTorch unpickles without asking ``torch.load``.
    """
    import torch

    names = zipfile.ZipFile(path).namelist()
    code = [name for name in names if f"/{_NATIVE_CODE}" in name or f"/{_PICKLED_OBJECT}" in name]
    if code and not trust:
        raise ExportError(
            f"{shown} holds more than a program: {code[0]} runs code of its own when it is loaded",
            hint="save it again from plain tensors, or set trust: true if you trust the file",
        )
    with _reading(shown, files), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _as_module(torch.export.load(path))


def _as_module(program: ExportedProgram) -> torch.nn.Module:
    """Return a program as a module that is called by any of its names, as the exporter needs it.

    A program itself insists on the very mixture of positional and keyword arguments of its example, and
    on the values that were no tensors in it.
    """
    import torch
    from torch.export.graph_signature import ConstantArgument, InputKind

    inner: Any = program.module()
    # It has no modes, and says so by an exception; a module around it sets them for all it holds.
    inner.train = lambda mode=True: inner
    inner.eval = lambda: inner
    positional, keyword = map(spec_children, spec_children(program.call_spec.in_spec))
    specs = [*positional, *keyword]
    names = list(inspect.signature(inner.forward).parameters)
    by_position = names[: len(positional)]
    leaves = iter([s.arg for s in program.graph_signature.input_specs if s.kind is InputKind.USER_INPUT])
    constants, structures = {}, {}
    for name, spec in zip(names, specs, strict=True):
        first, *_ = own = [next(leaves) for _ in range(spec.num_leaves)] or [None]
        if len(own) == 1 and isinstance(first, ConstantArgument):
            constants[name] = first.value
        if (structure := of_tree_spec(spec)) is not None:
            structures[name] = structure
    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names if n not in constants]
    )

    class Program(torch.nn.Module):
        own_signature = Signature(signature, structures, f"the program's forward{signature}")

        def __init__(self) -> None:
            super().__init__()
            self.program = inner

        def forward(self, *given: Any, **named: Any) -> Any:
            values = constants | signature.bind(*given, **named).arguments
            return self.program(
                *[values[name] for name in by_position],
                **{name: values[name] for name in names if name not in by_position},
            )

    return Program().eval()


def _load_pickle(path: Path, shown: str, *, trust: bool, files: ProjectFiles) -> torch.nn.Module:
    """Load a pickled module where it is trusted; say what the file is where it is not."""
    import pickle

    import torch

    make_importable(files)
    try:
        with user_code(f"{shown} cannot be read", files):
            found = torch.load(path, map_location="cpu", weights_only=not trust)
    except ExportError as exc:
        if trust or not isinstance(exc.__cause__, pickle.UnpicklingError):
            raise
        raise ExportError(
            f"{shown} holds pickled objects, which run code of their own when they are loaded",
            hint=HOW_TO_LOAD,
            detail=exc.detail,
        ) from exc.__cause__
    if isinstance(found, torch.nn.Module):
        return found.cpu().eval()
    raise ExportError(f"{shown} holds {_described(found)}, not a model", hint=_BUILD_IT)


def _described(found: object) -> str:
    import torch

    if isinstance(found, dict):
        tensors = sum(isinstance(value, torch.Tensor) for value in found.values())
        if tensors:
            return f"weights alone (a state_dict of {tensors} tensors)"
        return f"a dict with {', '.join(map(repr, list(found)[:6]))}"
    return f"an object of type {type(found).__name__}"


def _reading(shown: str, files: ProjectFiles) -> Any:
    import torch

    version = f"{torch.__version__} on Python {sys.version_info.major}.{sys.version_info.minor}"
    return user_code(f"{shown} cannot be loaded by PyTorch {version}", files)
