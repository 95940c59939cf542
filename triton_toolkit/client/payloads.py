"""numpy arrays to and from the bytes of Triton's binary tensor format.

Source: "Binary Tensor Data Extension": little-endian C order; a BYTES tensor is its elements in
that order, each preceded by its length as an unsigned 32-bit number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from triton_toolkit.client.types import InferResult
from triton_toolkit.core.tensors import DataType
from triton_toolkit.errors import RefusedError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse


def to_wire(name: str, array: NDArray[Any]) -> tuple[DataType, bytes]:
    """Return an input's type and bytes.

    Strings may come as an object array of bytes and str (sent as UTF-8), or as numpy's ``U`` and
    ``S`` arrays. Give an object array where trailing NUL bytes matter: an ``S`` array pads with
    them and so cannot hold them.

    Raises:
        UsageError: Triton has no type for this array, or an element of it is not a string.
    """
    if array.dtype.kind in "OUS":
        return DataType.BYTES, _join_strings(name, array)
    try:
        dtype = DataType.parse(array.dtype.name)
    except ValueError:
        known = ", ".join(member.numpy for member in DataType)
        raise UsageError(
            f"input {name!r} has numpy type {array.dtype}, which Triton does not know", hint=f"known: {known}"
        ) from None
    return dtype, array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _join_strings(name: str, array: NDArray[Any]) -> bytes:
    parts: list[bytes] = []
    for element in array.reshape(-1).tolist():
        # numpy's own bytes and str scalars are subclasses of Python's.
        if isinstance(element, str):
            data = element.encode()
        elif isinstance(element, bytes | bytearray | memoryview):
            data = bytes(element)
        else:
            raise UsageError(
                f"input {name!r} has an element of type {type(element).__name__}: {element!r}",
                hint="elements of a BYTES tensor are bytes or str",
            )
        parts += (struct.pack("<I", len(data)), data)
    return b"".join(parts)


def from_wire(name: str, datatype: str, shape: list[int], data: bytes) -> NDArray[Any]:
    """Return an output as an array of this shape; numbers share the memory of ``data``.

    Raises:
        RefusedError: The bytes do not make up that type and shape: the server's answer is damaged
            or of a type that ``tt`` does not know.
    """
    import numpy as np

    try:
        dtype = DataType.parse(datatype)
        flat = _split_strings(data) if dtype is DataType.BYTES else np.frombuffer(data, dtype=dtype.numpy)
        return flat.reshape(shape)
    except (ValueError, struct.error) as exc:
        raise RefusedError(f"output {name!r} cannot be read as {datatype} of shape {shape}: {exc}") from exc


def _split_strings(data: bytes) -> np.ndarray[Any, np.dtype[Any]]:
    import numpy as np

    elements, start = [], 0
    while start < len(data):
        (length,) = struct.unpack_from("<I", data, start)
        start += 4
        if start + length > len(data):
            raise ValueError(f"an element of {length} bytes runs past the end")
        elements.append(data[start : start + length])
        start += length
    # np.array(elements) would make an S array and lose trailing NUL bytes.
    flat = np.empty(len(elements), dtype=object)
    flat[:] = elements
    return flat


def infer_request(
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    *,
    version: str = "",
    outputs: Sequence[str] | None = None,
) -> ModelInferRequest:
    """Return the message of one request.

    Args:
        model: The model to ask.
        inputs: Input name -> array, batch dimension included.
        version: The version to ask; empty lets the server choose.
        outputs: The outputs to return; all where left out.

    Raises:
        UsageError: An array has a type that Triton has not.
    """
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    for name, array in inputs.items():
        dtype, data = to_wire(name, array)
        request.inputs.add(name=name, datatype=dtype.wire, shape=array.shape)
        request.raw_input_contents.append(data)
    for name in outputs or ():
        request.outputs.add(name=name)
    return request


def infer_result(message: ModelInferResponse) -> InferResult:
    """Return an answer's outputs as arrays, and the version that gave them.

    Raises:
        RefusedError: It has not one raw content for each output.
    """
    if len(message.outputs) != len(message.raw_output_contents):
        raise RefusedError("the answer has not one raw content for each output")
    outputs = {
        tensor.name: from_wire(tensor.name, tensor.datatype, list(tensor.shape), data)
        for tensor, data in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    return InferResult(model_name=message.model_name, model_version=message.model_version, outputs=outputs)
