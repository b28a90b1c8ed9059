"""Filter descriptors: type, layout and shape (K, C / groups, spatial...) of weights."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import MAX_DIMENSIONS, Shape, element_strides, layouts
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import data_type, ints
from minidnn.cudnn.enums import DataType, TensorFormat
from minidnn.cudnn.errors import ArgumentError


class FilterInfo(NamedTuple):
    """What a filter descriptor holds; ``shape`` is K, C, ... whatever the layout."""

    dtype: DataType
    format: TensorFormat
    shape: Shape


class FilterDescriptor(Descriptor):
    """A ``cudnnFilterDescriptor_t``; initialise it with a ``set`` method or a class method."""

    __slots__ = ()
    KIND = "Filter"

    @classmethod
    def of(cls, array: Any, name: str = "w") -> Self:
        """Describe a CuPy array in logical order (K, C, ...), dense as KCRS or as KRSC."""
        return cls.packed(array.dtype, array.shape, filter_layouts(name, array)[0])

    @classmethod
    def packed(cls, dtype: Any, shape: Shape, format: TensorFormat) -> Self:
        """Describe a dense filter (``cudnnSetFilterNdDescriptor``)."""
        made = cls()
        made.set_nd(dtype, format, shape)
        return made

    def set_4d(self, dtype: Any, format: TensorFormat, k: int, c: int, h: int, w: int) -> None:
        """``cudnnSetFilter4dDescriptor``."""
        data, dims = data_type(dtype), (k, c, h, w)
        context = {"shape": dims, "dtype": data, "layout": TensorFormat(format)}
        self._set("cudnnSetFilter4dDescriptor", data, format, *dims, **context)

    def set_nd(self, dtype: Any, format: TensorFormat, shape: Shape) -> None:
        """``cudnnSetFilterNdDescriptor``."""
        data = data_type(dtype)
        context = {"shape": shape, "dtype": data, "layout": TensorFormat(format)}
        arguments = (data, format, len(shape), ints(shape))
        self._set("cudnnSetFilterNdDescriptor", *arguments, **context)

    def get(self) -> FilterInfo:
        """Return type, layout and shape (``cudnnGetFilterNdDescriptor``)."""
        dtype, format, rank = (ctypes.c_int() for _ in range(3))
        shape = ints([0] * MAX_DIMENSIONS)
        outputs = (ctypes.byref(dtype), ctypes.byref(format), ctypes.byref(rank), shape)
        self.call("cudnnGetFilterNdDescriptor", MAX_DIMENSIONS, *outputs)
        dims = tuple(shape[: rank.value])
        return FilterInfo(DataType(dtype.value), TensorFormat(format.value), dims)

    def get_4d(self) -> FilterInfo:
        """Return type, layout and shape of a 4-d filter (``cudnnGetFilter4dDescriptor``)."""
        dtype, format, *dims = self.query_ints("cudnnGetFilter4dDescriptor", 6)
        return FilterInfo(DataType(dtype), TensorFormat(format), tuple(dims))

    @property
    def size_in_bytes(self) -> int:
        """Bytes of the filter (``cudnnGetFilterSizeInBytes``)."""
        return self.query_size("cudnnGetFilterSizeInBytes")


def filter_layouts(name: str, array: Any) -> tuple[TensorFormat, ...]:
    """Return the dense layouts of a filter, or raise: filters have no strides in cuDNN."""
    found = layouts(array.shape, element_strides(name, array))
    if not found:
        raise ArgumentError(
            f"{name} has shape {array.shape} and strides {array.strides} bytes; cuDNN takes only "
            "dense filters (KCRS, or KRSC transposed to KCRS), use cupy.ascontiguousarray"
        )
    return found
