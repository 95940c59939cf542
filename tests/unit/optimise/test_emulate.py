import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from triton_toolkit.export.session import Session
from triton_toolkit.optimise.emulate import emulate_fp16


def write(path, nodes, *, kind=TensorProto.FLOAT, weights=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["n"])],
        [helper.make_tensor_value_info("y", kind, ["n"])],
        [helper.make_tensor(name, TensorProto.FLOAT16, [1], [value]) for name, value in weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


HALF = TensorProto.FLOAT16


@pytest.fixture
def squared(tmp_path):
    """A file that squares in FP16 and takes the root of it, with FP32 inputs and outputs."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=HALF),
        helper.make_node("Mul", ["h", "h"], ["s"]),
        helper.make_node("Sqrt", ["s"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    write(tmp_path / "squared.onnx", nodes)
    return tmp_path / "squared.onnx"


def run(path, values, dtype=np.float32):
    return Session(path).predict({"x": np.array(values, dtype)})["y"]


def test_onnx_runtime_alone_hides_the_overflow(squared):
    assert run(squared, [300.0])[0] == pytest.approx(300, rel=1e-3)


def test_what_overflows_or_vanishes_in_fp16_does_so(squared, tmp_path):
    emulate_fp16(squared, tmp_path / "out.onnx")
    assert run(tmp_path / "out.onnx", [300.0, 1e-5, 2.0]).tolist() == [np.inf, 0.0, 2.0]


def test_each_value_is_rounded_as_numpy_rounds_it(squared, tmp_path):
    emulate_fp16(squared, tmp_path / "out.onnx")
    values = np.linspace(0.1, 200, 999, dtype=np.float32)
    half = values.astype(np.float16)
    wanted = np.sqrt((half.astype(np.float32) ** 2).astype(np.float16).astype(np.float32)).astype(np.float16)
    assert (run(tmp_path / "out.onnx", values) == wanted.astype(np.float32)).all()


def test_weights_inputs_and_outputs_in_fp16_keep_their_type_outside(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "w"], ["y"])]
    write(tmp_path / "m.onnx", nodes, kind=HALF, weights=[("w", 300.0)])
    emulate_fp16(tmp_path / "m.onnx", tmp_path / "out.onnx")
    got = run(tmp_path / "out.onnx", [0.5, 1.0], np.float16)
    assert got.dtype == np.float16
    assert got.tolist() == [float(np.float16(45000)), np.inf]
