"""Activation functions: y = alpha * f(x) + beta * y, and their gradients.

Modes: sigmoid, ReLU, tanh, clipped ReLU (min(max(x, 0), coefficient)), ELU (coefficient is its
alpha), swish (x * sigmoid(coefficient * x)).  Identity is for fused convolution only.

Source: cuDNN, ``cudnnActivationForward``, ``cudnnActivationBackward``.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any, NamedTuple, Self

from minidnn.cudnn.arrays import check_inputs, output, scalars
from minidnn.cudnn.descriptor import Descriptor, Memo
from minidnn.cudnn.enums import ActivationMode, NanPropagation
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import operand

PROPAGATE = NanPropagation.CUDNN_PROPAGATE_NAN


class ActivationInfo(NamedTuple):
    """What an activation descriptor holds."""

    mode: ActivationMode
    nan: NanPropagation
    coefficient: float


class ActivationDescriptor(Descriptor):
    """A ``cudnnActivationDescriptor_t``; ``ActivationDescriptor()`` is not initialised."""

    __slots__ = ()
    KIND = "Activation"

    @classmethod
    def of(
        cls, mode: ActivationMode, coefficient: float = 0.0, nan: NanPropagation = PROPAGATE
    ) -> Self:
        """Describe a mode; for swish the coefficient is its beta."""
        made = cls()
        made.set(mode, nan, coefficient)
        if mode == ActivationMode.CUDNN_ACTIVATION_SWISH:
            made.set_swish_beta(coefficient)
        return made

    def set(self, mode: ActivationMode, nan: NanPropagation, coefficient: float) -> None:
        """``cudnnSetActivationDescriptor``."""
        context = {"mode": mode, "nan": nan, "coefficient": coefficient}
        self._set("cudnnSetActivationDescriptor", mode, nan, coefficient, **context)

    def set_swish_beta(self, beta: float) -> None:
        """``cudnnSetActivationDescriptorSwishBeta``."""
        self._set("cudnnSetActivationDescriptorSwishBeta", beta, beta=beta)

    def get(self) -> ActivationInfo:
        """``cudnnGetActivationDescriptor``."""
        mode, nan, coefficient = ctypes.c_int(), ctypes.c_int(), ctypes.c_double()
        outputs = (ctypes.byref(mode), ctypes.byref(nan), ctypes.byref(coefficient))
        self.call("cudnnGetActivationDescriptor", *outputs)
        return ActivationInfo(
            ActivationMode(mode.value), NanPropagation(nan.value), coefficient.value
        )

    def get_swish_beta(self) -> float:
        """``cudnnGetActivationDescriptorSwishBeta``."""
        beta = ctypes.c_double()
        self.call("cudnnGetActivationDescriptorSwishBeta", ctypes.byref(beta))
        return beta.value


_cache: Memo[ActivationDescriptor] = Memo(256)


def activation_descriptor(
    mode: ActivationMode, coefficient: float = 0.0, nan: NanPropagation = PROPAGATE
) -> ActivationDescriptor:
    """Return a shared descriptor; do not close it."""
    key = (mode, coefficient, math.copysign(1.0, coefficient), nan)  # as 0.0 == -0.0
    found = _cache.get(key)
    if found is None:
        found = _cache.put(key, ActivationDescriptor.of(ActivationMode(mode), coefficient, nan))
    return found


def forward(
    x: Any,
    y: Any = None,
    *,
    mode: ActivationMode,
    coefficient: float = 0.0,
    nan: NanPropagation = PROPAGATE,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return y = alpha * f(x) + beta * y.

    ``x`` is a CuPy array of any shape and strides, ``y`` the output (new if None; may be ``x``).
    """
    check_inputs(x=x)
    _refuse_identity(mode)
    y = output("y", y, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    kind = activation_descriptor(mode, coefficient, nan)
    arguments = (kind.value, one, *operand(x, "x"), zero, *operand(y, "y"))
    context = {"coefficient": coefficient, "x": x, "y": y}
    call("cudnnActivationForward", *arguments, context=partial(_context, mode), **context)
    return y


def backward(
    y: Any,
    dy: Any,
    x: Any,
    dx: Any = None,
    *,
    mode: ActivationMode,
    coefficient: float = 0.0,
    nan: NanPropagation = PROPAGATE,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return dx = alpha * df/dx * dy + beta * dx.

    All arrays have the shape, dtype and layout of ``y``: cuDNN takes no mixed strides here.
    """
    check_inputs(y=y, dy=dy, x=x)
    _refuse_identity(mode)
    dx = output("dx", dx, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    kind = activation_descriptor(mode, coefficient, nan)
    inputs = (*operand(y, "y"), *operand(dy, "dy"), *operand(x, "x"))
    arguments = (kind.value, one, *inputs, zero, *operand(dx, "dx"))
    context = {"y": y, "dy": dy, "x": x, "dx": dx}
    call("cudnnActivationBackward", *arguments, context=partial(_context, mode), **context)
    return dx


def _context(mode: ActivationMode) -> dict[str, Any]:
    return {"mode": ActivationMode(mode)}


def _refuse_identity(mode: ActivationMode) -> None:
    if mode == ActivationMode.CUDNN_ACTIVATION_IDENTITY:
        raise ArgumentError(
            f"mode={ActivationMode(mode).name} is for convolution.bias_activation_forward only"
        )
