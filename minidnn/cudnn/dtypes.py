"""dtypes of arrays and cuDNN's data types, and numbers on the host that it reads through a pointer:
alpha, beta and fill values.
"""

from __future__ import annotations

import ctypes
from typing import Any

from minidnn.cudnn.enums import DataType
from minidnn.cudnn.errors import DTypeError

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

#: Data types whose innermost dimension is a vector of channels: element type and vector length.
VECTORS: dict[DataType, tuple[DataType, int]] = {
    DataType.CUDNN_DATA_INT8x4: (DataType.CUDNN_DATA_INT8, 4),
    DataType.CUDNN_DATA_UINT8x4: (DataType.CUDNN_DATA_UINT8, 4),
    DataType.CUDNN_DATA_INT8x32: (DataType.CUDNN_DATA_INT8, 32),
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


_cache: dict[tuple[float, bool], Any] = {}
_LIMIT = 1024


def scalar(value: float, double: bool) -> Any:
    """Return a pointer argument to ``value`` as a C double or float.

    The pointer keeps its number alive, and equal numbers share one.
    """
    key = (value, double)
    made = _cache.get(key)
    if made is None:
        if len(_cache) >= _LIMIT:
            _cache.clear()
        made = ctypes.byref(ctypes.c_double(value) if double else ctypes.c_float(value))
        _cache[key] = made
    return made


ONE = scalar(1.0, False)
ZERO = scalar(0.0, False)
DOUBLE_ONE = scalar(1.0, True)
DOUBLE_ZERO = scalar(0.0, True)


def ints(values: Any) -> Any:
    """Return a C array of 32-bit integers."""
    return (ctypes.c_int * len(values))(*values)
