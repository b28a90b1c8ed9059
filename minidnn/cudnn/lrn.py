"""Local response normalisation across channels (AlexNet's), and its gradient.

y = x / (k + alpha / n * sum of x^2 over the n channels around)^beta.

Source: cuDNN, ``cudnnLRNCrossChannelForward``, ``cudnnLRNCrossChannelBackward``.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import check_inputs, output, scalars
from minidnn.cudnn.descriptor import Descriptor
from minidnn.cudnn.enums import LRNMode
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import operand

MODE = LRNMode.CUDNN_LRN_CROSS_CHANNEL_DIM1


class LRNInfo(NamedTuple):
    """What an LRN descriptor holds: window in channels, and the formula's constants."""

    n: int
    alpha: float
    beta: float
    k: float


class LRNDescriptor(Descriptor):
    """A ``cudnnLRNDescriptor_t``; ``LRNDescriptor()`` has cuDNN's defaults."""

    __slots__ = ()
    KIND = "LRN"

    @classmethod
    def of(cls, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> Self:
        """Describe the window and the constants."""
        made = cls()
        made.set(n, alpha, beta, k)
        return made

    def set(self, n: int, alpha: float, beta: float, k: float) -> None:
        """``cudnnSetLRNDescriptor``; 1 <= n <= 16, k >= 1e-5, beta >= 0.01."""
        if not (1 <= n <= 16 and k >= 1e-5 and beta >= 0.01):
            raise ArgumentError(
                f"LRN takes 1 <= n <= 16, k >= 1e-5 and beta >= 0.01, got n={n}, k={k}, beta={beta}"
            )
        self._set("cudnnSetLRNDescriptor", n, alpha, beta, k, n=n, alpha=alpha, beta=beta, k=k)

    def get(self) -> LRNInfo:
        """``cudnnGetLRNDescriptor``."""
        n, numbers = ctypes.c_uint(), [ctypes.c_double() for _ in range(3)]
        self.call("cudnnGetLRNDescriptor", ctypes.byref(n), *map(ctypes.byref, numbers))
        return LRNInfo(n.value, *(number.value for number in numbers))


def forward(
    x: Any, y: Any = None, *, descriptor: LRNDescriptor, alpha: float = 1.0, beta: float = 0.0
) -> Any:
    """Return y = alpha * lrn(x) + beta * y for ``x`` of shape (N, C, H, W)."""
    check_inputs(x=x)
    y = output("y", y, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    arguments = (descriptor.value, MODE, one, *operand(x, "x"), zero, *operand(y, "y"))
    call("cudnnLRNCrossChannelForward", *arguments, lrn=descriptor, x=x, y=y)
    return y


def backward(
    y: Any,
    dy: Any,
    x: Any,
    dx: Any = None,
    *,
    descriptor: LRNDescriptor,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return dx = alpha * gradient + beta * dx from the forward pass's ``x``, ``y`` and ``dy``."""
    check_inputs(y=y, dy=dy, x=x)
    dx = output("dx", dx, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    inputs = (*operand(y, "y"), *operand(dy, "dy"), *operand(x, "x"))
    arguments = (descriptor.value, MODE, one, *inputs, zero, *operand(dx, "dx"))
    call("cudnnLRNCrossChannelBackward", *arguments, y=y, dy=dy, x=x, dx=dx)
    return dx
