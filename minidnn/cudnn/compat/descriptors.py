"""Descriptors, handles and data types with CuPy 13's names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.activation import ActivationDescriptor
from minidnn.cudnn.arrays import Shape, packed_strides
from minidnn.cudnn.convolution.plan import ConvolutionDescriptor
from minidnn.cudnn.dtypes import data_type
from minidnn.cudnn.enums import (
    ActivationMode,
    ConvolutionMode,
    DataType,
    IndicesType,
    MathType,
    NanPropagation,
    OpTensorOp,
    PoolingMode,
    ReduceTensorIndices,
    ReduceTensorOp,
    TensorFormat,
)
from minidnn.cudnn.errors import ArgumentError, DTypeError, check
from minidnn.cudnn.handle import current_handle
from minidnn.cudnn.op_tensor import OpTensorDescriptor
from minidnn.cudnn.pooling import PoolingDescriptor
from minidnn.cudnn.reduction import ReduceTensorDescriptor
from minidnn.cudnn.tensor import FilterDescriptor, TensorDescriptor

NCHW = TensorFormat.CUDNN_TENSOR_NCHW
NHWC = TensorFormat.CUDNN_TENSOR_NHWC
CROSS_CORRELATION = ConvolutionMode.CUDNN_CROSS_CORRELATION
PROPAGATE = NanPropagation.CUDNN_PROPAGATE_NAN
NOT_PROPAGATE = NanPropagation.CUDNN_NOT_PROPAGATE_NAN
FLATTENED = ReduceTensorIndices.CUDNN_REDUCE_TENSOR_FLATTENED_INDICES
NO_INDICES = ReduceTensorIndices.CUDNN_REDUCE_TENSOR_NO_INDICES
INDICES_32 = IndicesType.CUDNN_32BIT_INDICES
WITH_INDICES = (
    ReduceTensorOp.CUDNN_REDUCE_TENSOR_MIN,
    ReduceTensorOp.CUDNN_REDUCE_TENSOR_MAX,
)
_FLOATS = (
    DataType.CUDNN_DATA_FLOAT,
    DataType.CUDNN_DATA_DOUBLE,
    DataType.CUDNN_DATA_HALF,
    DataType.CUDNN_DATA_BFLOAT16,
)


class Descriptor:
    """The address of a cuDNN object and the function that destroys it, as in CuPy.

    The ``create_...`` functions return descriptors of this package, which have ``value`` too.
    """

    def __init__(self, descriptor: int, destroyer: Callable[[int], object] | None) -> None:
        self.value = descriptor
        self._destroy = destroyer

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        value, self.value = getattr(self, "value", 0), 0
        if value and self._destroy is not None and not finalizing():
            self._destroy(value)


def get_handle() -> int:
    """Return the handle of the current device and thread, on the current stream."""
    return current_handle()


def get_data_type(dtype: Any) -> int:
    """Return cuDNN's data type of a floating dtype; TypeError for others."""
    found = data_type(dtype)
    if found not in _FLOATS:
        raise DTypeError(f"Dtype {dtype} is not supported in cuDNN")
    return found


def check_contiguous(array: Any) -> None:
    """Raise CuPy's error for an array that is not C-contiguous."""
    if not array.flags.c_contiguous:
        raise ArgumentError("cupyx.cudnn supports c-contiguous arrays only")


def check_format(format: int) -> None:
    """Raise CuPy's error for a layout that is not NCHW or NHWC."""
    if format not in (NCHW, NHWC):
        raise ArgumentError(f"unknown cudnnTensorFormat: {format}")


def logical(array: Any, format: int) -> tuple[Shape, Shape]:
    """Return shape and strides in the order N, C, ... of a C-contiguous array.

    As in CuPy, ``format`` matters for four dimensions only.
    """
    shape = array.shape
    if len(shape) == 4:
        check_format(format)
        if format == NHWC:
            n, h, w, c = shape
            return (n, c, h, w), (h * w * c, 1, w * c, c)
    return shape, packed_strides(shape)


