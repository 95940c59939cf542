"""Throughput of the embedded server, as a share of what ONNX Runtime gives when called directly.

The model has ResNet-50's layers and sizes and random weights. Both sides run it with the same number of
threads and the same batch, in turns within one run, so that a change of the machine's speed meets both.
The served side is a closed loop of gRPC clients, the tensors inside the messages (no shared memory).
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper, numpy_helper

from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block
EXPANSION = 4
PAUSE_S = 0.1  # ONNX Runtime's threads spin for a while after a run; neither side is to meet the other's
DOCUMENT = Path("docs/benchmarks.md")


class Graph:
    """Collects the layers of the network; batch normalisation is folded into the convolutions."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(50)

    def add(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, *shape: int, scale: float) -> str:
        name = f"w{len(self.weights)}"
        array = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def conv(self, x: str, cin: int, cout: int, kernel: int, stride: int = 1) -> str:
        scale = float(np.sqrt(1.0 / (cin * kernel * kernel)))  # keeps activations near 1 through 50 layers
        weights = [self.weight(cout, cin, kernel, kernel, scale=scale), self.weight(cout, scale=0.01)]
        return self.add(
            "Conv", [x, *weights], kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4
        )

    def block(self, x: str, cin: int, width: int, stride: int) -> str:
        """Add a bottleneck: 1x1, 3x3, 1x1, and the shortcut."""
        cout = width * EXPANSION
        y = self.add("Relu", [self.conv(x, cin, width, 1)])
        y = self.add("Relu", [self.conv(y, width, width, 3, stride)])
        y = self.conv(y, width, cout, 1)
        shortcut = x if cin == cout and stride == 1 else self.conv(x, cin, cout, 1, stride)
        return self.add("Relu", [self.add("Add", [y, shortcut])])


def resnet50() -> onnx.ModelProto:
    """Return the network: (batch, 3, 224, 224) -> (batch, 1000)."""
    graph = Graph()
    x = graph.add("Relu", [graph.conv("image", 3, 64, 7, 2)])
    x = graph.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    channels = 64
    for blocks, width, stride in STAGES:
        for index in range(blocks):
            x = graph.block(x, channels, width, stride if index == 0 else 1)
            channels = width * EXPANSION
    x = graph.add("Flatten", [graph.add("GlobalAveragePool", [x])])
    dense = [graph.weight(channels, 1000, scale=0.02), graph.weight(1000, scale=0.01)]
    graph.nodes.append(helper.make_node("Gemm", [x, *dense], ["scores"]))
    made = helper.make_graph(
        graph.nodes,
        "resnet50",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 1000])],
        initializer=graph.weights,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def write_repository(root: Path, threads: int, batch: int) -> Path:
    """Write the model repository; return the ONNX file."""
    file = root / "resnet50" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(resnet50(), str(file))
    (root / "resnet50" / "config.pbtxt").write_text(
        f"""backend: "onnxruntime"
max_batch_size: {batch}
input [ {{ name: "image" data_type: TYPE_FP32 dims: [3, 224, 224] }} ]
output [ {{ name: "scores" data_type: TYPE_FP32 dims: [1000] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "intra_op_thread_count" value {{ string_value: "{threads}" }} }}
"""
    )
    return file


