"""A store, a real server on it, and models built by hand whose answers tell which version gave them.

A Python model takes 1.3 s to load and an ensemble some milliseconds. So most tests deploy ensembles
over one Python model, ``engine``, that stays loaded: a version is what it takes from the engine.
"""

from __future__ import annotations

import shutil
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_toolkit._files import hash_tree, sha256_bytes
from triton_toolkit._progress import Silent
from triton_toolkit.client.triton import TritonClient
from triton_toolkit.deploy.report import DeployReport
from triton_toolkit.deploy.run import DeployOptions, run_deploy
from triton_toolkit.errors import TritonToolkitError
from triton_toolkit.repository.passport import Passport, Samples, write_passport, write_samples
from triton_toolkit.server.embedded import EmbeddedServer
from triton_toolkit.spec.load import Project, load_project

X = np.array([[1.0, 2.0, 3.0]], np.float32)
DOUBLE = X * 2

_ENGINE = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        outputs = {"double": x * 2, "triple": x * 3, "longer": np.concatenate([x * 2, x], axis=1)}
        outputs |= {f"m{marker}": np.full((len(x), 1), marker, np.int64) for marker in (11, 22, 33)}
        return pb.InferenceResponse([pb.Tensor(name, value) for name, value in outputs.items()])
"""

_ENGINE_CONFIG = """\
name: "engine"
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [
  { name: "double" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "triple" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "longer" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "m11" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "m22" data_type: TYPE_INT64 dims: [ 1 ] },
  { name: "m33" data_type: TYPE_INT64 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

_MODEL = """\
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_name"]

    def execute(self, requests):
        return [self.answer(pb.get_input_tensor_by_name(request, "x").as_numpy()) for request in requests]

    def answer(self, x):
        y = {y}
        marker = np.full((len(x), 1), {marker}, np.int64)
        return pb.InferenceResponse([pb.Tensor("y", y), pb.Tensor("marker", marker)])
"""

_TENSORS = """\
max_batch_size: 8
input [ {{ name: "{x}" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [
  {{ name: "{y}" data_type: TYPE_FP32 dims: [ -1 ] }},
  {{ name: "marker" data_type: TYPE_INT64 dims: [ 1 ] }}
]
"""


_FACTS: dict[str, Any] = {
    "kind": "ensemble",
    "variant": "",
    "backend": "",
    "created": "2026-01-01T00:00:00+00:00",
    "tools": {"tt": "test"},
    "key": {},
}


class Workshop:
    """A project with models named after the test, and a target ``local``."""

    def __init__(self, root: Path, store: Path, url: str, prefix: str) -> None:
        self.root, self.store, self.url, self.prefix = root, store, url, prefix
        self.working_url = url
        self.specs: dict[str, str] = {}
        self.target = {"keep": "2"}

    def name(self, short: str) -> str:
        """The model's name on the server, shared by no other test."""
        return f"{self.prefix}_{short}"

    def build(self, short: str, version: int, marker: int, **how: Any) -> Path:
        """Build an ensemble over the engine; its passport promises DOUBLE and the marker.

        ``answer`` is the engine's output that it gives instead, ``names`` its input and output,
        ``more`` lines of its config; the rest is passed on.
        """
        x, y = how.get("names", ("x", "y"))
        outputs = {how.pop("answer", "double"): y, f"m{marker}": "marker"}
        config = _step("engine", {"x": x}, outputs) + how.pop("more", "")
        return self.write(short, version, marker, config=config, **how)

    def build_over(self, short: str, version: int, marker: int, step: str, **how: Any) -> Path:
        """Build an ensemble with tensors x and y over another model of this workshop."""
        x, y = how.pop("names", ("x", "y"))
        config = _step(self.name(step), {x: "x"}, {y: "y", "marker": "marker"})
        return self.write(short, version, marker, config=config, **how)

    def build_python(self, short: str, version: int, marker: int, **how: Any) -> Path:
        """Build a real Python model that answers the expression ``y``, or has another ``source``."""
        source = how.pop("source", None) or _MODEL.format(y=how.pop("y", "x * 2"), marker=marker)
        config = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
        return self.write(short, version, marker, config=config, files={"model.py": source.encode()}, **how)

    def build_onnx(self, short: str, version: int, marker: int, *, cut: int = 0, **how: Any) -> Path:
        """Build a real ONNX model; ``cut`` bytes are missing at its end."""
        from onnx import TensorProto, helper, numpy_helper

        two, one = np.array([2], np.float32), np.array([[marker]], np.int64)
        graph = helper.make_graph(
            [
                helper.make_node("Mul", ["x", "two"], ["y"]),
                helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=1, axes=[1]),
                helper.make_node("Cast", ["sum"], ["whole"], to=TensorProto.INT64),
                helper.make_node("Sub", ["whole", "whole"], ["zero"]),
                helper.make_node("Add", ["zero", "one"], ["marker"]),
            ],
            "marked",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "n"])],
            [
                helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "n"]),
                helper.make_tensor_value_info("marker", TensorProto.INT64, ["batch", 1]),
            ],
            [numpy_helper.from_array(two, "two"), numpy_helper.from_array(one, "one")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)
        data = model.SerializeToString()
        config = 'backend: "onnxruntime"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
        files = {"model.onnx": data[: len(data) - cut]}
        return self.write(short, version, marker, config=config, files=files, **how)

    def write(self, short: str, version: int, marker: int, *, config: str, **how: Any) -> Path:
        """Write a built version: ``files``, golden samples unless ``samples=False``, and its passport.

        What is left of ``how`` are facts of the passport.
        """
        name, (x, y) = self.name(short), how.pop("names", ("x", "y"))
        self.specs[name] = "{kind: ensemble, steps: [engine]}"
        folder = self.root / "model_repository" / name / str(version)
        folder.mkdir(parents=True)
        for file, data in how.pop("files", {}).items():
            (folder / file).write_bytes(data)
        if how.pop("samples", True):
            golden = {y: DOUBLE, "marker": np.array([[marker]], np.int64)}
            write_samples(folder, Samples({x: X}, how.pop("outputs_of_sample", golden)))
        text = f'name: "{name}"\n' + how.pop("tensors", _TENSORS.format(x=x, y=y)) + config
        (folder.parent / "config.pbtxt").write_text(text)
        facts: dict[str, Any] = {"files": hash_tree(folder), "config_sha256": sha256_bytes(text.encode())}
        write_passport(folder, Passport(**({"model": name} | _FACTS | facts | how)))
        return folder

    def forget(self, short: str) -> None:
        """Remove what was built, as another checkout would not have it."""
        shutil.rmtree(self.root / "model_repository" / self.name(short))

    def project(self) -> Project:
        target = {"store": str(self.store), "servers": f'["{self.url}"]'} | self.target
        lines = ["spec: 1", "targets:", "  local:", *(f"    {key}: {value}" for key, value in target.items())]
        lines += ["models:", *(f"  {name}: {value}" for name, value in self.specs.items())]
        (self.root / "tt.yaml").write_text("\n".join(lines) + "\n")
        return load_project(self.root / "tt.yaml")

    def deploy(self, *shorts: str, store: Any = None, progress: Any = None, **options: Any) -> DeployReport:
        names = tuple(self.name(short) for short in shorts)
        wanted = DeployOptions(**({"names": names, "rehearsal": False, "lock_wait_s": 0.0} | options))
        return run_deploy(self.project(), "local", wanted, progress or Silent(), store=store)

    @staticmethod
    def notes(report: DeployReport) -> tuple[str, ...]:
        """The notes, without that on the shared server, which any failed load keeps from being ready."""
        return tuple(note for note in report.notes if not note.startswith("the server is not ready"))

    def client(self) -> TritonClient:
        return TritonClient(self.working_url)

    def marker(self, short: str) -> int:
        """What answers a caller that names no version."""
        with self.client() as client:
            return int(client.infer(self.name(short), {"x": X}).outputs["marker"][0, 0])

    def serving(self, short: str) -> list[str]:
        with self.client() as client:
            return [
                state.version for state in client.index() if state.name == self.name(short) and state.ready
            ]

    def candidates(self) -> list[str]:
        """Candidates that the server has loaded, folder or not, and traces of any beside the models."""
        from tritonclient.grpc import InferenceServerClient

        with InferenceServerClient(self.working_url.removeprefix("grpc://")) as client:
            loaded = [entry.name for entry in client.get_inference_statistics(client_timeout=10).model_stats]
        return [name for name in (*loaded, *self.folders()) if "tt-" in name]

    def tree(self) -> dict[str, str]:
        """The store's files and their hashes; the log, which only grows, left out."""
        return {name: sha for name, sha in hash_tree(self.store).items() if name != ".tt-deployments.jsonl"}

    def folders(self) -> set[str]:
        """All folders in the store and beside it."""
        inside = {path.relative_to(self.store).as_posix() for path in self.store.rglob("*") if path.is_dir()}
        return inside | {path.name for path in self.store.parent.iterdir() if path.is_dir()}

    def clean(self) -> None:
        with self.client() as client:
            for name in reversed(self.specs):
                client.unload(name)
        for name in self.specs:
            shutil.rmtree(self.store / name, ignore_errors=True)


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return textwrap.dedent(f"""\
        platform: "ensemble"
        ensemble_scheduling {{ step [ {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }} ] }}
        """)


