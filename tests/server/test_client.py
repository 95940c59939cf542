"""The client against the real server, over gRPC and over HTTP."""

from __future__ import annotations

import time

import numpy as np
import pytest

from triton_toolkit.client.triton import TritonClient
from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import RefusedError

pytestmark = pytest.mark.server

_ECHO = """\
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb.InferenceResponse([pb.Tensor("y" + t.name()[1:], t.as_numpy()) for t in request.inputs()])
            for request in requests
        ]
"""

_PYTHON = 'backend: "python"\ninstance_group [ { kind: KIND_CPU count: 1 } ]\n'
_BATCHED = """\
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
"""
_ENSEMBLE = """\
platform: "ensemble"
ensemble_scheduling { step { model_name: "batched" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }
"""
_ODD_NAMES = ("a+b", "a%2Bc", "a:@&=b", "a[b]")


@pytest.fixture(scope="module")
def echo_server(embedded_server, tmp_path_factory):
    """One model that gives back what it gets, an optional input and an output for every type."""
    store = tmp_path_factory.mktemp("client")
    for name in ("echo", "batched", "spare"):
        (store / name / "1").mkdir(parents=True)
    for name in ("echo", "batched"):
        (store / name / "1" / "model.py").write_text(_ECHO)
    tensors = "".join(
        f'input {{ name: "x_{t.spec}" data_type: {t.triton} dims: [ -1, 2 ] optional: true }}\n'
        f'output {{ name: "y_{t.spec}" data_type: {t.triton} dims: [ -1, 2 ] }}\n'
        for t in DataType
    )
    (store / "echo" / "config.pbtxt").write_text(_PYTHON + tensors)
    (store / "batched" / "config.pbtxt").write_text(_PYTHON + _BATCHED)
    (store / "spare" / "config.pbtxt").write_text(_ENSEMBLE + _BATCHED)
    for name in _ODD_NAMES:
        (store / name / "1").mkdir(parents=True)
        (store / name / "config.pbtxt").write_text(_ENSEMBLE + _BATCHED)
    return embedded_server(store, load=("echo", "batched", "spare"))


@pytest.fixture(params=["grpc", "http"])
def client(request, echo_server):
    with TritonClient(getattr(echo_server, f"{request.param}_url")) as client:
        yield client


def _array(dtype: DataType, rows: int) -> np.ndarray:
    if dtype is DataType.BYTES:
        array = np.empty((rows, 2), dtype=object)
        array[...] = b"a\0"
        return array
    return (np.arange(rows * 2) % 2).reshape(rows, 2).astype(dtype.numpy)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_every_type_comes_back_as_it_was(client, rows):
    inputs = {f"x_{dtype.spec}": _array(dtype, rows) for dtype in DataType}
    outputs = client.infer("echo", inputs).outputs
    for dtype in DataType:
        got, sent = outputs[f"y_{dtype.spec}"], inputs[f"x_{dtype.spec}"]
        assert (got.dtype, got.shape, got.tolist()) == (sent.dtype, sent.shape, sent.tolist())


def test_only_wanted_outputs_come_and_the_version_is_told(client):
    inputs = {"x_int8": _array(DataType.INT8, 1), "x_bool": _array(DataType.BOOL, 1)}
    result = client.infer("echo", inputs, version="1", outputs=["y_bool"])
    assert list(result.outputs) == ["y_bool"]
    assert (result.model_name, result.model_version) == ("echo", "1")


def test_metadata_names_dynamic_dimensions(client):
    batched = client.model_metadata("batched")
    assert batched.inputs[0].shape == ("batch", "x_1")
    assert (batched.versions, batched.platform) == (("1",), "python")
    assert client.model_metadata("echo").inputs[0].shape == (
        f"{client.model_metadata('echo').inputs[0].name}_0",
        2,
    )


def test_server_index_and_config(client):
    assert client.server().name == "triton"
    assert "model_repository" in client.server().extensions
    assert client.is_live()
    assert client.is_ready()
    assert {(state.name, state.version, state.ready) for state in client.index()} >= {("echo", "1", True)}
    assert client.model_config("batched").max_batch_size == 4


def test_statistics_count_requests_and_batch_sizes(client):
    before = client.statistics("batched")
    client.infer("batched", {"x": np.ones((3, 2), np.float32)})
    deadline = time.monotonic() + 10
    # The server counts a request a moment after it has answered it.
    while (after := client.statistics("batched")).success.count == before.success.count:
        assert time.monotonic() < deadline
    assert after.inference_count - before.inference_count == 3
    assert (after.success - before.success).count == 1
    assert (after.compute_infer - before.compute_infer).ns > 0
    assert 3 in [entry.batch_size for entry in after.batch_stats]
    assert after.last_inference_ms > 0


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"x": np.ones((1, 2))}, "data-type is 'FP64', but model 'batched' expects 'FP32'"),
        ({"x": np.ones(2, np.float32)}, r"unexpected shape for input 'x'.*Expected \[-1,-1\], got \[2\]"),
        ({"x": np.ones((5, 2), np.float32)}, "batch-size must be <= 4"),
        ({"z": np.ones((1, 2), np.float32)}, "unexpected inference input 'z'"),
        ({}, "missing required input"),
    ],
    ids=["dtype", "rank", "batch", "name", "none"],
)
def test_refused_request_says_why_and_what_the_model_expects(client, inputs, text):
    with pytest.raises(RefusedError, match=text) as caught:
        client.infer("batched", inputs)
    assert "input x: FP32 [batch, x_1]" in caught.value.detail


@pytest.mark.parametrize("call", ["infer", "model_metadata", "model_config", "statistics", "load"])
def test_unknown_model_is_refused_by_name(client, call):
    arguments = ("nothing", {}) if call == "infer" else ("nothing",)
    with pytest.raises(RefusedError, match="'nothing'"):
        getattr(client, call)(*arguments)


def test_unknown_version_is_refused(client):
    with pytest.raises(RefusedError, match="version 9 is not found"):
        client.model_metadata("batched", "9")


def test_unload_and_load(client):
    client.unload("spare")
    assert [state.ready for state in client.index() if state.name == "spare"] == [False]
    client.load("spare")
    assert [state.ready for state in client.index() if state.name == "spare"] == [True]


def test_unloading_what_is_not_there_changes_nothing(client):
    """What tells the control mode without side effects."""
    before = client.index()
    client.unload("nothing")
    assert [(state.name, state.version) for state in client.index()] == [(s.name, s.version) for s in before]


@pytest.mark.parametrize("name", _ODD_NAMES)
def test_name_that_a_url_would_escape_is_the_model_s_own(client, name):
    client.load(name)
    sent = np.ones((1, 2), np.float32)
    assert client.infer(name, {"x": sent}, version="1").outputs["y"].tolist() == sent.tolist()
    assert client.model_metadata(name).name == name
    assert client.statistics(name).name == name
    client.unload(name)
    assert [state.ready for state in client.index() if state.name == name] == [False]
