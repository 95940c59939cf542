"""A throwaway project whose modules are imported like a user's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from triton_toolkit._progress import Silent
from triton_toolkit.core.dims import Dim
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.export.job import ExportJob, ExportReport
from triton_toolkit.export.trace_files import ProjectFiles
from triton_toolkit.export.worker import perform

_NET = """\
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
{init}

    def forward(self, {parameters}):
{forward}


model = Net
"""


class Project:
    """A folder with a module ``nets``; its jobs have an input x of shape [batch, 4] and an output y."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.out = root / "out"
        self.files = ProjectFiles(root)

    def write(self, text: str, name: str = "nets.py") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
        return path

    def net(
        self,
        forward: str = "return self.linear(x)",
        *,
        parameters: str = "x",
        init: str = "self.linear = nn.Linear(4, 3)",
        more: str = "",
    ) -> Path:
        """Write ``nets.py`` with a module of this forward; ``more`` is added at the end."""
        text = _NET.format(
            init=indent(dedent(init).strip(), " " * 8),
            parameters=parameters,
            forward=indent(dedent(forward).strip(), " " * 8),
        )
        return self.write(text + dedent(more))

    def job(self, **changes: Any) -> ExportJob:
        settings: dict[str, Any] = {
            "root": self.root,
            "kind": "torch",
            "source": "nets:model",
            "inputs": (self.tensor("x", "batch", 4),),
            "outputs": {"y": (None, None)},
            "dims": self.dims(batch=(1, 4, 8)),
            "opset": 18,
            "ir_version": 10,
        }
        return ExportJob(**(settings | changes))

    def run(self, **changes: Any) -> ExportReport:
        """Export in this process."""
        self.out.mkdir(exist_ok=True)
        return perform(self.job(**changes), self.out, Silent())

    @staticmethod
    def tensor(name: str, *shape: int | str, dtype: str = "fp32") -> TensorSpec:
        return TensorSpec(name=name, dtype=DataType.parse(dtype), shape=shape)

    @staticmethod
    def dims(**ranges: tuple[int, int, int]) -> dict[str, Dim]:
        return {n: Dim(name=n, min=low, opt=opt, max=high) for n, (low, opt, high) in ranges.items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Give an empty project; its modules are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield Project(tmp_path)
    own = {path.stem for path in tmp_path.iterdir()}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or Path(file).is_relative_to(tmp_path):  # None: a package without __init__
            del sys.modules[name]
