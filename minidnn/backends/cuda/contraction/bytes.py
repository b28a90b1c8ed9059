"""Filters of bytes as kernels read them: what sums begin with, the numbers that stages read, the
byte for 0, and the weights.

    sum over taps of (x - zero) w + bias = sum over taps of x w + (bias - zero * sum over taps of w)

where x is ``zero`` outside of the image.  The bracket is a number of int32 for each filter.  All
sums wrap, so that their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....cudnn.graph.spec import ALIGNMENT
from ....fusion.contraction import Parts
from ....graph.ir import Constant
from ....graph.operator import is_whole_product
from ....graph.operators import Conv2d, Linear
from ....graph.types import BYTES
from ...codegen.code import Code
from .problem import BytesOnly, ContractionProblem


def why_not_bytes(parts: Parts) -> str | None:
    """Why no kernel computes a contraction of whole numbers; None if one does, or if it is one of
    other numbers."""
    x, weight, *bias = parts.node.inputs
    if not is_whole_product(x.type, weight.type):
        return None
    if not isinstance(parts.node.op, (Conv2d, Linear)):
        return f"{parts.node.op.name} is no convolution or linear layer"
    if x.dtype not in BYTES or weight.dtype != "int8":
        return f"it multiplies {x.dtype} by {weight.dtype}; valid are int8 and uint8 by int8"
    if not all(isinstance(value, Constant) for value in (weight, *bias)):
        return "its weight or bias is computed; valid are constants"
    return None


def is_by_channel(problem: ContractionProblem) -> bool:
    """Whether each filter reads a channel of its own, and weights lie tap after tap."""
    return problem.groups == problem.x.channels == problem.w.shape[0] > 1


def header_bytes(problem: ContractionProblem) -> int:
    """What lies before the weights: a number of 4 bytes for each filter, up to a whole access, an
    access for each number that stages read, and one that is full of what stands for 0."""
    return number_at(problem, problem.numbers) + ALIGNMENT


def number_at(problem: ContractionProblem, index: int) -> int:
    """Where a number that stages read lies."""
    return (-(-problem.w.shape[0] * 4 // ALIGNMENT) + index) * ALIGNMENT


def header_of(problem: ContractionProblem) -> str:
    """The lines that find the parts of a filter ``w``, which then begins with the weights; numbers
    are ``k0`` and on."""
    code = Code()
    code.line("const int *const starts = (const int *)w;")
    code.line("w += ((int)P_filters + 3) / 4 * 16;")
    for i in range(problem.numbers):
        code.line(f"const float k{i} = *(const float *)(w + {i * ALIGNMENT});")
    code.line(f"w += {(problem.numbers + 1) * ALIGNMENT};")
    code.line(f"const T *const zeros = w - {ALIGNMENT};")
    return "\n".join(f"  {line}" for line in str(code).splitlines())


def packed_filter(
    weight: Constant, whole: BytesOnly, problem: ContractionProblem
) -> Callable[[], np.ndarray]:
    """What makes the bytes that kernels of a problem read."""
    bias, zero = whole.bias, whole.zero

    def make() -> np.ndarray:
        data = weight.data.reshape((*weight.shape, 1, 1)[:4])
        filters = data.shape[0]
        starts = np.zeros(-(-filters // 4) * 4, np.int64)
        starts[:filters] = -zero * data.reshape(filters, -1).sum(1, dtype=np.int64)
        if bias is not None:
            starts[:filters] += bias.data
        if problem.gather is not None:
            ordered = problem.gather.filter(data, weight.dtype)
        else:
            ordered = data.transpose((1, 2, 3, 0) if is_by_channel(problem) else (0, 2, 3, 1))
        numbers = np.repeat(np.array(whole.numbers, np.float32), ALIGNMENT // 4)
        zeros = np.full(ALIGNMENT, zero, problem.x.dtype)
        parts = (starts.astype(np.int32), numbers, zeros, np.ascontiguousarray(ordered))
        return np.concatenate([part.reshape(-1).view(np.int8) for part in parts])

    return make
