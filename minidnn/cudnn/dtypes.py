"""cuDNN's data type for each dtype of arrays, and the type in which it is computed.

Scalars on the host that cuDNN reads through a pointer are created here, too: alpha, beta and fill
values.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

from minidnn.cudnn.enums import DataType
from minidnn.cudnn.errors import DTypeError
from minidnn.errors import GraphError

#: By the dtype's name, so that ml_dtypes' bfloat16 needs no import.
BY_NAME: dict[str, DataType] = {
    "float16": DataType.CUDNN_DATA_HALF,
    "bfloat16": DataType.CUDNN_DATA_BFLOAT16,
    "float32": DataType.CUDNN_DATA_FLOAT,
    "float64": DataType.CUDNN_DATA_DOUBLE,
    "int8": DataType.CUDNN_DATA_INT8,
    "uint8": DataType.CUDNN_DATA_UINT8,
    "int32": DataType.CUDNN_DATA_INT32,
    "int64": DataType.CUDNN_DATA_INT64,
}

_COMPUTE: dict[DataType, DataType] = {
    DataType.CUDNN_DATA_DOUBLE: DataType.CUDNN_DATA_DOUBLE,
    DataType.CUDNN_DATA_INT8: DataType.CUDNN_DATA_INT32,
    DataType.CUDNN_DATA_UINT8: DataType.CUDNN_DATA_INT32,
    DataType.CUDNN_DATA_INT32: DataType.CUDNN_DATA_INT32,
    DataType.CUDNN_DATA_INT8x4: DataType.CUDNN_DATA_INT32,
    DataType.CUDNN_DATA_UINT8x4: DataType.CUDNN_DATA_INT32,
    DataType.CUDNN_DATA_INT8x32: DataType.CUDNN_DATA_INT32,
}


def data_type(dtype: Any) -> DataType:
    """Return cuDNN's data type of a NumPy dtype, a dtype's name, or a :class:`DataType`.

    Raises :class:`~minidnn.cudnn.errors.DTypeError` for dtypes that cuDNN does not have.
    """
    if isinstance(dtype, DataType):
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if name is None:
        name = getattr(dtype, "__name__", str(dtype))  # numpy.float32, the class
    found = BY_NAME.get(name)
    if found is None:
        raise DTypeError(f"Dtype {name} is not supported in cuDNN; it has {', '.join(BY_NAME)}")
    return found


def compute_type(data: DataType) -> DataType:
    """Return the type to compute in: double for double, int32 for integers, else float."""
    return _COMPUTE.get(data, DataType.CUDNN_DATA_FLOAT)


def is_double(data: DataType) -> bool:
    """Return whether alpha and beta are doubles on the host for this data type, else floats."""
    return data == DataType.CUDNN_DATA_DOUBLE


_cache: dict[tuple[float, float, bool], Any] = {}
_LIMIT = 1024


def scalar(value: float, double: bool) -> Any:
    """Return a pointer argument to ``value`` as a C double or float.

    The pointer keeps its number alive, and equal numbers of equal signs share one.
    """
    key = (value, math.copysign(1.0, value), double)  # as 0.0 == -0.0
    pointer = _cache.get(key)
    if pointer is None:
        if len(_cache) >= _LIMIT:
            _cache.clear()
        pointer = ctypes.byref(ctypes.c_double(value) if double else ctypes.c_float(value))
        _cache[key] = pointer
    return pointer


ONE = scalar(1.0, False)
ZERO = scalar(0.0, False)
DOUBLE_ONE = scalar(1.0, True)
DOUBLE_ZERO = scalar(0.0, True)


def ints(values: Any) -> Any:
    """Return a C array of 32-bit integers."""
    return (ctypes.c_int * len(values))(*values)


@dataclass(frozen=True)
class ElementType:
    """The element type of a graph's tensor: cuDNN's ``code`` of it and its ``size`` in bytes.

    ``compute`` is the dtype of accumulation and of values between fused operations.
    """

    code: DataType
    size: int
    compute: str


ELEMENT_TYPES = {
    "float16": ElementType(BY_NAME["float16"], 2, "float32"),
    "bfloat16": ElementType(BY_NAME["bfloat16"], 2, "float32"),
    "float32": ElementType(BY_NAME["float32"], 4, "float32"),
    "float64": ElementType(BY_NAME["float64"], 8, "float64"),
    "int8": ElementType(BY_NAME["int8"], 1, "int32"),
    "uint8": ElementType(BY_NAME["uint8"], 1, "int32"),
    "int32": ElementType(BY_NAME["int32"], 4, "int32"),
    "int64": ElementType(BY_NAME["int64"], 8, "int64"),
    "bool": ElementType(DataType.CUDNN_DATA_BOOLEAN, 1, "float32"),
}


HOST_TYPES: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
}
"""The C types, by dtype, of the constants that a graph takes by value."""


def element_type(name: str, argument: str = "dtype") -> ElementType:
    """Return the element type of that name; ``argument`` is for the message.

    Raises:
        GraphError: there is no such type.
    """
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        known = ", ".join(ELEMENT_TYPES)
        raise GraphError(f"{argument} {name!r} is not supported; valid are {known}") from None
