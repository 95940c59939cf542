"""INT8-dynamic of a BERT-base-sized encoder against FP32, both in ONNX Runtime on this CPU.

The encoder is transformers' BertModel as BertConfig makes it, with random weights: speed does not depend on
their values. `tt build` exports it and makes the int8-dynamic variant; `tt`'s own timing then lets both take
turns in one run, for each batch, sequence length and number of threads. What `tt build` says of the variant's
speed must be what its passport says.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_document import DOCUMENT, write_rows

from triton_toolkit._machine import look_at_host
from triton_toolkit.optimise.timing import FEATURES, Speed, describe_cpu, time_variant

BATCHES, LENGTHS = (1, 8), (32, 128)
WORDS = {True: "faster", False: "not faster", None: "undecided"}

SOURCE = """\
import torch
from transformers import BertConfig, BertModel


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bert = BertModel(BertConfig(num_hidden_layers={layers}), add_pooling_layer=False)

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def model():
    return Encoder().eval()


def sample(batch=8, seq=128):
    ids = torch.randint(0, 30522, (batch, seq), generator=torch.Generator().manual_seed(1))
    return {{"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()}}
"""
SPEC = """\
spec: 1
models:
  encoder:
    source: encoder:model
    sample: encoder:sample
    inputs:
      input_ids: {dtype: int64, shape: [batch, seq]}
      attention_mask: {dtype: int64, shape: [batch, seq]}
    outputs: {hidden: {shape: [batch, seq, 768]}}
    dims: {batch: [1, 8, 8], seq: [8, 128, 128]}
    batch_dim: batch
    variants: {fp32: {}, dynamic: {precision: int8-dynamic}}
    also: [dynamic]
"""


def build(root: Path, layers: int) -> tuple[Path, Path, dict[str, Any]]:
    """Build both in a new project; return the two files, and the variant's passport."""
    (root / "encoder.py").write_text(SOURCE.format(layers=layers))
    (root / "tt.yaml").write_text(SPEC)
    argv = [sys.executable, "-m", "triton_toolkit", "build"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(argv, cwd=root, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    if done.returncode != 0:
        sys.exit("tt build failed")
    base, variant = (root / "model_repository" / name / "1" for name in ("encoder", "encoder_dynamic"))
    passport = json.loads((variant / "passport.json").read_text())
    warned = "faster than fp32 here" in done.stderr
    if warned is (passport["speed"]["faster"] is True):
        sys.exit(f"the build and the passport tell different things: {passport['speed']}")
    return base / "model.onnx", variant / "model.onnx", passport


def inputs(batch: int, length: int) -> dict[str, np.ndarray[Any, Any]]:
    ids = np.random.default_rng(1).integers(0, 30522, (batch, length))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def measure(
    base: Path, variant: Path, arguments: argparse.Namespace
) -> Iterator[tuple[tuple[int, int, int], Speed]]:
    """Yield threads, batch and length, and what was measured of them."""
    threads = sorted({1, len(os.sched_getaffinity(0))}, reverse=True)
    for point in itertools.product(threads, arguments.batches, arguments.lengths):
        used, batch, length = point
        speed = time_variant(base, variant, inputs(batch, length), threads=used, most_s=arguments.seconds)
        print(f"{used} threads, {batch} x {length}: {speed.text}", file=sys.stderr)
        yield point, speed


def row(point: tuple[int, int, int], speed: Speed, load: float) -> str:
    """Return a line for the document."""
    threads, batch, length = point
    has = ", ".join(name for name in FEATURES if speed.cpu[name]) or "none of them"
    host = f"{speed.cpu['model']}, {look_at_host().cpus} cores, load {load:.1f}"
    ratio = f"**{speed.ratio:.2f}** ({speed.low:.2f} to {speed.high:.2f}, n={speed.rounds})"
    return (
        f"| {datetime.date.today():%Y-%m-%d} | {host} | {has} | {threads} | {batch}, {length} "
        f"| {speed.base_ms:.1f} | {speed.variant_ms:.1f} | {ratio} | {WORDS[speed.faster]} |"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-int8-dynamic", description=__doc__)
    parser.add_argument("--layers", type=int, default=12, help="of the encoder; BERT-base has 12")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of a sequence")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement, if undecided")
    parser.add_argument("--write", action="store_true", help=f"put the result into {DOCUMENT}")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    load = os.getloadavg()[0]
    cpu = describe_cpu()
    print(", ".join(f"{name}: {value}" for name, value in cpu.items()), f"load: {load:.2f}", sep=", ")
    with tempfile.TemporaryDirectory(prefix="bench-int8-dynamic-") as folder:
        base, variant, _ = build(Path(folder), arguments.layers)
        rows = [row(point, speed, load) for point, speed in measure(base, variant, arguments)]
    print("\n".join(rows))
    if arguments.write:
        write_rows("bench-int8-dynamic", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
