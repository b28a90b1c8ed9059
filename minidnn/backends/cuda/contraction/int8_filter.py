"""Packed filters of int8 contractions: a header, then the weights.

The header has the int32 that each filter's sum begins with, the scalars that stages read, and an
access full of the image's zero point, which takes the place of the padding.

    sum over taps of (x - zero) w + bias = sum over taps of x w + (bias - zero * sum over taps of w)

where x is ``zero`` outside of the image.  The bracket is what a filter's sum begins with.  All sums
wrap, so their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....cudnn.graph.spec import ALIGNMENT
from ....fusion.region import Parts
from ....graph.ir import Constant
from ....graph.operator import is_integer_product
from ....graph.operators import Conv2d, Linear
from ....graph.types import INT8_DTYPES
from ...codegen.code import Code
from .problem import BytesOnly, ContractionProblem


def why_not_bytes(parts: Parts) -> str | None:
    """Why no kernel computes a contraction of integers; None if one does, or if it has floats."""
    x, weight, *bias = parts.node.inputs
    if not is_integer_product(x.type, weight.type):
        return None
    if not isinstance(parts.node.op, (Conv2d, Linear)):
        return f"{parts.node.op.name} is no convolution or linear layer"
    if x.dtype not in INT8_DTYPES or weight.dtype != "int8":
        return f"it multiplies {x.dtype} by {weight.dtype}; valid are int8 and uint8 by int8"
    if not all(isinstance(value, Constant) for value in (weight, *bias)):
        return "its weight or bias is computed; valid are constants"
    return None


def is_by_channel(problem: ContractionProblem) -> bool:
    """Whether it is depthwise, with one filter for each channel; weights are then ordered by rows,
    columns and filters."""
    return problem.groups == problem.x.channels == problem.w.shape[0] > 1


def header_bytes(problem: ContractionProblem) -> int:
    """Bytes of the header: 4 for each filter, rounded up to an access of 16, an access for each
    scalar that stages read, and one that is full of the zero point."""
    return number_at(problem, problem.numbers) + ALIGNMENT


def number_at(problem: ContractionProblem, index: int) -> int:
    """The offset in bytes of a scalar that stages read."""
    return (-(-problem.w.shape[0] * 4 // ALIGNMENT) + index) * ALIGNMENT


def header_of(problem: ContractionProblem) -> str:
    """The code that reads the header of a filter ``w`` and advances ``w`` to the weights; scalars
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
    """Returns a function that makes the packed filter: header and weights, as int8."""
    bias, zero = whole.bias, whole.zero

    def make() -> np.ndarray:
        data = weight.data.reshape((*weight.shape, 1, 1)[:4])
        filters = data.shape[0]
        starts = np.zeros(-(-filters // 4) * 4, np.int64)
        starts[:filters] = -zero * data.reshape(filters, -1).sum(1, dtype=np.int64)
        if bias is not None:
            starts[:filters] += bias.data
        if problem.gather is not None:
            weights = problem.gather.filter(data, weight.dtype)
        else:
            weights = data.transpose((1, 2, 3, 0) if is_by_channel(problem) else (0, 2, 3, 1))
        numbers = np.repeat(np.array(whole.numbers, np.float32), ALIGNMENT // 4)
        zeros = np.full(ALIGNMENT, zero, problem.x.dtype)
        fields = (starts.astype(np.int32), numbers, zeros, np.ascontiguousarray(weights))
        return np.concatenate([field.reshape(-1).view(np.int8) for field in fields])

    return make