@contextmanager
def direct(
    file: Path, threads: int, images: np.ndarray[Any, Any]
) -> Iterator[Callable[[int], np.ndarray[Any, Any]]]:
    """Give a function that runs N batches in ONNX Runtime and returns the last scores."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(batches: int) -> np.ndarray[Any, Any]:
        for _ in range(batches):
            (scores,) = session.run(None, {"image": images})
        return np.asarray(scores)

    yield run


@contextmanager
def served(
    url: str, clients: int, images: np.ndarray[Any, Any]
) -> Iterator[Callable[[int], np.ndarray[Any, Any]]]:
    """Give a function that has N batches run by the server, ``clients`` of them at a time."""
    with (
        grpcclient.InferenceServerClient(url.removeprefix("grpc://")) as client,
        ThreadPoolExecutor(clients) as pool,
    ):
        tensor = grpcclient.InferInput("image", list(images.shape), "FP32")
        tensor.set_data_from_numpy(images)

        def one(_: int) -> np.ndarray[Any, Any]:
            return np.asarray(client.infer("resnet50", [tensor]).as_numpy("scores"))

        yield lambda batches: list(pool.map(one, range(batches)))[-1]


@dataclass(frozen=True)
class Result:
    """Images per second of both sides, one entry a round."""

    direct: list[float]
    served: list[float]

    @property
    def ratios(self) -> list[float]:
        return [served / direct for served, direct in zip(self.served, self.direct, strict=True)]

    @property
    def ratio(self) -> float:
        """The median over the rounds of served / direct."""
        return statistics.median(self.ratios)


def measure(
    sides: tuple[Callable[[int], Any], Callable[[int], Any]], rounds: int, batches: int, batch: int
) -> Result:
    """Let both sides run in turns: direct, served, served, direct is one round, so that order cancels out."""
    figures: tuple[list[float], list[float]] = ([], [])
    for index in range(rounds):
        seconds = [0.0, 0.0]
        for side in (0, 1, 1, 0):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            sides[side](batches)
            seconds[side] += time.perf_counter() - start
        for side in (0, 1):
            figures[side].append(2 * batches * batch / seconds[side])
        print(
            f"round {index + 1}: direct {figures[0][-1]:.1f}/s, served {figures[1][-1]:.1f}/s",
            file=sys.stderr,
        )
    return Result(*figures)


def row(result: Result, arguments: argparse.Namespace) -> str:
    """Return the line for the document."""
    ratios = result.ratios
    return (
        f"| {datetime.date.today():%Y-%m-%d} | {arguments.threads} threads, {os.cpu_count()} cores, "
        f"{platform.machine()} | {arguments.batch} | {arguments.clients} "
        f"| {statistics.median(result.direct):.1f} | {statistics.median(result.served):.1f} "
        f"| **{result.ratio:.3f}** ({min(ratios):.3f} to {max(ratios):.3f}, n={len(ratios)}) "
        f"| Triton {check_available().version}, ONNX Runtime {ort.__version__} |"
    )


def write_row(text: str) -> None:
    """Put the line in place of the last one in the document."""
    document = DOCUMENT.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- bench-serve -->\n(?:\|.*\n){2}).*\n")
    if not pattern.search(document):
        sys.exit(f"{DOCUMENT} has no table marked <!-- bench-serve -->")
    DOCUMENT.write_text(pattern.sub(lambda match: f"{match[1]}{text}\n", document), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-serve", description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of ONNX Runtime, on both sides")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clients", type=int, default=2, help="requests in flight on the served side")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=4, help="in a row on one side")
    parser.add_argument("--floor", type=float, default=0.9, help="exit code 1 below this ratio")
    parser.add_argument("--write", action="store_true", help=f"put the result into {DOCUMENT}")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    images = np.random.default_rng(0).standard_normal((arguments.batch, 3, 224, 224)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as root:
        file = write_repository(Path(root), arguments.threads, arguments.batch)
        with (
            EmbeddedServer(ServeOptions(repository=Path(root))) as server,
            direct(file, arguments.threads, images) as alone,
            served(server.grpc_url, arguments.clients, images) as through,
        ):
            np.testing.assert_allclose(through(2), alone(2), rtol=1e-5, atol=1e-5)  # also warms both up
            result = measure((alone, through), arguments.rounds, arguments.batches, arguments.batch)
    text = row(result, arguments)
    print(text)
    if arguments.write:
        write_row(text)
    return 0 if result.ratio >= arguments.floor else 1


if __name__ == "__main__":
    sys.exit(main())
