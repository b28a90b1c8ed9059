"""Softmax and log-softmax: y = alpha * softmax(x) + beta * y, and the gradient.

Mode CHANNEL normalises over dimension 1 for each (n, h, w); mode INSTANCE over all of c, h, w
for each n.  Algorithms: FAST (no maximum subtracted: may overflow), ACCURATE, LOG.

Source: cuDNN, ``cudnnSoftmaxForward``, ``cudnnSoftmaxBackward``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from minidnn.cudnn.arrays import check_inputs, output, scalars
from minidnn.cudnn.enums import SoftmaxAlgorithm, SoftmaxMode
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.handle import call
from minidnn.cudnn.tensor import operand

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
    arguments = (algorithm, mode, one, *operand(x, "x"), zero, *operand(y, "y"))
    context = partial(_context, algorithm, mode)
    call("cudnnSoftmaxForward", *arguments, context=context, x=x, y=y)
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
    inputs = (*operand(y, "y"), *operand(dy, "dy"))
    arguments = (algorithm, mode, one, *inputs, zero, *operand(dx, "dx"))
    context = partial(_context, algorithm, mode)
    call("cudnnSoftmaxBackward", *arguments, context=context, y=y, dy=dy, dx=dx)
    return dx


def _context(algorithm: SoftmaxAlgorithm, mode: SoftmaxMode) -> dict[str, Any]:
    return {"algorithm": SoftmaxAlgorithm(algorithm), "mode": SoftmaxMode(mode)}


def _check_rank(name: str, array: Any) -> None:
    if array.ndim < 2:
        raise ArgumentError(f"{name} has shape {array.shape}; softmax wants (N, C, ...)")
