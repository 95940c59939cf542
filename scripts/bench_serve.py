"""Throughput of the embedded server, as a share of what ONNX Runtime gives when called directly.

The model has ResNet-50's layers and sizes and random weights. All sides run it with the same number of
threads and the same batch, in turns within one run, so that a change of the machine's speed meets all.
ONNX Runtime is called directly as it is by default, and once more with idle threads that do not spin, as
our backend has it; the ratio is to the better of the two. The served side is a closed loop of gRPC clients.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tritonclient.grpc as grpcclient
from bench_document import DOCUMENT, write_rows
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import shared_memory

from triton_toolkit.server.embedded import EmbeddedServer, ServeOptions, check_available

STAGES = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))  # blocks, width, stride of the first block
EXPANSION = 4
PAUSE_S = 0.1  # called directly, ONNX Runtime's threads spin for a while after a run
Side = Callable[[int], np.ndarray[Any, Any]]


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


def direct(file: Path, threads: int, images: np.ndarray[Any, Any], *, spinning: bool) -> Side:
    """Return a function that runs N batches in ONNX Runtime and returns the last scores."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(batches: int) -> np.ndarray[Any, Any]:
        for _ in range(batches):
            (scores,) = session.run(None, {"image": images})
        return np.asarray(scores)

    return run


@contextmanager
def served(url: str, clients: int, images: np.ndarray[Any, Any], transfer: str) -> Iterator[Side]:
    """Give a function that has N batches run by the server, ``clients`` of them at a time."""
    with (
        grpcclient.InferenceServerClient(url.removeprefix("grpc://")) as client,
        ThreadPoolExecutor(clients) as pool,
        sent(client, images, transfer) as tensor,
    ):

        def one(_: int) -> np.ndarray[Any, Any]:
            return np.asarray(client.infer("resnet50", [tensor]).as_numpy("scores"))

        yield lambda batches: list(pool.map(one, range(batches)))[-1]


@contextmanager
def sent(
    client: grpcclient.InferenceServerClient, images: np.ndarray[Any, Any], transfer: str
) -> Iterator[grpcclient.InferInput]:
    """Give the input tensor: in the message, or in a region of shared memory that the server reads."""
    tensor = grpcclient.InferInput("image", list(images.shape), "FP32")
    if transfer == "message":
        tensor.set_data_from_numpy(images)
        yield tensor
        return
    name = f"bench-serve-{os.getpid()}"
    region = shared_memory.create_shared_memory_region(name, f"/{name}", images.nbytes)
    try:
        shared_memory.set_shared_memory_region(region, [images])
        client.register_system_shared_memory(name, f"/{name}", images.nbytes)
        tensor.set_shared_memory(name, images.nbytes)
        yield tensor
        client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(region)


SIDES = ("direct", "direct, no spinning", "served")


def measure(sides: dict[str, Side], rounds: int, batches: int, batch: int) -> dict[str, list[float]]:
    """Return each side's images per second, one entry a round.

    A round takes the sides forwards and then backwards, so that what changes over it meets all alike.
    """
    figures: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(rounds):
        seconds = dict.fromkeys(sides, 0.0)
        for name in (*sides, *reversed(sides)):
            time.sleep(PAUSE_S)
            start = time.perf_counter()
            sides[name](batches)
            seconds[name] += time.perf_counter() - start
        for name, taken in seconds.items():
            figures[name].append(2 * batches * batch / taken)
        shown = ", ".join(f"{name} {values[-1]:.1f}/s" for name, values in figures.items())
        print(f"round {index + 1}: {shown}", file=sys.stderr)
    return figures


def ratios(figures: dict[str, list[float]]) -> list[float]:
    """Return for each round what is served as a share of the better direct side."""
    *alone, through = (figures[name] for name in SIDES)
    return [served / max(rest) for served, *rest in zip(through, *alone, strict=True)]


def row(figures: dict[str, list[float]], arguments: argparse.Namespace) -> str:
    """Return the line for the document."""
    shares = ratios(figures)
    medians = " | ".join(f"{statistics.median(figures[name]):.1f}" for name in SIDES)
    return (
        f"| {datetime.date.today():%Y-%m-%d} | {arguments.threads} threads, {os.cpu_count()} cores, "
        f"{platform.machine()} | {arguments.batch} | {arguments.clients}, {arguments.transfer} | {medians} "
        f"| **{statistics.median(shares):.3f}** ({min(shares):.3f} to {max(shares):.3f}, n={len(shares)}) "
        f"| Triton {check_available().version}, ONNX Runtime {ort.__version__} |"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench-serve", description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of ONNX Runtime, on both sides")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--clients", type=int, default=2, help="requests in flight on the served side")
    parser.add_argument(
        "--transfer",
        choices=("message", "shm"),
        default="message",
        help="of the input: in the gRPC message, or system shared memory",
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batches", type=int, default=3, help="in a row on one side")
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
            served(server.grpc_url, arguments.clients, images, arguments.transfer) as through,
        ):
            if reason := server.load_error("resnet50"):
                sys.exit(f"the model did not load: {reason}\n{server.log_text()}")
            alone = [direct(file, arguments.threads, images, spinning=spinning) for spinning in (True, False)]
            sides = dict(zip(SIDES, (*alone, through), strict=True))
            for side in sides.values():  # also warms them up
                np.testing.assert_allclose(side(2), alone[0](2), rtol=1e-5, atol=1e-5)
            figures = measure(sides, arguments.rounds, arguments.batches, arguments.batch)
    text = row(figures, arguments)
    print(text)
    if arguments.write:
        write_rows("bench-serve", [text])
    return 0 if statistics.median(ratios(figures)) >= arguments.floor else 1


if __name__ == "__main__":
    sys.exit(main())
