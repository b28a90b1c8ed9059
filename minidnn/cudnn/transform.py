"""Copies between layouts: y = alpha * x + beta * y, with other strides, padding and folding.

Source: cuDNN, ``cudnnTransformTensor``, ``cudnnTransformTensorEx``, ``cudnnTransformFilter``.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import Shape, check_array, check_same_shape, check_writable, scalars
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.dtypes import ints, is_double, scalar
from minidnn.cudnn.enums import FoldingDirection, TensorFormat
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import FilterDescriptor, TensorDescriptor, operand

FOLD = FoldingDirection.CUDNN_TRANSFORM_FOLD


class TensorTransformInfo(NamedTuple):
    """What a transform descriptor holds."""

    format: TensorFormat
    pad_before: Shape
    pad_after: Shape
    fold: Shape
    direction: FoldingDirection


class TensorTransformDescriptor(Descriptor):
    """A ``cudnnTensorTransformDescriptor_t``."""

    __slots__ = ()
    KIND = "TensorTransform"

    @classmethod
    def of(
        cls,
        format: TensorFormat,
        pad_before: Shape,
        pad_after: Shape | None = None,
        fold: Shape | None = None,
        direction: FoldingDirection = FOLD,
    ) -> Self:
        """Describe a destination layout, padding per dimension and folding of space.

        ``pad_before`` has one number per dimension of the tensor, ``fold`` one per spatial
        dimension (1 leaves it alone).
        """
        made = cls()
        made.set(format, pad_before, pad_after or pad_before, fold, direction)
        return made

    def set(
        self,
        format: TensorFormat,
        pad_before: Shape,
        pad_after: Shape,
        fold: Shape | None,
        direction: FoldingDirection,
    ) -> None:
        """``cudnnSetTensorTransformDescriptor``."""
        rank = len(pad_before)
        if len(pad_after) != rank or (fold is not None and len(fold) != rank - 2):
            raise ArgumentError(
                f"pad_before={pad_before} and pad_after={pad_after} need one number per "
                f"dimension, fold={fold} one per spatial dimension"
            )
        factors = ints(fold or (1,) * (rank - 2))
        arguments = (rank, format, ints(pad_before), ints(pad_after), factors, direction)
        context = {"format": format, "pad_before": pad_before, "pad_after": pad_after, "fold": fold}
        self._set("cudnnSetTensorTransformDescriptor", *arguments, **context)

    def get(self, rank: int) -> TensorTransformInfo:
        """``cudnnGetTensorTransformDescriptor`` for a tensor of ``rank`` dimensions."""
        format, direction = ctypes.c_int(), ctypes.c_int()
        before, after, fold = ints([0] * rank), ints([0] * rank), ints([0] * rank)
        outputs = (ctypes.byref(format), before, after, fold, ctypes.byref(direction))
        self.call("cudnnGetTensorTransformDescriptor", rank, *outputs)
        return TensorTransformInfo(
            TensorFormat(format.value),
            tuple(before),
            tuple(after),
            tuple(fold[: rank - 2]),
            FoldingDirection(direction.value),
        )

    def destination(self, source: TensorDescriptor) -> tuple[TensorDescriptor, int]:
        """Return a descriptor of the result and its bytes (``cudnnInitTransformDest``)."""
        made, size = TensorDescriptor(), ctypes.c_size_t()
        self.call("cudnnInitTransformDest", source.value, made.value, ctypes.byref(size))
        return made, size.value


def transform(x: Any, y: Any, *, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """Return y = alpha * x + beta * y: a copy between strides (and dtypes, where cuDNN can)."""
    check_array("x", x)
    check_array("y", y)
    check_same_shape("x", x, "y", y)
    check_writable("y", y)
    one, zero = scalars(x, alpha, beta)
    call("cudnnTransformTensor", one, *operand(x, "x"), zero, *operand(y, "y"), x=x, y=y)
    return y


def transform_ex(
    descriptor: TensorTransformDescriptor,
    x: Any,
    x_descriptor: TensorDescriptor,
    y: Any,
    y_descriptor: TensorDescriptor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return y = alpha * transform(x) + beta * y (``cudnnTransformTensorEx``).

    The arrays are memory only: the descriptors hold their shapes, and each array must have the
    bytes that its descriptor needs.
    """
    _check_room("x", x, x_descriptor.size_in_bytes)
    _check_room("y", y, y_descriptor.size_in_bytes)
    double = is_double(x_descriptor.get().dtype)
    source = (scalar(alpha, double), x_descriptor.value, x.data.ptr)
    target = (scalar(beta, double), y_descriptor.value, y.data.ptr)
    arguments = (descriptor.value, *source, *target)
    call(
        "cudnnTransformTensorEx",
        *arguments,
        context=lambda: {"x": x_descriptor.get(), "y": y_descriptor.get()},
    )
    return y


def transform_filter(
    descriptor: TensorTransformDescriptor,
    w: Any,
    w_descriptor: FilterDescriptor,
    out: Any,
    out_descriptor: FilterDescriptor,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return out = alpha * transform(w) + beta * out (``cudnnTransformFilter``)."""
    _check_room("w", w, w_descriptor.size_in_bytes)
    _check_room("out", out, out_descriptor.size_in_bytes)
    double = is_double(w_descriptor.get().dtype)
    source = (scalar(alpha, double), w_descriptor.value, w.data.ptr)
    target = (scalar(beta, double), out_descriptor.value, out.data.ptr)
    arguments = (descriptor.value, *source, *target)
    call(
        "cudnnTransformFilter",
        *arguments,
        context=lambda: {"w": w_descriptor.get(), "out": out_descriptor.get()},
    )
    return out


def _check_room(name: str, array: Any, need: int) -> None:
    check_array(name, array)
    if array.nbytes < need or not array.flags.c_contiguous:
        raise ArgumentError(
            f"{name} has {array.nbytes} bytes (contiguous: {array.flags.c_contiguous}), but its "
            f"descriptor needs {need} contiguous bytes"
        )
