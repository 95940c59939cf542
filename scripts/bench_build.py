"""`tt build` against Olive: PyTorch to ONNX to INT8, of a network with ResNet-50's layers and sizes.

Both get the same weights, the same 64 images to calibrate with (MinMax, per channel, 7-bit weights) and the
same 256 images to evaluate with; see scripts/bench_build_project. Each runs by its own command line, in its
own environment, on an empty cache, in turns. Olive exports, quantizes, and evaluates original and result:
accuracy and latency, as its engine does where it is given these metrics. `olive, bare` evaluates the accuracy
of the result alone. tt build always does all of it, and also evaluates the FP32 export, compares the export
with the original at several batch sizes, checks that rows may be batched, compares the result with FP32 on
images that it held out, and writes what Triton needs. In the end both files are evaluated by one and the
same program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench_document import DOCUMENT, write_rows

from triton_toolkit._machine import look_at_host

FOLDER = Path(".tt/bench-build")
PROJECT = Path("scripts/bench_build_project")
OLIVE = ("olive-ai==0.13.0", "onnxruntime==1.32.0", "requests")
SIDES = ("tt", "olive", "olive, bare")
PINNED = "torch==2.13.0\n"  # the small build for CPUs
EVALUATE = """\
import sys
import onnxruntime
import pictures
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(pictures.accuracy(lambda arrays: {"logits": session.run(["logits"], arrays)[0]}))
"""


@dataclass(frozen=True)
class Run:
    """One run of a tool: its file, seconds of the wall clock, and the peak memory of its largest process."""

    file: Path
    wall_s: float
    peak_bytes: int


def olive_python(folder: Path) -> Path:
    """Return Olive's own interpreter; its environment is made where it is missing."""
    environment = folder / "olive"
    done = environment / "ready"
    python = environment / "bin/python"
    if not done.exists():
        print("installing Olive into its own environment", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
        pins = environment / "constraints.txt"
        pins.write_text(PINNED)
        subprocess.run([python, "-m", "pip", "install", "-q", "-c", pins, *OLIVE], check=True)
        done.touch()
    return python


def prepared(folder: Path) -> Path:
    """Return the folder with the project, its weights and its images, made where it is missing."""
    project = folder / "project"
    if not all((project / name).exists() for name in ("weights.pt", "calibration.npz", "evaluation.npz")):
        print("training the network", file=sys.stderr)
        project.mkdir(parents=True, exist_ok=True)
        code = (
            "import pathlib, sys, pictures, resnet; folder = pathlib.Path(sys.argv[1]); "
            "pictures.write(folder); resnet.prepare(folder)"
        )
        environment = {**os.environ, "PYTHONPATH": str(PROJECT.resolve())}
        subprocess.run([sys.executable, "-c", code, project], env=environment, check=True)
    shutil.copytree(PROJECT, project, dirs_exist_ok=True)
    return project


def run(argv: list[str], folder: Path, variables: dict[str, str]) -> tuple[float, int]:
    """Run a command; return its seconds, and the largest memory of any process of it."""
    log = folder / "log.txt"
    with log.open("w") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        taken_s = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"{' '.join(argv)} failed:\n{log.read_text()[-5000:]}")
    return taken_s, 1024 * usage.ru_maxrss  # in KiB on Linux


def run_tt(folder: Path) -> Run:
    argv = [sys.executable, "-m", "triton_toolkit", "build", "--no-cache"]
    taken_s, peak = run(argv, folder, {"PYTHONPATH": str(Path.cwd())})
    return Run(folder / "model_repository/resnet/1/model.onnx", taken_s, peak)


