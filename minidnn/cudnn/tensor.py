"""Tensor descriptors: type, shape and strides of an array; and filter descriptors: type, layout and
shape (K, C / groups, spatial...) of weights.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import (
    MAX_DIMENSIONS,
    Shape,
    at_least_4d,
    element_strides,
    layouts,
    settled_strides,
)
from minidnn.cudnn.descriptor import Descriptor, Memo
from minidnn.cudnn.dtypes import data_type, ints
from minidnn.cudnn.enums import DataType, TensorFormat
from minidnn.cudnn.errors import ArgumentError


class TensorInfo(NamedTuple):
    """What a tensor descriptor holds; strides count elements."""

    dtype: DataType
    shape: Shape
    strides: Shape


class TensorDescriptor(Descriptor):
    """A ``cudnnTensorDescriptor_t``.

    ``TensorDescriptor()`` is not initialised: use one of the ``set`` methods, or the class
    methods :meth:`of`, :meth:`strided` and :meth:`packed`.
    """

    __slots__ = ()
    KIND = "Tensor"

    @classmethod
    def of(cls, array: Any, name: str = "array") -> Self:
        """Describe a CuPy array in logical order (N, C, ...); to 4 dimensions 1s are appended."""
        shape, strides = at_least_4d(array.shape, element_strides(name, array))
        return cls.strided(array.dtype, shape, settled_strides(shape, strides))

    @classmethod
    def strided(cls, dtype: Any, shape: Shape, strides: Shape) -> Self:
        """Describe any strides, counted in elements (``cudnnSetTensorNdDescriptor``)."""
        made = cls()
        made.set_nd(dtype, shape, strides)
        return made

    @classmethod
    def packed(cls, dtype: Any, shape: Shape, format: TensorFormat) -> Self:
        """Describe a dense tensor: ``shape`` is N, C, ... whatever the ``format``.

        NCHW_VECT_C takes the data types INT8x4, UINT8x4 and INT8x32 and counts channels, not
        vectors of them.
        """
        made = cls()
        made.set_nd_ex(format, dtype, shape)
        return made

    def set_4d(self, format: TensorFormat, dtype: Any, n: int, c: int, h: int, w: int) -> None:
        """``cudnnSetTensor4dDescriptor``."""
        data, dims = data_type(dtype), (n, c, h, w)
        self._set("cudnnSetTensor4dDescriptor", format, data, *dims, shape=dims, dtype=data)

    def set_4d_ex(self, dtype: Any, shape: Shape, strides: Shape) -> None:
        """``cudnnSetTensor4dDescriptorEx``: four extents and four strides in elements."""
        data = data_type(dtype)
        if len(shape) != 4 or len(strides) != 4:
            raise ArgumentError(f"set_4d_ex takes 4 extents and 4 strides, got {shape}, {strides}")
        context = {"shape": shape, "strides": strides, "dtype": data}
        self._set("cudnnSetTensor4dDescriptorEx", data, *shape, *strides, **context)

    def set_nd(self, dtype: Any, shape: Shape, strides: Shape) -> None:
        """``cudnnSetTensorNdDescriptor``: extents and strides in elements."""
        data = data_type(dtype)
        if len(shape) != len(strides):
            raise ArgumentError(f"shape {shape} and strides {strides} must have one length")
        context = {"shape": shape, "strides": strides, "dtype": data}
        arguments = (data, len(shape), ints(shape), ints(strides))
        self._set("cudnnSetTensorNdDescriptor", *arguments, **context)

    def set_nd_ex(self, format: TensorFormat, dtype: Any, shape: Shape) -> None:
        """``cudnnSetTensorNdDescriptorEx``: extents and a layout."""
        data = data_type(dtype)
        context = {"shape": shape, "layout": TensorFormat(format), "dtype": data}
        arguments = (format, data, len(shape), ints(shape))
        self._set("cudnnSetTensorNdDescriptorEx", *arguments, **context)

    def get(self) -> TensorInfo:
        """Return type, shape and strides (``cudnnGetTensorNdDescriptor``)."""
        dtype, rank = ctypes.c_int(), ctypes.c_int()
        shape, strides = ints([0] * MAX_DIMENSIONS), ints([0] * MAX_DIMENSIONS)
        outputs = (ctypes.byref(dtype), ctypes.byref(rank), shape, strides)
        self.call("cudnnGetTensorNdDescriptor", MAX_DIMENSIONS, *outputs)
        n = rank.value
        return TensorInfo(DataType(dtype.value), tuple(shape[:n]), tuple(strides[:n]))

    def get_4d(self) -> TensorInfo:
        """Return type, shape and strides of a 4-d descriptor (``cudnnGetTensor4dDescriptor``)."""
        dtype, *rest = self.query_ints("cudnnGetTensor4dDescriptor", 9)
        return TensorInfo(DataType(dtype), tuple(rest[:4]), tuple(rest[4:]))

    @property
    def size_in_bytes(self) -> int:
        """Bytes from the first to the last element (``cudnnGetTensorSizeInBytes``)."""
        return self.query_size("cudnnGetTensorSizeInBytes")


_cache: Memo[TensorDescriptor] = Memo(4096)
_by_array: Memo[TensorDescriptor] = Memo(4096)  # keyed by strides in bytes


def descriptor_of(array: Any, name: str = "array") -> TensorDescriptor:
    """Return a shared descriptor of the array's type, shape and strides; do not close it."""
    key = (array.dtype, array.shape, array.strides)
    found = _by_array.get(key)
    if found is None:
        found = described(array.dtype, array.shape, element_strides(name, array))
        _by_array.put(key, found)
    return found


def operand(array: Any, name: str = "array") -> tuple[int, int]:
    """Return an array as cuDNN's functions take it: the addresses of descriptor and data."""
    return descriptor_of(array, name).value, array.data.ptr


def described(
    dtype: Any, shape: Shape, strides: Shape, prefer: TensorFormat | None = None
) -> TensorDescriptor:
    """Return a shared descriptor of this type, shape and strides; do not close it."""
    key = (dtype, shape, strides, prefer)
    found = _cache.get(key)
    if found is None:
        full, steps = at_least_4d(shape, strides)
        found = TensorDescriptor.strided(dtype, full, settled_strides(full, steps, prefer))
        _cache.put(key, found)
    return found


def flat_descriptor_of(array: Any) -> TensorDescriptor:
    """Return a shared descriptor of a dense array as a vector, for element-wise operations.

    Its shape is (first extent, the rest, 1, 1), as CuPy's functions have it.
    """
    first = array.shape[0] if array.ndim else 1
    rest = array.size // first
    return described(array.dtype, (first, rest, 1, 1), (rest, 1, 1, 1))


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
