"""Requests as tritonclient makes them, answers as it reads them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from triton_toolkit.errors import RefusedError, ServerError, ServerTimeoutError
from triton_toolkit.probe.wire import (
    TIMEOUT,
    UNREACHABLE,
    Answer,
    Destination,
    RequestFailed,
    Wire,
    _grpc_kind,
    open_wire,
    refused,
)

INPUTS: dict[str, np.ndarray[Any, Any]] = {
    "x": np.arange(6, dtype=np.float16).reshape(2, 3),
    "flag": np.array([True, False]),
    "text": np.array([b"a\x00", b""], dtype=object),
}


def destination(scheme: str = "grpc", version: str = "3") -> Destination:
    return Destination(
        url=f"{scheme}://127.0.0.1:1/base" if scheme == "http" else f"{scheme}://127.0.0.1:1",
        headers={"Authorization": "Bearer 1"},
        model="my+model",
        version=version,
        timeout_s=1.0,
    )


@pytest.fixture
def grpc_wire() -> Any:
    wire = open_wire(destination())
    yield wire
    wire.close()


@pytest.fixture
def http_wire() -> Wire:
    return open_wire(destination("http"))


def test_grpc_request_is_tritonclient_s(grpc_wire: Wire) -> None:
    types = {"x": "FP16", "flag": "BOOL", "text": "BYTES"}
    tensors = [
        InferInput(name, list(array.shape), types[name]).set_data_from_numpy(array)
        for name, array in INPUTS.items()
    ]
    theirs = _get_inference_request("my+model", tensors, "3", "", None, 0, False, False, 0, None, None)
    assert service_pb2.ModelInferRequest.FromString(grpc_wire.encode(INPUTS)) == theirs


def test_http_request_has_path_headers_and_both_parts(http_wire: Wire) -> None:
    head, _, body = http_wire.encode(INPUTS).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    length = int(headers["Inference-Header-Content-Length"])
    assert lines[0] == "POST /base/v2/models/my+model/versions/3/infer HTTP/1.1"
    assert headers["Authorization"] == "Bearer 1"
    assert int(headers["Content-Length"]) == len(body)
    assert [item["name"] for item in json.loads(body[:length])["inputs"]] == ["x", "flag", "text"]
    assert body[length:] == INPUTS["x"].tobytes() + b"\x01\x00" + b"\x02\0\0\0a\x00\0\0\0\0"


@pytest.mark.parametrize(("given", "sent"), [({}, b"Host: 127.0.0.1:1"), ({"host": "a.b"}, b"host: a.b")])
def test_http_request_has_one_host(given: dict[str, str], sent: bytes) -> None:
    wire = open_wire(replace(destination("http"), headers=given))
    lines = wire.encode(INPUTS).partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert [line for line in lines if line.lower().startswith(b"host:")] == [sent]


def test_grpc_answer_is_read(grpc_wire: Wire) -> None:
    message = service_pb2.ModelInferResponse(model_name="m", model_version="2")
    message.outputs.add(name="y", datatype="INT64", shape=[1, 2])
    message.raw_output_contents.append(np.array([3, 4]).tobytes())
    result = grpc_wire.decode(Answer(message.SerializeToString()))
    assert (result.model_name, result.model_version) == ("m", "2")
    assert result.outputs["y"].tolist() == [[3, 4]]


def test_http_answer_is_read(http_wire: Wire) -> None:
    head = {
        "model_name": "m",
        "model_version": "2",
        "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}}],
    }
    text = json.dumps(head).encode()
    result = http_wire.decode(Answer(text + b"\x02\0\0\0ab", len(text)))
    assert result.outputs["y"].tolist() == [b"ab"]


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff", b"<html>"], ids=["empty", "bytes", "html"])
def test_answer_that_is_none_is_refused(grpc_wire: Wire, http_wire: Wire, body: bytes) -> None:
    with pytest.raises(RefusedError):
        http_wire.decode(Answer(body))
    if body:  # to protobuf nothing is a message with nothing in it
        with pytest.raises(RefusedError):
            grpc_wire.decode(Answer(body))


def test_truncated_string_output_is_refused(grpc_wire: Wire) -> None:
    message = service_pb2.ModelInferResponse(model_name="m")
    message.outputs.add(name="y", datatype="BYTES", shape=[1])
    message.raw_output_contents.append(b"\xff\xff\xff\x7fab")
    with pytest.raises(RefusedError, match="runs past the end"):
        grpc_wire.decode(Answer(message.SerializeToString()))


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_nobody_there_is_unreachable(scheme: str) -> None:
    wire = open_wire(destination(scheme))
    connection = wire.connect()
    connection.ready()
    with pytest.raises(RequestFailed) as caught:
        connection.exchange(b"")
    wire.close()
    assert caught.value.kind == UNREACHABLE


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", TIMEOUT),
        ("UNAVAILABLE", "failed to connect to all addresses", UNREACHABLE),
        ("UNAVAILABLE", "Socket closed", UNREACHABLE),
        ("UNAVAILABLE", "Exceeds maximum queue size", "unavailable"),
        ("INTERNAL", "the model raised", "internal"),
    ],
)
def test_kinds_of_failure(status: str, text: str, kind: str) -> None:
    assert _grpc_kind(status, text) == kind


@pytest.mark.parametrize(
    ("kind", "error"),
    [(TIMEOUT, ServerTimeoutError), (UNREACHABLE, ServerError), ("invalid_argument", RefusedError)],
)
def test_failure_of_a_single_request_is_one_of_our_errors(kind: str, error: type[Exception]) -> None:
    assert type(refused(RequestFailed(kind, "because"), destination())) is error
