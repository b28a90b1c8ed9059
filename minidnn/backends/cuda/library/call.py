"""Calls of cuDNN's legacy functions: activation, pooling, softmax, normalization, dropout, sums.

A :class:`FunctionCall` is plain data, which a file can hold.  Binding it to addresses makes its
descriptors once; the bound call only enqueues work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....cudnn import library
from ....cudnn.activation import ActivationDescriptor
from ....cudnn.batch_norm import SPATIAL, derived_descriptor
from ....cudnn.convolution.key import TensorKey
from ....cudnn.dropout import Dropout, reserve_size
from ....cudnn.dtypes import ONE, ZERO
from ....cudnn.enums import (
    ActivationMode,
    DataType,
    OpTensorOp,
    PoolingMode,
    SoftmaxAlgorithm,
    SoftmaxMode,
)
from ....cudnn.errors import check
from ....cudnn.handle import current_handle
from ....cudnn.op_tensor import OpTensorDescriptor
from ....cudnn.pooling import PoolingDescriptor
from ....cudnn.tensor import TensorDescriptor
from ....errors import UnsupportedError
from ....gpu import cupy
from ...codegen.code import Code
from ..arrays import DEVICE_TO_DEVICE
from ..functions import Run
from ..kernels import Launch
from ..strided import THREADS
from .support import (
    ACTIVATION,
    ACTIVATION_GRADIENT,
    BATCH_NORM,
    BATCH_NORM_GRADIENT,
    BIAS_GRADIENT,
    DROPOUT,
    OP_TENSOR,
    POOLING,
    POOLING_GRADIENT,
    SOFTMAX,
    SOFTMAX_GRADIENT,
    STORED_NORM,
)

ADD_TENSOR = "cudnnAddTensor"


@dataclass(frozen=True)
class FunctionCall:
    """A call of one of cuDNN's functions, without the addresses of its tensors.

    Attributes:
        function: the function's name in the library.
        tensors: dtype, shape and strides of each tensor, in the order of the addresses, without
            the vectors of normalizations, whose descriptor follows from the first tensor's.
        numbers: the other arguments: modes, coefficients, sizes of windows, epsilon.
    """

    function: str
    tensors: tuple[TensorKey, ...]
    numbers: tuple[float, ...]

    def bind(self, addresses: Sequence[int]) -> Run:
        """Returns what enqueues the call on CuPy's current stream, without allocating or waiting.

        Args:
            addresses: device addresses of operands, then results, in the order of the graph's node.
        """
        return _BINDERS[self.function](self, addresses)

    def described(self) -> dict[str, Any]:
        """The parameters of the call that an error message shows."""
        return {
            **{f"tensor {i}": str(tensor) for i, tensor in enumerate(self.tensors)},
            "numbers": self.numbers,
        }

    def describe(self) -> str:
        """The function's name and the layout of its first tensor, for a program's details."""
        first = self.tensors[0]
        last = first.strides[1] == 1 and first.shape[1] > 1
        order = "NHWC" if last and first.shape[2] * first.shape[3] > 1 else "NCHW"
        return f"{self.function} in {order}"

    def stored(self) -> tuple[Any, ...]:
        """The fields as JSON can hold them."""
        return self.function, self.tensors, self.numbers

    @classmethod
    def restored(cls, stored: Sequence[Any]) -> FunctionCall:
        """The call of the fields that :meth:`stored` returned, as JSON gives them back."""
        function, tensors, numbers = stored
        keys = tuple(TensorKey(DataType(d), tuple(s), tuple(t)) for d, s, t in tensors)
        return cls(function, keys, tuple(numbers))


def _started(call: FunctionCall, name: str, kept: object, *arguments: Any) -> Run:
    """Returns what calls the function ``name`` with the current handle and these arguments.

    ``kept`` are the owners of the descriptors among them, which must live as long as the call.
    """
    function = getattr(library.load(), name)

    def run(kept: object = kept) -> None:
        check(function(current_handle(), *arguments), name, call.described)

    return run


def _described(call: FunctionCall) -> list[TensorDescriptor]:
    return [TensorDescriptor.strided(*key) for key in call.tensors]


def _activation(call: FunctionCall, at: Sequence[int]) -> Run:
    mode, coefficient = call.numbers
    kind = ActivationDescriptor.of(ActivationMode(int(mode)), coefficient)
    return _on_tensors(call, at, kind, kind.value)


def _pooling(call: FunctionCall, at: Sequence[int]) -> Run:
    mode, *sizes = map(int, call.numbers)
    window, padding, stride = ((sizes[i], sizes[i + 1]) for i in (0, 2, 4))
    kind = PoolingDescriptor.of(PoolingMode(mode), window, padding, stride)
    return _on_tensors(call, at, kind, kind.value)


def _softmax(call: FunctionCall, at: Sequence[int]) -> Run:
    kind = SoftmaxAlgorithm(int(call.numbers[0]))
    return _on_tensors(call, at, None, kind, SoftmaxMode.CUDNN_SOFTMAX_MODE_CHANNEL)


def _on_tensors(call: FunctionCall, at: Sequence[int], kept: object = None, *first: object) -> Run:
    """Binds a function whose arguments are ``first``, then the operands, each a descriptor and an
    address, and the result last; ONE and ZERO are the factors of the new result and of the old
    one.  ``kept`` owns a descriptor among the first."""
    tensors = _described(call)
    pairs = [(tensor.value, address) for tensor, address in zip(tensors, at, strict=True)]
    operands = [argument for pair in pairs[:-1] for argument in pair]
    arguments = (*first, ONE, *operands, ZERO, *pairs[-1])
    return _started(call, call.function, (kept, tensors), *arguments)


def _stored_norm(call: FunctionCall, at: Sequence[int]) -> Run:
    x, y = _described(call)
    vector = derived_descriptor(x, SPATIAL)
    source, scale, bias, mean, var, result = at
    return _started(
        call, STORED_NORM, (x, y, vector), SPATIAL, ONE, ZERO, x.value, source, y.value, result,
        vector.value, scale, bias, mean, var, call.numbers[0],
    )  # fmt: skip


def _batch_norm(call: FunctionCall, at: Sequence[int]) -> Run:
    """Binds the normalization by the statistics of a batch.

    cuDNN updates running statistics in place, so the old ones are copied to the results first.
    """
    x, y = _described(call)
    vector = derived_descriptor(x, SPATIAL)
    eps, *factor = call.numbers
    if not factor:
        source, scale, bias, result, mean, inverse = at
        running: tuple[int | None, int | None] = (None, None)
        copies: list[tuple[int, int]] = []
    else:
        source, scale, bias, *old, result, mean, inverse, new_mean, new_var = at
        running = (new_mean, new_var)
        copies = list(zip((new_mean, new_var), old, strict=True))
    size = 4 * x.get().shape[1]
    normalize = _started(
        call, BATCH_NORM, (x, y, vector), SPATIAL, ONE, ZERO, x.value, source, y.value, result,
        vector.value, scale, bias, factor[0] if factor else 1.0, *running, eps, mean, inverse,
    )  # fmt: skip
    copies = [(to, of) for to, of in copies if to != of]
    if not copies:
        return normalize
    cuda = cupy().cuda

    def run() -> None:
        stream = cuda.get_current_stream().ptr
        for to, of in copies:
            cuda.runtime.memcpyAsync(to, of, size, DEVICE_TO_DEVICE, stream)
        normalize()

    return run


def _batch_norm_gradient(call: FunctionCall, at: Sequence[int]) -> Run:
    x, dy, dx = _described(call)
    vector = derived_descriptor(x, SPATIAL)
    source, gradient, scale, mean, inverse, result, by_scale, by_bias = at
    return _started(
        call, BATCH_NORM_GRADIENT, (x, dy, dx, vector), SPATIAL, ONE, ZERO, ONE, ZERO, x.value,
        source, dy.value, gradient, dx.value, result, vector.value, scale, by_scale, by_bias,
        call.numbers[0], mean, inverse,
    )  # fmt: skip


def _op_tensor(call: FunctionCall, at: Sequence[int]) -> Run:
    a, b, c = _described(call)
    left, right, result = at
    kind = OpTensorDescriptor.of(OpTensorOp(int(call.numbers[0])), DataType.CUDNN_DATA_FLOAT)
    return _started(
        call, OP_TENSOR, (a, b, c, kind), kind.value, ONE, a.value, left, ONE, b.value, right, ZERO,
        c.value, result,
    )  # fmt: skip


def _add_tensor(call: FunctionCall, at: Sequence[int]) -> Run:
    """Binds the addition of a bias to a tensor, in place; the bias runs over the channels."""
    bias, y = _described(call)
    pairs = (ONE, bias.value, at[0], ONE, y.value, at[1])
    return _started(call, ADD_TENSOR, (bias, y), *pairs)


#: For each dtype the unsigned integer type of its size, and the bits of 1.0.
_ONE_BITS = {
    DataType.CUDNN_DATA_FLOAT: (np.uint32, 0x3F800000),
    DataType.CUDNN_DATA_HALF: (np.uint16, 0x3C00),
    DataType.CUDNN_DATA_BFLOAT16: (np.uint16, 0x3F80),
}


def print_mask(size: int) -> Launch:
    """The kernel that packs a dropout mask of ``size`` elements to bits.  Its pointers are the mask
    as float32, positive where an element is kept, and cuDNN's reserve space."""
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
    """Bytes of a packed mask of ``size`` elements, rounded up to a multiple of 16, the widest
    access that may read it."""
    return -(-size // 128) * 16


def _packed(kept: np.ndarray) -> np.ndarray:
    """The bytes that the kernel of :func:`print_mask` writes for a mask, computed with NumPy."""
    bits = np.packbits(kept.ravel() > 0, bitorder="little")
    return np.pad(bits, (0, reserve_bytes(kept.size) - bits.size))


def _dropout(call: FunctionCall, at: Sequence[int]) -> Run:
    """Binds a multiplication by a mask and by ``1 / (1 - p)``, where ``p`` is the probability that
    an element is dropped.

    cuDNN's function for the gradient of dropout multiplies by the mask in its reserve space, which
    is also what dropout computes of a given mask.  So the mask of the graph's own generator is
    packed into the reserve space: a bit for each element, the lowest of each byte first.  A run on
    the device checks here, for each size, that cuDNN reads the mask in this order; UnsupportedError
    if it does not.
    """
    key, p = call.tensors[0], call.numbers[0]
    x = TensorDescriptor.strided(*key)
    size = reserve_size(x)
    elements = int(np.prod(key.shape))
    if size > reserve_bytes(elements):
        raise UnsupportedError(
            f"dropout of {elements} elements: cuDNN's mask takes {size} bytes; known is one of a "
            f"bit an element, in at most {reserve_bytes(elements)}; strategy='layers' takes none"
        )
    backward, state = library.load().cudnnDropoutBackward, Dropout(p)

    def run(source: int, result: int, reserve: int) -> None:
        pairs = (x.value, source, x.value, result, reserve, size)
        check(backward(current_handle(), state.descriptor, *pairs), DROPOUT, call.described)

    _check_order(key, elements, size, run)
    source, result, reserve = at
    return lambda: run(source, result, reserve)


def _check_order(
    key: TensorKey, elements: int, size: int, run: Callable[[int, int, int], None]
) -> None:
    """Checks that cuDNN takes the bits of a mask in the order of the elements; UnsupportedError if
    it does not, with the order that it takes.

    ``run`` multiplies elements by a mask, of the addresses of source, result and mask.
    """
    cupy_ = cupy()
    dtype, one = _ONE_BITS[key.dtype]
    ones = cupy_.asarray(np.full(elements, one, dtype))
    result = cupy_.empty_like(ones)

    def kept_by(bits: np.ndarray) -> np.ndarray:
        mask = cupy_.asarray(bits)
        run(ones.data.ptr, result.data.ptr, mask.data.ptr)
        return np.asarray(result.get() != 0)

    kept = np.random.default_rng(0).integers(0, 2, elements)
    if np.array_equal(kept_by(_packed(kept)), kept != 0):
        return
    # Find the bit that each element reads, digit by digit: the mask of a digit has all bits whose
    # index has that binary digit.
    indices = np.arange(8 * reserve_bytes(elements))
    order = np.zeros(elements, np.int64)
    for digit in range(int(indices.size).bit_length()):
        bits = np.packbits((indices >> digit) & 1, bitorder="little")
        order += kept_by(bits).astype(np.int64) << digit
    raise UnsupportedError(
        f"dropout of {elements} elements: cuDNN, whose mask takes {size} bytes, does not read one "
        f"bit an element in order, but for the first ones bits {', '.join(map(str, order[:40]))}; "
        "strategy='layers' takes none"
    )


_BINDERS: dict[str, Callable[[FunctionCall, Sequence[int]], Run]] = {
    ACTIVATION: _activation,
    ACTIVATION_GRADIENT: _activation,
    POOLING: _pooling,
    POOLING_GRADIENT: _pooling,
    SOFTMAX: _softmax,
    SOFTMAX_GRADIENT: _softmax,
    STORED_NORM: _stored_norm,
    BATCH_NORM: _batch_norm,
    BATCH_NORM_GRADIENT: _batch_norm_gradient,
    OP_TENSOR: _op_tensor,
    BIAS_GRADIENT: _on_tensors,
    ADD_TENSOR: _add_tensor,
    DROPOUT: _dropout,
}
