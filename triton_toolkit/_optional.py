"""Late imports of heavy or optional packages, with a hint when one is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from triton_toolkit.errors import MissingDependencyError

EXTRAS = {
    "cpu": "run ONNX models on the CPU (onnxruntime)",
    "gpu": "run and build for NVIDIA GPUs (onnxruntime-gpu, tensorrt, polygraphy)",
    "torch": "export PyTorch models (torch, onnxscript)",
    "serve": "the embedded Triton server (nvidia-pytriton)",
    "s3": "a build cache in an S3 bucket (s3fs)",
}


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import ``module``, or say which extra brings it.

    Args:
        module: Dotted name to import, such as ``torch`` or ``onnxruntime``.
        extra: The extra of this package that installs it; a key of ``EXTRAS``.
        purpose: What it is needed for, to end the sentence "... is needed to".

    Raises:
        MissingDependencyError: The package is not installed. An error raised *inside* an
            installed package passes through unchanged, since installing would not help.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        top = module.partition(".")[0]
        if exc.name is None or exc.name.partition(".")[0] != top:
            raise
        raise MissingDependencyError(
            f"{top} is not installed; it is needed to {purpose}",
            hint=f"pip install 'triton-toolkit[{extra}]'",
        ) from exc