def run_olive(folder: Path, python: Path, *, bare: bool) -> Run:
    if bare:
        config = json.loads((folder / "olive.json").read_text())
        config["evaluate_input_model"] = False
        metrics = config["evaluators"]["both"]["metrics"]
        metrics[:] = [metric for metric in metrics if metric["type"] == "accuracy"]
        (folder / "olive.json").write_text(json.dumps(config))
    (folder / "temporary").mkdir()
    argv: list[str] = [
        str(python.parent / "olive"),
        "run",
        "--config",
        "olive.json",
        "--tempdir",
        "temporary",
    ]
    variables = {
        "OLIVE_DISABLE_TELEMETRY": "1",
        "OLIVE_TELEMETRY_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(folder),  # for_olive.py imports pictures.py
    }
    taken_s, peak = run(argv, folder, variables)
    (file,) = (folder / "out").rglob("*.onnx")
    return Run(file, taken_s, peak)


def measure(
    sides: dict[str, Callable[[Path], Run]], project: Path, folder: Path, rounds: int
) -> dict[str, list[Run]]:
    """Return each side's runs, one a round; every other round takes the sides backwards."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for index in range(rounds):
        for name in (*sides,) if index % 2 == 0 else (*reversed(sides),):
            copy = folder / "runs" / f"{SIDES.index(name)}-{index}"
            shutil.copytree(project, copy)
            runs[name].append(sides[name](copy))
            print(f"round {index + 1}: {name} {runs[name][-1].wall_s:.1f} s", file=sys.stderr)
    return runs


def accuracy(file: Path, project: Path) -> float:
    """Return a file's accuracy, as ONNX Runtime runs it by default."""
    argv = [sys.executable, "-c", EVALUATE, str(file.resolve())]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, check=True)
    return float(done.stdout)


def row(runs: dict[str, list[Run]], accuracies: dict[str, float], load: float) -> str:
    """Return the line for the document."""
    host = look_at_host()
    walls = " | ".join(_shown([run.wall_s for run in runs[name]], 1) for name in SIDES)
    peaks = ", ".join(f"{max(run.peak_bytes for run in runs[name]) / 2**30:.1f}" for name in SIDES[:2])
    ratios = " | ".join(_shown(ratio_to(runs, name), 2) for name in SIDES[1:])
    told = ", ".join(f"{accuracies[name]:.4f}" for name in ("original", *SIDES[:2]))
    return (
        f"| {datetime.date.today():%Y-%m-%d} | {host.cpu}, {host.cpus} cores, load {load:.1f} | {walls} "
        f"| {ratios} | {peaks} | {told} |"
    )


def _shown(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    return (
        f"**{statistics.median(values):.{digits}f}** ({low:.{digits}f} to {high:.{digits}f}, n={len(values)})"
    )


def ratio_to(runs: dict[str, list[Run]], other: str) -> list[float]:
    """Return tt's seconds as a share of another side's, one a round."""
    return [a.wall_s / b.wall_s for a, b in zip(runs["tt"], runs[other], strict=True)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-build", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="keeps Olive's environment and the weights"
    )
    parser.add_argument("--keep", action="store_true", help="leave what the tools wrote")
    parser.add_argument("--write", action="store_true", help=f"put the result into {DOCUMENT}")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    python = olive_python(folder)
    project = prepared(folder)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    load = os.getloadavg()[0]
    sides: dict[str, Callable[[Path], Run]] = {
        "tt": run_tt,
        "olive": partial(run_olive, python=python, bare=False),
        "olive, bare": partial(run_olive, python=python, bare=True),
    }
    runs = measure(sides, project, folder, arguments.rounds)
    passport = json.loads((runs["tt"][0].file.parent / "passport.json").read_text())
    accuracies = {name: accuracy(side[0].file, project) for name, side in runs.items()}
    text = row(runs, {"original": passport["accuracy"]["original"], **accuracies}, load)
    print(text)
    if arguments.write:
        write_rows("bench-build", [text])
    if not arguments.keep:
        shutil.rmtree(folder / "runs")
    slower = statistics.median(ratio_to(runs, "olive")) > 1
    return 1 if slower or accuracies["tt"] < accuracies["olive"] else 0


if __name__ == "__main__":
    sys.exit(main())
