import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from triton_toolkit.client.payloads import from_wire, to_wire
from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import RefusedError, UsageError

_NUMBERS = [member for member in DataType if member is not DataType.BYTES]


def _round_trip(array: np.ndarray) -> np.ndarray:
    dtype, data = to_wire("x", array)
    return from_wire("x", dtype.wire, list(array.shape), data)


def _objects(*elements: object) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


@pytest.mark.parametrize("dtype", _NUMBERS, ids=lambda dtype: dtype.spec)
@given(data=st.data())
def test_numbers_come_back_as_they_were(dtype, data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    array = data.draw(hnp.arrays(dtype.numpy, shape))
    result = _round_trip(array)
    assert (result.dtype, result.shape) == (array.dtype, array.shape)
    assert result.tobytes() == array.tobytes()


@given(st.lists(st.binary(), max_size=6))
def test_bytes_come_back_as_they_were_trailing_nul_included(elements):
    assert _round_trip(_objects(*elements)).tolist() == elements


def test_bytes_go_out_in_tritons_format():
    assert to_wire("x", _objects(b"ab\0", b"")) == (DataType.BYTES, b"\x03\0\0\0ab\0\0\0\0\0")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (_objects("é", b"raw"), ["é".encode(), b"raw"]),
        (np.array(["ab", "c"]), [b"ab", b"c"]),
        (np.array([b"ab", b"c"]), [b"ab", b"c"]),
        (_objects(np.bytes_(b"ab"), np.str_("c")), [b"ab", b"c"]),
        (_objects(bytearray(b"ab"), memoryview(b"c")), [b"ab", b"c"]),
    ],
    ids=["str-and-bytes", "U-array", "S-array", "numpy-scalars", "buffers"],
)
def test_every_kind_of_string_is_taken(array, expected):
    assert _round_trip(array).tolist() == expected


def test_memory_order_and_byte_order_do_not_matter():
    array = np.arange(6, dtype=">i4").reshape(2, 3).T
    assert _round_trip(array).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([1j]), "numpy type complex128"),
        (np.array(["2026-01-01"], "datetime64[D]"), "numpy type datetime64"),
        (_objects(b"ok", 5), "an element of type int: 5"),
        (_objects(None), "an element of type NoneType"),
    ],
    ids=["complex", "datetime", "number", "none"],
)
def test_what_triton_has_no_type_for_is_refused_by_name(array, problem):
    with pytest.raises(UsageError, match=rf"input 'image' has {problem}"):
        to_wire("image", array)


@pytest.mark.parametrize(
    ("datatype", "shape", "data"),
    [
        ("FP32", [2], b"\0" * 7),
        ("FP32", [3], b"\0" * 8),
        ("BYTES", [1], b"\x09\0\0\0ab"),
        ("BYTES", [1], b"\x09\0"),
        ("BF16", [1], b"\0\0"),
    ],
    ids=["cut", "wrong-shape", "string-past-the-end", "length-cut", "unknown-type"],
)
def test_damaged_answer_is_an_error_that_names_the_output(datatype, shape, data):
    with pytest.raises(RefusedError, match="output 'y' cannot be read"):
        from_wire("y", datatype, shape, data)