def create_tensor_descriptor(arr: Any, format: int = NCHW) -> TensorDescriptor:
    """Describe a C-contiguous array; with four dimensions in the given layout."""
    check_contiguous(arr)
    dtype = DataType(get_data_type(arr.dtype))
    if arr.ndim == 4:
        made = TensorDescriptor()
        n, c, h, w = logical(arr, format)[0]
        made.set_4d(TensorFormat(format), dtype, n, c, h, w)
        return made
    return TensorDescriptor.strided(dtype, arr.shape, packed_strides(arr.shape))


def create_uninitialized_tensor_descriptor() -> TensorDescriptor:
    """Create a tensor descriptor without content, for batch normalisation."""
    return TensorDescriptor()


def create_tensor_nd_descriptor(arr: Any) -> Any:
    """Describe a C-contiguous array of any number of dimensions; value 0 for an empty one."""
    if arr.size == 0:
        return Descriptor(0, None)
    check_contiguous(arr)
    dtype = DataType(get_data_type(arr.dtype))
    return TensorDescriptor.strided(dtype, arr.shape, packed_strides(arr.shape))


def create_filter_descriptor(arr: Any, format: int = NCHW) -> FilterDescriptor:
    """Describe weights; with four dimensions in the given layout."""
    shape = logical(arr, format)[0]
    dtype = DataType(get_data_type(arr.dtype))
    return FilterDescriptor.packed(dtype, shape, TensorFormat(format))


def create_convolution_descriptor(
    pad: Shape,
    stride: Shape,
    dtype: Any,
    mode: int = CROSS_CORRELATION,
    dilation: Shape | None = None,
    use_tensor_core: bool = False,
    groups: int = 1,
) -> ConvolutionDescriptor:
    """Describe a convolution; float16 computes in float32."""
    if len(pad) != len(stride):
        raise ArgumentError("pad and stride must be of same length")
    compute = DataType(get_data_type(dtype))
    if compute in (DataType.CUDNN_DATA_HALF, DataType.CUDNN_DATA_BFLOAT16):
        compute = DataType.CUDNN_DATA_FLOAT
    dilation = (1,) * len(pad) if dilation is None else dilation
    math = MathType.CUDNN_TENSOR_OP_MATH if use_tensor_core else MathType.CUDNN_DEFAULT_MATH
    kind = ConvolutionMode(mode)
    return ConvolutionDescriptor.of(pad, stride, dilation, groups, compute, math, kind)


def create_pooling_descriptor(
    ksize: Shape, stride: Shape, pad: Shape, mode: int
) -> PoolingDescriptor:
    """Describe pooling; NaN is not propagated."""
    if not len(ksize) == len(stride) == len(pad):
        raise ArgumentError("ksize, stride, and pad must be of same length")
    return PoolingDescriptor.of(PoolingMode(mode), ksize, pad, stride, NOT_PROPAGATE)


def create_activation_descriptor(
    mode: int, relu_nan_opt: int = PROPAGATE, coef: float = 0.0
) -> ActivationDescriptor:
    """Describe an activation."""
    return ActivationDescriptor.of(ActivationMode(mode), coef, NanPropagation(relu_nan_opt))


def create_op_tensor_descriptor(op_type: int, dtype: Any) -> OpTensorDescriptor:
    """Describe an element-wise operation; NaN is not propagated."""
    dtype = DataType(get_data_type(dtype))
    return OpTensorDescriptor.of(OpTensorOp(op_type), dtype, NOT_PROPAGATE)


def create_reduce_tensor_descriptor(reduce_type: int, dtype: Any) -> ReduceTensorDescriptor:
    """Describe a reduction; MIN and MAX return 32-bit indices, NaN is not propagated."""
    indices = FLATTENED if reduce_type in WITH_INDICES else NO_INDICES
    op, compute = ReduceTensorOp(reduce_type), DataType(get_data_type(dtype))
    return ReduceTensorDescriptor.of(op, compute, NOT_PROPAGATE, indices, INDICES_32)


def add_tensor(
    handle: int,
    alpha: int,
    biasDesc: int,
    biasData: int,
    beta: int,
    srcDestDesc: int,
    srcDestData: int,
) -> None:
    """``cudnnAddTensor`` on addresses: alpha and beta point to numbers on the host."""
    call = library.load().cudnnAddTensor
    status = call(handle, alpha, biasDesc, biasData, beta, srcDestDesc, srcDestData)
    check(status, "cudnnAddTensor")
