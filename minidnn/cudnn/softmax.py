"""Softmax and log-softmax: y = alpha * softmax(x) + beta * y, and the gradient.

Mode CHANNEL normalises over dimension 1 for each (n, h, w); mode INSTANCE over all of c, h, w
for each n.  Algorithms: FAST (no maximum subtracted: may overflow), ACCURATE, LOG.

Source: cuDNN, ``cudnnSoftmaxForward``, ``cudnnSoftmaxBackward``.
"""

from __future__ import annotations

from typing import Any

from minidnn.cudnn import library
from minidnn.cudnn.elementwise import check_inputs, output, scalars
from minidnn.cudnn.enums import SoftmaxAlgorithm, SoftmaxMode
from minidnn.cudnn.errors import ArgumentError, check
from minidnn.cudnn.handle import current_handle
from minidnn.cudnn.tensor import descriptor_of

ACCURATE = SoftmaxAlgorithm.CUDNN_SOFTMAX_ACCURATE
CHANNEL = SoftmaxMode.CUDNN_SOFTMAX_MODE_CHANNEL


def forward(
    x: Any,
    y: Any = None,
    *,
    algorithm: SoftmaxAlgorithm = ACCURATE,
    mode: SoftmaxMode = CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return y = alpha * softmax(x) + beta * y for ``x`` of shape (N, C, ...), 2 to 5 dimensions.

    ``y`` is the output (new if None; may be ``x``).
    """
    check_inputs(x=x)
    _check_rank("x", x)
    y = output("y", y, "x", x, beta)
    one, zero = scalars(x, alpha, beta)
    status = library.load().cudnnSoftmaxForward(
        current_handle(),
        algorithm,
        mode,
        one,
        descriptor_of(x, "x").value,
        x.data.ptr,
        zero,
        descriptor_of(y, "y").value,
        y.data.ptr,
    )
    if status:
        what = {"algorithm": SoftmaxAlgorithm(algorithm), "mode": SoftmaxMode(mode)}
        check(status, "cudnnSoftmaxForward", what, x=x, y=y)
    return y


def backward(
    y: Any,
    dy: Any,
    dx: Any = None,
    *,
    algorithm: SoftmaxAlgorithm = ACCURATE,
    mode: SoftmaxMode = CHANNEL,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:
    """Return dx = alpha * gradient + beta * dx, from the forward pass's ``y`` and from ``dy``."""
    check_inputs(y=y, dy=dy)
    _check_rank("y", y)
    dx = output("dx", dx, "y", y, beta)
    one, zero = scalars(y, alpha, beta)
    status = library.load().cudnnSoftmaxBackward(
        current_handle(),
        algorithm,
        mode,
        one,
        descriptor_of(y, "y").value,
        y.data.ptr,
        descriptor_of(dy, "dy").value,
        dy.data.ptr,
        zero,
        descriptor_of(dx, "dx").value,
        dx.data.ptr,
    )
    if status:
        what = {"algorithm": SoftmaxAlgorithm(algorithm), "mode": SoftmaxMode(mode)}
        check(status, "cudnnSoftmaxBackward", what, y=y, dy=dy, dx=dx)
    return dx


def _check_rank(name: str, array: Any) -> None:
    if array.ndim < 2:
        raise ArgumentError(f"{name} has shape {array.shape}; softmax wants (N, C, ...)")
