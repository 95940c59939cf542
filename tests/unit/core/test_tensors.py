"""The data type table against the tables of the tools themselves."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import triton_to_np_dtype

from triton_toolkit.core.tensors import DataType, TensorSpec

EVERY = pytest.mark.parametrize("dtype", list(DataType), ids=lambda dtype: dtype.spec)
NOT_SERVED = {"TYPE_INVALID", "TYPE_BF16"}


def test_every_type_of_triton_is_in_the_table_but_bf16():
    assert {dtype.triton for dtype in DataType} == set(model_config_pb2.DataType.keys()) - NOT_SERVED


@EVERY
def test_the_wire_name_has_tritonclients_numpy_type(dtype):
    assert np.dtype(triton_to_np_dtype(dtype.wire)) == np.dtype(dtype.numpy)


@EVERY
def test_the_onnx_number_has_onnx_numpy_type(dtype):
    assert helper.tensor_dtype_to_np_dtype(dtype.onnx) == np.dtype(dtype.numpy)


@EVERY
def test_the_item_size_is_numpys(dtype):
    assert dtype.itemsize == (0 if dtype is DataType.BYTES else np.dtype(dtype.numpy).itemsize)


@EVERY
def test_onnxruntime_calls_it_so(dtype):
    tensors = [helper.make_tensor_value_info(name, dtype.onnx, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].type == dtype.ort


@EVERY
def test_parse_knows_it_by_all_its_names(dtype):
    names = (dtype.spec, dtype.triton, dtype.wire, dtype.ort, dtype.numpy, dtype.spec.upper())
    assert {DataType.parse(name) for name in names} == {dtype}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float", DataType.FP32), ("double", DataType.FP64), ("half", DataType.FP16), ("long", DataType.INT64),
     ("int", DataType.INT32), ("string", DataType.BYTES), ("str", DataType.BYTES)],
)  # fmt: skip
def test_parse_knows_pytorchs_names(name, dtype):
    assert DataType.parse(name) is dtype


def test_an_unknown_type_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown data type 'fp31'; known: bool, .*fp32.*bytes"):
        DataType.parse("fp31")


@EVERY
def test_from_onnx_is_the_inverse_of_onnx(dtype):
    assert DataType.from_onnx(dtype.onnx) is dtype


@pytest.mark.parametrize("number", [TensorProto.BFLOAT16, TensorProto.COMPLEX64, TensorProto.FLOAT8E4M3FN])
def test_an_onnx_type_that_triton_lacks_is_refused(number):
    with pytest.raises(ValueError, match=f"element type {number} cannot be served"):
        DataType.from_onnx(number)


def test_only_floats_need_a_tolerance():
    assert [dtype.spec for dtype in DataType if dtype.is_float] == ["fp16", "fp32", "fp64"]


IMAGE = TensorSpec(name="image", dtype=DataType.FP32, shape=("batch", 3, "h", "w"))


def test_dims_leave_the_batch_dimension_to_triton():
    assert IMAGE.dims(batch_dim="batch") == (3, -1, -1)


def test_dims_without_batching_hold_every_dimension():
    assert IMAGE.dims(batch_dim=None) == (-1, 3, -1, -1)


def test_dims_keep_a_first_dimension_that_is_not_the_batch():
    assert IMAGE.dims(batch_dim="h") == (-1, 3, -1, -1)


def test_dynamic_names_a_shared_dimension_once():
    assert TensorSpec(name="m", dtype=DataType.FP32, shape=("n", "k", "n")).dynamic == ("n", "k")


def test_concrete_replaces_each_dynamic_dimension():
    assert IMAGE.concrete({"batch": 2, "h": 4, "w": 5}) == (2, 3, 4, 5)


def test_a_tensor_survives_its_passport_form():
    assert TensorSpec.from_dict(IMAGE.as_dict()) == IMAGE


def test_a_shape_that_is_no_list_is_refused():
    with pytest.raises(ValueError, match="shape of 'x' is not a list"):
        TensorSpec.from_dict({"name": "x", "dtype": "fp32", "shape": 3})


def test_the_table_is_what_onnx_installed_here_knows():
    assert max(dtype.onnx for dtype in DataType) in onnx.TensorProto.DataType.values()
