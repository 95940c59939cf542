"""One table of data types, and the description of a tensor that every stage uses.

The names are lower case and short (``fp32``, ``int64``, ``bytes``), as written in ``tt.yaml``.
Sources: model_config.proto ``DataType`` (TYPE_*), the KServe v2 protocol (``FP32``, ``BYTES``),
onnx.proto ``TensorProto.DataType`` numbers, ONNX Runtime's type strings.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Names:
    triton: str  # model_config.proto
    wire: str  # KServe v2 protocol, tritonclient
    onnx: int  # TensorProto.DataType
    ort: str  # onnxruntime NodeArg.type
    numpy: str  # numpy dtype name; "object" for strings
    itemsize: int  # bytes an element; 0 where elements differ in size


class DataType(enum.Enum):
    """A tensor's element type, under all the names that the tools give it."""

    BOOL = _Names("TYPE_BOOL", "BOOL", 9, "tensor(bool)", "bool", 1)
    UINT8 = _Names("TYPE_UINT8", "UINT8", 2, "tensor(uint8)", "uint8", 1)
    UINT16 = _Names("TYPE_UINT16", "UINT16", 4, "tensor(uint16)", "uint16", 2)
    UINT32 = _Names("TYPE_UINT32", "UINT32", 12, "tensor(uint32)", "uint32", 4)
    UINT64 = _Names("TYPE_UINT64", "UINT64", 13, "tensor(uint64)", "uint64", 8)
    INT8 = _Names("TYPE_INT8", "INT8", 3, "tensor(int8)", "int8", 1)
    INT16 = _Names("TYPE_INT16", "INT16", 5, "tensor(int16)", "int16", 2)
    INT32 = _Names("TYPE_INT32", "INT32", 6, "tensor(int32)", "int32", 4)
    INT64 = _Names("TYPE_INT64", "INT64", 7, "tensor(int64)", "int64", 8)
    FP16 = _Names("TYPE_FP16", "FP16", 10, "tensor(float16)", "float16", 2)
    FP32 = _Names("TYPE_FP32", "FP32", 1, "tensor(float)", "float32", 4)
    FP64 = _Names("TYPE_FP64", "FP64", 11, "tensor(double)", "float64", 8)
    BYTES = _Names("TYPE_STRING", "BYTES", 8, "tensor(string)", "object", 0)

    @property
    def spec(self) -> str:
        """The name in ``tt.yaml``, such as ``fp32``."""
        return self.name.lower()

    @property
    def triton(self) -> str:
        """The name in ``config.pbtxt``, such as ``TYPE_FP32``."""
        return self.value.triton

    @property
    def wire(self) -> str:
        """The name in requests and model metadata, such as ``FP32``."""
        return self.value.wire

    @property
    def onnx(self) -> int:
        """The number in ``TensorProto.DataType``."""
        return self.value.onnx

    @property
    def ort(self) -> str:
        """ONNX Runtime's name, such as ``tensor(float)``."""
        return self.value.ort

    @property
    def numpy(self) -> str:
        """The numpy dtype name; ``object`` for strings."""
        return self.value.numpy

    @property
    def itemsize(self) -> int:
        """Bytes an element takes, 0 where elements differ in size (BYTES)."""
        return self.value.itemsize

    @property
    def is_float(self) -> bool:
        """Whether results need a tolerance when compared."""
        return self in (DataType.FP16, DataType.FP32, DataType.FP64)

    @classmethod
    def parse(cls, name: str) -> DataType:
        """Return the type with this name in any of the vocabularies (number of ONNX excepted).

        Raises:
            ValueError: No type has this name; the text lists the names of ``tt.yaml``.
        """
        try:
            return _BY_NAME[name.lower()]
        except KeyError:
            known = ", ".join(member.spec for member in cls)
            raise ValueError(f"unknown data type {name!r}; known: {known}") from None

    @classmethod
    def from_onnx(cls, number: int) -> DataType:
        """Return the type with this ``TensorProto.DataType`` number.

        Raises:
            ValueError: Triton has no such type (bfloat16, complex, float8 …).
        """
        for member in cls:
            if member.onnx == number:
                return member
        raise ValueError(f"ONNX element type {number} cannot be served by Triton's ONNX Runtime backend")


_BY_NAME: dict[str, DataType] = {}
for _member in DataType:
    for _name in (_member.spec, _member.triton, _member.wire, _member.ort, _member.numpy):
        _BY_NAME[_name.lower()] = _member
_BY_NAME |= {"string": DataType.BYTES, "str": DataType.BYTES, "float": DataType.FP32, "double": DataType.FP64}
_BY_NAME |= {"half": DataType.FP16, "long": DataType.INT64, "int": DataType.INT32}

Extent = int | str
"""One entry of a shape: a fixed size, or the name of a dynamic dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """An input or output: its name, type, and shape with dynamic dimensions by name.

    ``shape`` includes the batch dimension where the model has one: ``("batch", 3, "h", "w")``.
    """

    name: str
    dtype: DataType
    shape: tuple[Extent, ...]

    @property
    def dynamic(self) -> tuple[str, ...]:
        """The names of the dynamic dimensions, in order, each once."""
        return tuple(dict.fromkeys(extent for extent in self.shape if isinstance(extent, str)))

    def dims(self, *, batch_dim: str | None) -> tuple[int, ...]:
        """Return Triton's ``dims``: -1 for a dynamic dimension, the batch dimension left out.

        Triton puts the batch dimension in front itself when ``max_batch_size`` > 0, so it must
        not be repeated in ``dims``.
        """
        shape = self.shape
        if batch_dim is not None and shape and shape[0] == batch_dim:
            shape = shape[1:]
        return tuple(-1 if isinstance(extent, str) else extent for extent in shape)

    def concrete(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Return the shape with each dynamic dimension replaced by its size."""
        return tuple(sizes[extent] if isinstance(extent, str) else extent for extent in self.shape)

    def as_dict(self) -> dict[str, object]:
        """Return it for a passport: name, dtype (``fp32``), shape."""
        return {"name": self.name, "dtype": self.dtype.spec, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> TensorSpec:
        """Read what ``as_dict`` wrote."""
        shape = value["shape"]
        if not isinstance(shape, list):
            raise ValueError(f"shape of {value.get('name')!r} is not a list")
        return cls(name=str(value["name"]), dtype=DataType.parse(str(value["dtype"])), shape=tuple(shape))
