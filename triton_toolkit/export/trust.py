"""Files that are not the user's own code run none: checkpoints load weights only, unless they are trusted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"

HOW_TO_LOAD = (
    "save the weights alone (torch.save(model.state_dict(), …)) and name a function that builds the module "
    "and loads them, or save a .pt2 (torch.export.save); if you trust the file, set trust: true"
)
"""What to do about a checkpoint that holds more than weights."""


@contextlib.contextmanager
def loading(*, trust: bool) -> Iterator[None]:
    """Have ``torch.load`` refuse pickled objects while the block runs, wherever it is called from.

    PyTorch reads these variables at each call, and they win over ``weights_only=False``; what the block
    starts inherits them. With ``trust`` everything is as PyTorch has it.
    """
    before = {name: os.environ.get(name) for name in (_FORCE, _FORCE_NOT)}
    if not trust:
        os.environ.pop(_FORCE_NOT, None)
        os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
