"""A Hugging Face model folder on disk: ``config.json`` beside weights, loaded with transformers, offline."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_toolkit.errors import ExportError, MissingDependencyError
from triton_toolkit.export.source import user_code
from triton_toolkit.export.trace_files import ProjectFiles

if TYPE_CHECKING:
    import torch

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_OF_OTHERS = (".h5", ".msgpack", ".ot", ".onnx", ".gguf", ".tflite", ".mlmodel")
_WEIGHTS = (".safetensors", ".bin")
_SHOWN = 6

_ASKED = {"hidden_states": "output_hidden_states", "attentions": "output_attentions"}
"""Outputs that a model computes only where its configuration says so."""


def folder_files(folder: Path) -> list[Path]:
    """Return the files of a model folder that a build depends on.

    Weights of other frameworks are left out, and pickled ones where safetensors are there, as
    transformers leaves them; so are hidden files, such as the cache of a download.
    """
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix not in _OF_OTHERS
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts)
    ]
    if any(path.suffix == ".safetensors" for path in found):
        found = [path for path in found if path.suffix != ".bin"]
    return found


def load_folder(
    folder: Path, shown: str, outputs: Sequence[str], *, trust: bool, files: ProjectFiles
) -> tuple[torch.nn.Module, list[str]]:
    """Return the model of a folder in FP32 and evaluation mode, and what the user should know of it.

    Its class is the one that ``architectures`` names. It returns a mapping; of outputs that are costly,
    hidden states and attentions are computed where they are declared, a cache never.

    Args:
        folder: The folder.
        shown: Its name in the spec, for messages.
        outputs: The declared outputs.
        trust: Whether code in the folder may run.
        files: The project's files, for messages.

    Raises:
        ExportError: It is no model folder, needs code of its own and is not trusted, or lacks weights.
        MissingDependencyError: transformers is not installed in the model's interpreter.
    """
    config = _read_config(folder, shown)
    with _offline():
        transformers = _transformers(shown)
        kind, code = _model_class(transformers, config, shown, trust=trust)
        model = _load(kind, folder, shown, trust=code, eager=_declared("attentions", outputs), files=files)
    model.config.use_cache, model.config.return_dict = False, True
    for name, option in _ASKED.items():
        if _declared(name, outputs):
            setattr(model.config, option, True)
    return model, _notes(folder, shown, config, code=code)


def _declared(name: str, outputs: Sequence[str]) -> bool:
    return any(output == name or output.startswith(f"{name}.") for output in outputs)


def _read_config(folder: Path, shown: str) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = ", ".join(sorted(found.name for found in folder.iterdir())[:_SHOWN]) or "nothing"
        raise ExportError(
            f"{shown} has no config.json, so it is no Hugging Face model folder",
            hint=f"it has: {names}; model.save_pretrained(folder) writes one",
        ) from None
    except ValueError as exc:
        raise ExportError(f"{shown}/config.json is not JSON: {exc}") from exc
    if not any(path.suffix in _WEIGHTS for path in folder.iterdir()):
        raise ExportError(
            f"{shown} has no weights: neither .safetensors nor .bin",
            hint="download the whole folder; where Git LFS left pointers, git lfs pull",
        )
    return config if isinstance(config, dict) else {}


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Have huggingface_hub, which reads these when it is imported, never ask the network."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _transformers(shown: str) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as exc:
        if exc.name != "transformers":
            raise
        raise MissingDependencyError(
            f"transformers is not installed; it is needed to load {shown}",
            hint="install transformers into the model's environment: that of tt, or what env: names",
        ) from exc
    transformers.logging.disable_progress_bar()
    return transformers


def _model_class(transformers: Any, config: dict[str, Any], shown: str, *, trust: bool) -> tuple[Any, bool]:
    """Return the class that loads the folder, and whether code of the folder will run."""
    architectures = config.get("architectures") or []
    custom = [name for name in config.get("auto_map") or {} if name.startswith("AutoModel")]
    if custom and trust:
        return getattr(transformers, custom[0]), True
    if not architectures:
        raise ExportError(
            f"{shown}/config.json names no architectures, so the model's class is unknown",
            hint='add "architectures": ["BertModel"], or name a function that loads it',
        )
    name = str(architectures[0])
    kind = getattr(transformers, name, None)
    if kind is not None and hasattr(kind, "from_pretrained"):
        return kind, False
    if custom:
        raise ExportError(
            f"{shown}: {name} is code of the folder itself, which runs when the model is loaded",
            hint="set trust: true if you trust that code",
        )
    raise ExportError(
        f"{shown}: transformers {transformers.__version__} has no {name}",
        hint="install the version of transformers that the model was saved with, or name a function that "
        "loads it",
    )


def _load(kind: Any, folder: Path, shown: str, *, trust: bool, eager: bool, files: ProjectFiles) -> Any:
    import torch

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust, "dtype": torch.float32}
    if eager:  # the fused kernels do not give attentions
        options["attn_implementation"] = "eager"
    with user_code(f"{shown}: {kind.__name__} cannot be loaded", files), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, info = kind.from_pretrained(
            str(folder), output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    for what in ("missing_keys", "mismatched_keys"):
        lacking = sorted(str(key) for key in info.get(what) or ())
        if lacking:
            more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
            raise ExportError(
                f"{shown} lacks weights of {type(model).__name__}: {', '.join(lacking[:_SHOWN])}{more}; "
                "they would be random",
                hint="correct architectures in config.json, or save the model again",
            )
    return model.cpu().eval()


def _notes(folder: Path, shown: str, config: dict[str, Any], *, code: bool) -> list[str]:
    notes = []
    if config.get("auto_map") and not code:
        notes.append(
            f"{shown} brings code of its own, which is not run; the class of transformers is used instead"
        )
    if (folder / "modules.json").is_file():
        notes.append(
            f"{shown} is a sentence-transformers model: only its transformer is exported, without pooling"
        )
    return notes
