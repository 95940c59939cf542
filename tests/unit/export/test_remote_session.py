"""ONNX Runtime in another process gives what it gives in this one."""

import os
import signal
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit.errors import ExportError, MissingDependencyError
from triton_toolkit.export.channel import Channel, ChannelClosed
from triton_toolkit.export.remote_session import runtime_server
from triton_toolkit.export.session import RunFailed, Session, running_in


@pytest.fixture(scope="module")
def server():
    with runtime_server(sys.executable) as server:
        yield server


@pytest.fixture
def remote(server):
    with running_in(server.open):
        yield server


def model(path, operator="Reshape", dtype=TensorProto.FLOAT):
    inputs = [helper.make_tensor_value_info("x", dtype, [None]), helper.make_tensor_value_info("n", 7, [1])]
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in ("y", "z")]
    nodes = [
        helper.make_node(operator, ["x", "n"], ["y"], name="shape"),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "main", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def test_outputs_are_those_of_a_session_here(remote, tmp_path):
    inputs = {"x": np.arange(6, dtype=np.float32), "n": np.int64([6])}
    there = Session(
        model(tmp_path / "m.onnx"), optimized=False, entries={"session.set_denormal_as_zero": "1"}, threads=1
    )
    assert there.predict(inputs)["y"].tolist() == list(range(6))
    assert list(there.predict(inputs, ["z"])) == ["z"]
    there.predict(inputs)["z"][0] = 1  # can be written to, as an array of this process can


def test_text_and_empty_arrays_come_back_as_they_were(remote, tmp_path):
    session = Session(model(tmp_path / "m.onnx", dtype=TensorProto.STRING))
    text = np.array([b"a", "é\x00".encode(), b""], object)
    assert session.predict({"x": text, "n": np.int64([3])})["y"].tolist() == text.tolist()
    assert session.predict({"x": text[:0], "n": np.int64([0])})["y"].shape == (0,)


def test_a_changed_version_is_loaded_instead_of_the_file(remote, tmp_path):
    path = model(tmp_path / "m.onnx")
    changed = onnx.load(path)
    del changed.graph.output[1]
    session = Session(path, content=changed.SerializeToString())
    assert list(session.predict({"x": np.zeros(1, np.float32), "n": np.int64([1])})) == ["y"]


def test_a_failing_node_is_named(remote, tmp_path):
    session = Session(model(tmp_path / "m.onnx"))
    with pytest.raises(RunFailed) as caught:
        session.predict({"x": np.zeros(3, np.float32), "n": np.int64([2])})
    assert (caught.value.node, caught.value.operator) == ("shape", "Reshape")
    assert "cannot be reshaped" in caught.value.reason


def test_a_refused_file_is_an_error_of_the_export(remote, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"^ONNX Runtime \S+ refuses m\.onnx"):
        Session(tmp_path / "m.onnx")


def test_sessions_are_freed_and_their_numbers_used_again(server, remote, tmp_path):
    path = model(tmp_path / "m.onnx")
    inputs = {"x": np.zeros(1, np.float32), "n": np.int64([1])}
    first = Session(path)
    number = first._runner._session
    del first
    second, third = Session(path), Session(path)
    assert second._runner._session == number
    assert third._runner._session != number
    assert second.predict(inputs)["y"].tolist() == third.predict(inputs)["y"].tolist()


def test_a_server_that_dies_is_an_error_that_says_how(tmp_path):
    path = model(tmp_path / "m.onnx")
    with runtime_server(sys.executable) as server, running_in(server.open):
        session = Session(path)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(ExportError, match="the process of ONNX Runtime ended with killed by SIGKILL"):
            session.predict({"x": np.zeros(1, np.float32), "n": np.int64([1])})


def test_a_missing_runtime_is_told_with_its_extra(tmp_path):
    from tests.unit.export.environments import make_environment

    python = make_environment(tmp_path / "bare", "numpy")
    with pytest.raises(MissingDependencyError) as caught, runtime_server(str(python)):
        pass
    assert caught.value.hint == "pip install 'triton-toolkit[cpu]'"


def test_the_version_is_that_of_the_server(server):
    import onnxruntime

    assert server.version == onnxruntime.__version__


def test_every_kind_of_array_passes_a_channel():
    ends = os.pipe()
    with os.fdopen(ends[0], "rb") as reader, os.fdopen(ends[1], "wb") as writer:
        channel = Channel(reader, writer)
        arrays = {
            "scalar": np.float64(3).reshape(()),
            "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
            "half": np.float16([[1]]),
            "flag": np.array([True, False]),
            "none": np.zeros((0, 3), np.uint8),
            "text": np.array([[b"a\x00", b""]], object),
        }
        channel.send({"hello": [1, "é"]}, arrays)
        message, found = channel.receive()
        assert message == {"hello": [1, "é"]}
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
            np.testing.assert_array_equal(found[name], array)
        writer.close()
        with pytest.raises(ChannelClosed):
            channel.receive()
        with pytest.raises(ChannelClosed):
            channel.send({})
