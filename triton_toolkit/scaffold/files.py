"""The text of a new project, and writing it without overwriting anything."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_toolkit._files import host_errors, write_text
from triton_toolkit.core.tensors import DataType, Extent
from triton_toolkit.errors import UsageError

SPEC_NAME = "tt.yaml"
EXAMPLE_NAME = "example_model.py"
BATCH = "batch"

_EXAMPLE = Path(__file__).parent.parent / "data" / "init" / f"{EXAMPLE_NAME}.in"
_PLAIN = re.compile(r"(?:\.\./)*[A-Za-z_][\w./-]*(?::[A-Za-z_][\w.]*)?")
_NOT_TEXT = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")  # in some version of YAML
_HEAD = """\
# The spec of this project. Relative paths start at this file's folder.
# `tt schema --help` says how editors complete and check it.
spec: 1

# Where `tt build` writes the model repository that Triton reads.
repository: model_repository

# Where `tt deploy --to local` goes. To have a server there, with the embedded Triton:
# mkdir -p served && tt serve served --detach --grpc-port 8001
targets:
  local:
    store: ./served
    servers: [grpc://127.0.0.1:8001]
    # release: "24.10"    # the Triton container there; limits the ONNX opset of the export

models:
"""
_TAIL = """\
    serve:                # fields of Triton's model_config.proto; times may carry a unit
      {batching}instance_group: [{{count: 1}}]
      warmup: auto        # requests that Triton runs before the model is ready
    slo:                  # what `tt probe` requires
      require: ["p99<100ms", "error_rate=0"]
"""
_CHECK = "CHANGE where your sizes differ"
_BATCHING = "dynamic_batching: {max_queue_delay_microseconds: 1ms}\n      "


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """An input or output as the new spec shows it; ``shape`` None leaves it out.

    ``note`` becomes a comment at the end of the line.
    """

    name: str
    dtype: DataType | None
    shape: Sequence[Extent] | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """What is known of the model that a new spec describes.

    Attributes:
        name: Its name on the server.
        head: Lines under the name: kind, source, sample; each with its comment.
        inputs: Its inputs.
        outputs: Its outputs; empty leaves them to the build.
        batch_dim: The dimension that Triton may batch over, None without.
    """

    name: str
    head: Sequence[str]
    inputs: Sequence[TensorLine]
    outputs: Sequence[TensorLine]
    batch_dim: str | None


def example_project() -> dict[str, str]:
    """Return the files of the example: name -> text."""
    model = ModelText(
        name="example",
        head=(
            "source: example_model:model     # module:function that returns a torch.nn.Module",
            "sample: example_model:sample    # module:function that returns example inputs by name",
        ),
        inputs=(TensorLine(name="features", dtype=DataType.FP32, shape=(BATCH, 4)),),
        outputs=(TensorLine(name="scores", dtype=None, shape=(BATCH, 3)),),
        batch_dim=BATCH,
    )
    return {SPEC_NAME: spec_text(model), EXAMPLE_NAME: _EXAMPLE.read_text(encoding="utf-8")}


def spec_text(model: ModelText) -> str:
    """Return a commented ``tt.yaml`` with one model."""
    lines = [f"  {quoted(model.name)}:", *(f"    {line}" for line in model.head)]
    for side, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        lines += [f"    {side}:"] if tensors else []
        lines += [f"      {_tensor(tensor)}" for tensor in tensors]
    lines += [f"    {line}" for line in _dim_lines(model)]
    batching = _BATCHING if model.batch_dim is not None else ""
    return _HEAD + "\n".join(lines) + "\n" + _TAIL.format(batching=batching)


def _dim_lines(model: ModelText) -> Iterator[str]:
    dims = dict.fromkeys(e for t in model.inputs for e in t.shape or () if isinstance(e, str))
    if dims:
        yield "dims:                 # [least, usual, most]: the build proves the model at these sizes"
    for dim in dims:
        yield f"  {quoted(dim)}: " + ("[1, 8, 32]" if dim == model.batch_dim else f"[1, 64, 256]  # {_CHECK}")
    if model.batch_dim is not None:
        yield f"batch_dim: {quoted(model.batch_dim)}      # Triton joins requests along it"


def check_free(folder: Path, names: Iterable[str]) -> None:
    """Check that none of the files exists.

    Raises:
        UsageError: One does.
    """
    for name in names:
        if (folder / name).exists():
            raise UsageError(
                f"{folder / name} exists, and tt init overwrites nothing",
                hint="edit it, or name another folder: tt init FOLDER",
            )


def write_project(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write new files into a folder, which is made where it is missing; return their paths.

    Raises:
        UsageError: One of the files exists; nothing is written then.
        EnvironmentProblem: The folder cannot be written.
    """
    check_free(folder, files)
    with host_errors(f"write into {folder}"):
        for name, text in files.items():
            write_text(folder / name, text)
    return [folder / name for name in files]


def model_name(text: str) -> str:
    """Return a name for the server made from a file's or function's name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_-") or "model"


def quoted(text: str) -> str:
    """Return text as a YAML scalar that is read back as this text."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT:
        return text
    return json.dumps(text)


def _tensor(tensor: TensorLine) -> str:
    parts = [f"dtype: {tensor.dtype.spec}"] if tensor.dtype else []
    if tensor.shape is not None:
        extents = (quoted(extent) if isinstance(extent, str) else str(extent) for extent in tensor.shape)
        parts.append(f"shape: [{', '.join(extents)}]")
    note = f"  # {tensor.note}" if tensor.note else ""
    return f"{quoted(tensor.name)}: {{{', '.join(parts)}}}{note}"
