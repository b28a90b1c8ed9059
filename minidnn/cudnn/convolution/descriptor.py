"""Convolution descriptors: padding, stride, dilation, groups, mode, compute and math type."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import Shape
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import data_type, ints
from minidnn.cudnn.enums import ConvolutionMode, DataType, MathType
from minidnn.cudnn.tensor import FilterDescriptor, TensorDescriptor

CROSS_CORRELATION = ConvolutionMode.CUDNN_CROSS_CORRELATION
DEFAULT_MATH = MathType.CUDNN_DEFAULT_MATH


class ConvolutionInfo(NamedTuple):
    """What a convolution descriptor holds."""

    padding: Shape
    stride: Shape
    dilation: Shape
    groups: int
    mode: ConvolutionMode
    compute_type: DataType
    math_type: MathType


class ConvolutionDescriptor(Descriptor):
    """A ``cudnnConvolutionDescriptor_t``; ``ConvolutionDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "Convolution"

    @classmethod
    def of(
        cls,
        padding: Shape,
        stride: Shape,
        dilation: Shape,
        groups: int = 1,
        compute: Any = "float32",
        math: MathType = DEFAULT_MATH,
        mode: ConvolutionMode = CROSS_CORRELATION,
    ) -> Self:
        """Describe a convolution of 2 or more dimensions."""
        made = cls()
        if len(padding) == 2:
            made.set_2d(padding, stride, dilation, mode, compute)
        else:
            made.set_nd(padding, stride, dilation, mode, compute)
        if groups != 1:
            made.set_groups(groups)
        made.set_math_type(math)
        return made

    def set_2d(
        self, padding: Shape, stride: Shape, dilation: Shape, mode: ConvolutionMode, compute: Any
    ) -> None:
        """``cudnnSetConvolution2dDescriptor``."""
        data = data_type(compute)
        context = {"padding": padding, "stride": stride, "dilation": dilation, "compute": data}
        arguments = (*padding, *stride, *dilation, mode, data)
        self._set("cudnnSetConvolution2dDescriptor", *arguments, **context)

    def set_nd(
        self, padding: Shape, stride: Shape, dilation: Shape, mode: ConvolutionMode, compute: Any
    ) -> None:
        """``cudnnSetConvolutionNdDescriptor``."""
        data = data_type(compute)
        context = {"padding": padding, "stride": stride, "dilation": dilation, "compute": data}
        arguments = (len(padding), ints(padding), ints(stride), ints(dilation), mode, data)
        self._set("cudnnSetConvolutionNdDescriptor", *arguments, **context)

    def set_groups(self, groups: int) -> None:
        """``cudnnSetConvolutionGroupCount``."""
        self._set("cudnnSetConvolutionGroupCount", groups, groups=groups)

    def set_math_type(self, math: MathType) -> None:
        """``cudnnSetConvolutionMathType``."""
        self._set("cudnnSetConvolutionMathType", math, math_type=MathType(math))

    @property
    def groups(self) -> int:
        """``cudnnGetConvolutionGroupCount``."""
        return self.query_ints("cudnnGetConvolutionGroupCount", 1)[0]

    @property
    def math_type(self) -> MathType:
        """``cudnnGetConvolutionMathType``."""
        return MathType(*self.query_ints("cudnnGetConvolutionMathType", 1))

    def get(self) -> ConvolutionInfo:
        """Return everything (``cudnnGetConvolutionNdDescriptor``, group count, math type)."""
        rank, mode, compute = (ctypes.c_int() for _ in range(3))
        padding, stride, dilation = (ints([0] * 6) for _ in range(3))
        kinds = (ctypes.byref(mode), ctypes.byref(compute))
        outputs = (ctypes.byref(rank), padding, stride, dilation, *kinds)
        self.call("cudnnGetConvolutionNdDescriptor", 6, *outputs)
        n = rank.value
        dims = (tuple(padding[:n]), tuple(stride[:n]), tuple(dilation[:n]))
        types = (ConvolutionMode(mode.value), DataType(compute.value), self.math_type)
        return ConvolutionInfo(*dims, self.groups, *types)

    def get_2d(self) -> ConvolutionInfo:
        """Return everything about a 2-d one (``cudnnGetConvolution2dDescriptor``)."""
        *dims, mode, compute = self.query_ints("cudnnGetConvolution2dDescriptor", 8)
        parts = (tuple(dims[:2]), tuple(dims[2:4]), tuple(dims[4:]))
        kinds = (ConvolutionMode(mode), DataType(compute), self.math_type)
        return ConvolutionInfo(*parts, self.groups, *kinds)

    def output_shape(self, x: TensorDescriptor, w: FilterDescriptor, rank: int) -> Shape:
        """Return the forward output's shape (``cudnnGetConvolutionNdForwardOutputDim``)."""
        dims = ints([0] * rank)
        self.call("cudnnGetConvolutionNdForwardOutputDim", x.value, w.value, rank, dims)
        return tuple(dims)
