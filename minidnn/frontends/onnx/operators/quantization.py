"""Numbers that are stored with few bits, and what they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import OnnxCall
from minidnn.frontends.onnx.operators.registry import Family
from minidnn.frontends.onnx.tensors import dtype_of
from minidnn.graph.ir import Constant, Value
from minidnn.graph.types import numpy_dtype

_family = Family("quantization")
CONVERTERS = _family.converters


@_family("DequantizeLinear")
def _dequantize(call: OnnxCall) -> Value:
    """By a scale and a zero point that are known; int8, int16, uint16 and 4 bits of constants
    alone, float8 not at all."""
    build, x = call.build, call.operand(0)
    scale, zero = call.known(1, "scale"), call.maybe_known(2, "zero point")
    axis, block = call.integer("axis", 1), call.integer("block_size", 0)
    given = call.integer("output_dtype", 0)
    dtype = dtype_of(given, "attribute 'output_dtype'") if given else str(scale.dtype)
    if zero is not None and zero.shape != scale.shape and (zero.size, scale.size) != (1, 1):
        raise GraphError(
            f"its zero point has shape {zero.shape}; valid is {scale.shape}, as its scale"
        )
    if scale.size != 1 or block:
        axis = call.axis(axis, x.type.rank)
        scale, zero = (_along(each, x.shape, axis, block) for each in (scale, zero))
    else:
        scale, zero = scale.reshape(()), None if zero is None else zero.reshape(())
    if isinstance(x, Constant):
        build.spend(call.kind, x.type.size * numpy_dtype(dtype).itemsize)
        whole = x.data.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))
        with np.errstate(over="ignore"):
            return build.constant((whole.astype(scale.dtype) * scale).astype(numpy_dtype(dtype)))
    operands = [build.cast(x, "float32"), build.constant(scale.astype(np.float32))]
    if zero is None:
        out = build.pointwise(call.kind, lambda a, s: a * s, *operands)
    else:
        moved = build.constant(zero.astype(np.float32))
        out = build.pointwise(call.kind, lambda a, s, z: (a - z) * s, *operands, moved)
    return build.cast(out, dtype)


def _along(array: np.ndarray | None, shape: tuple[int, ...], axis: int, block: int) -> Any:
    """Scales or zero points, one for each place of an axis or one for each block of it, to
    broadcast with the input."""
    if array is None:
        return None
    if not block:
        if array.shape != shape[axis : axis + 1]:
            raise GraphError(
                f"its scale has shape {array.shape}; valid is (), or ({shape[axis]},) for axis "
                f"{axis} of its input {shape}"
            )
        return array.reshape((-1,) + (1,) * (len(shape) - 1 - axis))
    blocks = tuple(-(-n // block) if d == axis else n for d, n in enumerate(shape))
    if block < 1 or array.shape != blocks:
        raise GraphError(
            f"its scale has shape {array.shape} with block_size={block}; valid is {blocks} for "
            f"axis {axis} of its input {shape}"
        )
    return np.repeat(array, block, axis).take(range(shape[axis]), axis)
