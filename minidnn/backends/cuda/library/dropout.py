"""Dropout by cuDNN of elements that somebody else has chosen.

cuDNN's function for the gradient of dropout multiplies by the mask that its reserve space holds,
and that is what dropout itself does with a mask that there is already.  So the mask of the graph's
own generator is packed into the reserve space: a bit an element, the lowest of each byte first.
That cuDNN reads it so is checked on the device before a program is used, for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....cudnn import library
from ....cudnn.convolution.key import TensorKey
from ....cudnn.dropout import Dropout, reserve_size
from ....cudnn.enums import DataType
from ....cudnn.errors import check
from ....cudnn.handle import current_handle
from ....cudnn.tensor import TensorDescriptor
from ....errors import UnsupportedError
from ....gpu.cupy import cupy
from ...codegen.code import Code
from ..kernels import Launch
from ..strided import THREADS
from .support import DROPOUT

#: By dtype, how an element is kept in bits, for what is checked.
_ONE_BITS = {
    DataType.CUDNN_DATA_FLOAT: (np.uint32, 0x3F800000),
    DataType.CUDNN_DATA_HALF: (np.uint16, 0x3C00),
    DataType.CUDNN_DATA_BFLOAT16: (np.uint16, 0x3F80),
}


def print_mask(size: int) -> Launch:
    """The kernel that packs a mask; pointers are the elements that are kept, as numbers over 0, and
    the reserve space."""
    code = Code()
    with code.block('extern "C" __global__ void @(const float *kept, unsigned char *mask)'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {reserve_bytes(size)}) return;")
        code.line("unsigned int bits = 0;")
        with code.block("for (int j = 0; j < 8; j++)"):
            code.line(f"if (t * 8 + j < {size} && kept[t * 8 + j] > 0.0f) bits |= 1u << j;")
        code.line("mask[t] = (unsigned char)bits;")
    return Launch.named("pack_mask", code, -(-reserve_bytes(size) // THREADS), THREADS)


def reserve_bytes(size: int) -> int:
    """Bytes of a mask, up to a multiple of the widest words that it may be read by."""
    return -(-size // 128) * 16


def packed(kept: np.ndarray) -> np.ndarray:
    """What the kernel writes."""
    bits = np.packbits(kept.ravel() > 0, bitorder="little")
    return np.pad(bits, (0, reserve_bytes(kept.size) - bits.size))


def bind_dropout(
    key: TensorKey, p: float, at: Sequence[int], described: Callable[[], dict[str, Any]]
) -> Callable[[], None]:
    """Multiplies by a mask and by ``1 / (1 - p)``.

    Args:
        key: how operand and result lie.
        p: the probability to be 0.
        at: addresses of the operand, the result and the reserve space.
        described: what an error tells.

    UnsupportedError if cuDNN reads the reserve space otherwise.
    """
    x = TensorDescriptor.strided(*key)
    size = reserve_size(x)
    elements = int(np.prod(key.shape))
    if size > reserve_bytes(elements):
        raise UnsupportedError(
            f"dropout of {elements} elements: cuDNN's mask takes {size} bytes; known is one of a "
            f"bit an element, in at most {reserve_bytes(elements)}; strategy='layers' takes none"
        )
    call, state = library.load().cudnnDropoutBackward, Dropout(p)

    def run(source: int, result: int, reserve: int) -> None:
        pairs = (x.value, source, x.value, result, reserve, size)
        check(call(current_handle(), state.descriptor, *pairs), DROPOUT, described)

    _check_order(key, elements, size, run)
    source, result, reserve = at
    return lambda: run(source, result, reserve)


def _check_order(
    key: TensorKey, elements: int, size: int, run: Callable[[int, int, int], None]
) -> None:
    """UnsupportedError unless the bits of a mask are what elements are multiplied by."""
    cupy_ = cupy()
    dtype, one = _ONE_BITS[key.dtype]
    ones = cupy_.asarray(np.full(elements, one, dtype))
    found = cupy_.empty_like(ones)

    def kept_by(bits: np.ndarray) -> np.ndarray:
        mask = cupy_.asarray(bits)
        run(ones.data.ptr, found.data.ptr, mask.data.ptr)
        return np.asarray(found.get() != 0)

    kept = np.random.default_rng(0).integers(0, 2, elements)
    if np.array_equal(kept_by(packed(kept)), kept != 0):
        return
    # Which bit each element goes by: its digits, from masks of all bits whose number has one.
    numbers = np.arange(8 * reserve_bytes(elements))
    order = np.zeros(elements, np.int64)
    for digit in range(int(numbers.size).bit_length()):
        bits = np.packbits((numbers >> digit) & 1, bitorder="little")
        order += kept_by(bits).astype(np.int64) << digit
    raise UnsupportedError(
        f"dropout of {elements} elements: cuDNN, whose mask takes {size} bytes, does not read one "
        f"bit an element in order, but for the first ones bits {', '.join(map(str, order[:40]))}; "
        "strategy='layers' takes none"
    )
