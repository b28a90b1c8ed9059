"""dtypes of arrays and cuDNN's data types."""

from __future__ import annotations

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
