"""Element types by name: their code in cuDNN, their size, what is computed and kept in between."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from minidnn.cudnn.dtypes import BY_NAME
from minidnn.cudnn.enums import DataType
from minidnn.errors import GraphError


@dataclass(frozen=True)
class ElementType:
    """``code`` of cuDNN, ``size`` in bytes, ``compute``: the type of accumulation and of values
    between fused operations."""

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
"""The types of constants that are handed over by value."""


def element_type(name: str, argument: str = "dtype") -> ElementType:
    """The element type of that name.

    Raises:
        GraphError: no such type.
    """
    try:
        return ELEMENT_TYPES[name]
    except KeyError:
        known = ", ".join(ELEMENT_TYPES)
        raise GraphError(f"{argument} {name!r} is not supported; valid are {known}") from None
