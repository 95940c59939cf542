"""What we render, on the real server: it loads, warms up, and shows clients the shapes we meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.request import Request, urlopen

import pytest

from triton_toolkit.config.describe import ConfigDescription
from triton_toolkit.config.message import parse_config
from triton_toolkit.config.render import render_config
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.server.embedded import EmbeddedServer

pytestmark = pytest.mark.server

# Says in the server's log what each request had, and gives back the number of requests in the batch.
MODEL_PY = """
import sys

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            seen = {t.name(): [str(t.as_numpy().dtype), *t.as_numpy().shape] for t in request.inputs()}
            print("SEEN", len(requests), dict(sorted(seen.items())), file=sys.stderr, flush=True)
        size = np.array([len(requests)], np.float32)
        return [pb.InferenceResponse([pb.Tensor("n", size)]) for _ in requests]
"""


def _tensor(name: str, dtype: DataType, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


SCALARS = ConfigDescription(
    name="scalars",
    backend="python",
    max_batch_size=4,
    batch_dim="batch",
    inputs=(
        _tensor("id", DataType.INT64, "batch"),
        _tensor("text", DataType.BYTES, "batch", "words"),
        _tensor("flag", DataType.BOOL, "batch", 2),
    ),
    outputs=(_tensor("n", DataType.FP32, "batch"),),
    serve={
        "dynamic_batching": {"max_queue_delay_microseconds": "1ms", "preferred_batch_size": [2]},
        "instance_group": [{"kind": "cpu", "count": 1}],
        "metric_tags": {"team": "a"},
        "parameters": {"note": 'quotes " \\ and\nlines, ü'},
        "optimization": {"input_pinned_memory": False},
    },
    warmup="auto",
    warmup_sizes=[{"words": 3}],
)
BARE = replace(
    SCALARS,
    name="bare",
    max_batch_size=0,
    batch_dim=None,
    inputs=(_tensor("x", DataType.FP32, "rows", 2),),
    outputs=(_tensor("n", DataType.FP32, 1),),
    serve={"instance_group": [{"kind": "cpu", "count": 1}], "version_policy": {"all": {}}},
    warmup_sizes=[{"rows": 5}],
)
SEQUENCES = replace(
    SCALARS,
    name="sequences",
    inputs=(_tensor("x", DataType.FP32, "batch", 2), _tensor("start", DataType.INT32, "batch", 1)),
    serve={
        "instance_group": [{"kind": "cpu", "count": 1}],
        "sequence_batching": {"control_input": {"name": "start", "control": {"int32_false_true": [0, 1]}}},
    },
    warmup_sizes=[],
)


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, embedded_server: Callable[..., EmbeddedServer]
) -> EmbeddedServer:
    repository = tmp_path_factory.mktemp("rendered")
    for description in (SCALARS, BARE, SEQUENCES):
        folder = repository / description.name
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL_PY)
        (folder / "config.pbtxt").write_text(render_config(description))
    return embedded_server(repository)


def _seen(server: EmbeddedServer) -> Iterator[tuple[str, str]]:
    for line in server.log_text().splitlines():
        if line.startswith("SEEN "):
            size, _, inputs = line.removeprefix("SEEN ").partition(" ")
            yield size, inputs


def _get(server: EmbeddedServer, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{server.http_url}/v2/models/{path}", data=data), timeout=20) as answer:
        return dict(json.load(answer))


def test_rendered_models_are_ready(server: EmbeddedServer) -> None:
    reports = {report.name: (report.state, report.reason) for report in server.models()}
    assert reports == {name: ("READY", "") for name in ("scalars", "bare", "sequences")}


@pytest.mark.parametrize(
    ("size", "inputs"),
    [
        ("1", "{'flag': ['bool', 1, 2], 'id': ['int64', 1], 'text': ['object', 1, 3]}"),
        ("2", "{'flag': ['bool', 1, 2], 'id': ['int64', 1], 'text': ['object', 1, 3]}"),
        ("4", "{'flag': ['bool', 1, 2], 'id': ['int64', 1], 'text': ['object', 1, 3]}"),
        ("1", "{'x': ['float32', 5, 2]}"),
        ("4", "{'start': ['int32', 1, 1], 'x': ['float32', 1, 2]}"),
    ],
)
def test_model_was_warmed_up_with(server: EmbeddedServer, size: str, inputs: str) -> None:
    assert (size, inputs) in set(_seen(server))


def test_value_a_batch_item_is_a_column_for_clients(server: EmbeddedServer) -> None:
    metadata = _get(server, "scalars")
    shapes = {tensor["name"]: tensor["shape"] for tensor in (*metadata["inputs"], *metadata["outputs"])}
    assert shapes == {"id": [-1, 1], "text": [-1, -1], "flag": [-1, 2], "n": [-1, 1]}
    answer = _get(
        server,
        "scalars/infer",
        {
            "inputs": [
                {"name": "id", "datatype": "INT64", "shape": [1, 1], "data": [7]},
                {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]},
                {"name": "flag", "datatype": "BOOL", "shape": [1, 2], "data": [True, False]},
            ]
        },
    )
    assert answer["outputs"] == [{"name": "n", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]


def test_server_reads_what_we_wrote(server: EmbeddedServer) -> None:
    written = parse_config((server.options.repository / "scalars" / "config.pbtxt").read_text(), "written")
    effective = _get(server, "scalars/config")
    assert effective["parameters"]["note"]["string_value"] == written.parameters["note"].string_value
    assert effective["dynamic_batching"]["max_queue_delay_microseconds"] == 1000
    assert effective["optimization"]["input_pinned_memory"] == {"enable": False}
    assert effective["optimization"]["output_pinned_memory"] == {"enable": True}
    assert len(effective["model_warmup"]) == len(written.model_warmup) == 3
