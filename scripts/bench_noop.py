"""`tt build` where nothing changed: seconds, and as a multiple of the start of Python with two imports.

The project has 100 models: 70 ONNX files with weights, 25 Python models, 5 ensembles over them; each has a
config with several fields. It is built once. Then `tt build --json` and `python -c "import yaml, pydantic"`
run in turns, and each run of tt must say that every model is unchanged. A further figure is the first run
after the hashes of large files, which tt remembers, were thrown away: then all files are read.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from bench_document import DOCUMENT, write_rows
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit._machine import look_at_host
from triton_toolkit._workspace import HASHES_NAME

LIMIT_S = 2.0
ONNX, PYTHON, ENSEMBLES = 70, 25, 5
TT = [sys.executable, "-m", "triton_toolkit", "build", "--json"]
BASELINE = [sys.executable, "-c", "import yaml, pydantic"]
AT_REST_S = 2.5
"""A file must have been at rest for two seconds before its hash is remembered."""

SERVED = """\
    serve:
      dynamic_batching: {preferred_batch_size: [8, 16], max_queue_delay_microseconds: 500us}
      instance_group: [{count: 1, kind: KIND_CPU}]
      warmup: auto
    slo: {require: ["p99<250ms", "error_rate=0"]}
"""
ONNX_MODEL = """\
  {name}:
    kind: onnx
    source: {name}.onnx
    dims: {{batch: [1, 8, 32]}}
    batch_dim: batch
"""
PYTHON_MODEL = """\
  {name}:
    kind: python
    files: python/{name}
    inputs: {{x: {{dtype: fp32, shape: [batch, 16]}}}}
    outputs: {{y: {{dtype: fp32, shape: [batch, 16]}}}}
    dims: {{batch: [1, 8, 32]}}
    batch_dim: batch
"""
ENSEMBLE = """\
  {name}:
    kind: ensemble
    steps: [{first}, {{model: {second}, inputs: {{x: y}}, outputs: {{y: z}}}}]
"""


def write_project(root: Path, weights_bytes: int) -> None:
    generator = np.random.default_rng(0)
    spec = ["spec: 1\nmodels:\n"]
    for number in range(ONNX):
        name = f"net{number}"
        rows = weights_bytes // 4 // 16
        weights = numpy_helper.from_array(generator.standard_normal((16, rows), np.float32), "w")
        x, y = (
            helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", size])
            for tensor, size in (("x", 16), ("y", rows))
        )
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], name, [x], [y], [weights])
        opset = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), root / f"{name}.onnx")
        spec.append(ONNX_MODEL.format(name=name) + SERVED)
    for number in range(PYTHON):
        name = f"python{number}"
        (root / "python" / name).mkdir(parents=True)
        (root / "python" / name / "model.py").write_text("class TritonPythonModel:\n    pass\n")
        spec.append(PYTHON_MODEL.format(name=name) + SERVED.replace("      warmup: auto\n", ""))
    for number in range(ENSEMBLES):
        steps = {"first": f"python{number}", "second": f"python{number + ENSEMBLES}"}
        spec.append(ENSEMBLE.format(name=f"chain{number}", **steps))
    (root / "tt.yaml").write_text("".join(spec))


def seconds(argv: list[str], root: Path, *, action: str = "") -> float:
    """Run a command in the project; with an action, check that tt did that to every model."""
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    start = time.perf_counter()
    done = subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} failed:\n{done.stderr}")
    if action:
        models = json.loads(done.stdout)["models"]
        others = [model["name"] for model in models if model["action"] != action]
        if others or len(models) != ONNX + PYTHON + ENSEMBLES:
            sys.exit(f"{len(models)} models, and not all {action}: {others[:3]}")
    return taken


def measure(root: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each side, one entry a round; a round takes them forwards and backwards."""
    sides = {"tt": (TT, "unchanged"), "baseline": (BASELINE, "")}
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds):
        taken = dict.fromkeys(sides, 0.0)
        for name in (*sides, *reversed(sides)):
            argv, action = sides[name]
            taken[name] += seconds(argv, root, action=action) / 2
        for name, value in taken.items():
            figures[name].append(value)
        print(f"round {index + 1}: " + ", ".join(f"{n} {v:.3f} s" for n, v in taken.items()), file=sys.stderr)
    return figures


def row(figures: dict[str, list[float]], unremembered_s: float, arguments: argparse.Namespace) -> str:
    """Return the line for the document."""
    tt, baseline = figures["tt"], figures["baseline"]
    ratios = [a / b for a, b in zip(tt, baseline, strict=True)]
    host = look_at_host()
    megabytes = 2 * ONNX * arguments.weights_mib
    return (
        f"| {datetime.date.today():%Y-%m-%d} | {host.cpu}, {host.cpus} cores | {ONNX + PYTHON + ENSEMBLES}, "
        f"{megabytes} MiB | **{statistics.median(tt):.2f}** ({min(tt):.2f} to {max(tt):.2f}, n={len(tt)}) "
        f"| {statistics.median(baseline):.2f} | {statistics.median(ratios):.1f} | {unremembered_s:.2f} |"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-noop", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--weights-mib", type=int, default=2, help="of each ONNX model")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="exit code 1 above these seconds")
    parser.add_argument("--write", action="store_true", help=f"put the result into {DOCUMENT}")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="bench-noop-") as folder:
        root = Path(folder)
        write_project(root, arguments.weights_mib * 2**20)
        print(f"building took {seconds([*TT, '--no-cache'], root, action='build'):.0f} s", file=sys.stderr)
        time.sleep(AT_REST_S)
        seconds(TT, root, action="unchanged")  # remembers the hashes
        figures = measure(root, arguments.rounds)
        (root / HASHES_NAME).unlink()
        text = row(figures, seconds(TT, root, action="unchanged"), arguments)
    print(text)
    if arguments.write:
        write_rows("bench-noop", [text])
    return 0 if statistics.median(figures["tt"]) <= arguments.limit else 1


if __name__ == "__main__":
    sys.exit(main())