@pytest.fixture(scope="session")
def deploy_server(
    tmp_path_factory: pytest.TempPathFactory, embedded_server: Callable[..., EmbeddedServer]
) -> tuple[Path, str]:
    """A store with the engine, and the URL of the server on it."""
    store = tmp_path_factory.mktemp("deploy") / "served"
    (store / "engine" / "1").mkdir(parents=True)
    (store / "engine" / "config.pbtxt").write_text(_ENGINE_CONFIG)
    (store / "engine" / "1" / "model.py").write_text(_ENGINE)
    return store, embedded_server(store).grpc_url


@pytest.fixture
def workshop(
    tmp_path: Path, deploy_server: tuple[Path, str], request: pytest.FixtureRequest
) -> Iterator[Workshop]:
    prefix = "m" + sha256_bytes(request.node.nodeid.encode())[:6]
    shop = Workshop(tmp_path, *deploy_server, prefix)
    yield shop
    shop.clean()


@dataclass
class Seen:
    """What busy clients saw."""

    markers: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    count: int = 0


@pytest.fixture
def busy_clients(workshop: Workshop) -> Callable[..., Any]:
    """Closed-loop clients that name no version, for the time of a ``with`` block and a little longer."""

    @contextmanager
    def run(short: str, *, count: int) -> Iterator[Seen]:
        seen, stop, name = Seen(), threading.Event(), workshop.name(short)

        def ask() -> None:
            with workshop.client() as client:
                while not stop.is_set():
                    try:
                        seen.markers.add(int(client.infer(name, {"x": X}).outputs["marker"][0, 0]))
                    except TritonToolkitError as exc:
                        seen.errors.append(str(exc))
                    seen.count += 1

        threads = [threading.Thread(target=ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield seen
        finally:
            wanted, deadline = seen.count + 4 * count, time.monotonic() + 10
            while seen.count < wanted and time.monotonic() < deadline:
                time.sleep(0.01)
            stop.set()
            for thread in threads:
                thread.join()

    return run
