"""The kernel of adaptive average pooling whose windows are not regular."""

from __future__ import annotations

from ...cache import digest
from ..cpu.code import Code
from .dialect import TYPES
from .kernels import KernelSource, Launch
from .tensor import Tensor

THREADS = 128


def print_adaptive(batch: int, x: Tensor, y: Tensor) -> Launch:
    """The kernel that averages windows so that the result has the size of ``y``.

    Each row from left to right, then the rows, as the reference adds them.  A thread computes one
    element; neighbours are channels where those lie side by side, else pixels.
    """
    count = batch * y.channels * y.rows * y.columns
    code = Code()
    with code.block(
        f'extern "C" __global__ void @(const {TYPES[x.dtype]} *x, {TYPES[y.dtype]} *y)'
    ):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t >= {count}) return;")
        sizes = {"c": y.channels, "i": y.rows, "j": y.columns}
        order = "cji" if y.channel == 1 and not y.is_planar else "jic"
        rest = "t"
        for axis in order:
            code.line(f"const int {axis} = {rest} % {sizes[axis]};")
            rest += f" / {sizes[axis]}"
        code.line(f"const long long n = {rest};")
        for low, high, index, given, made in (
            ("top", "bottom", "i", x.rows, y.rows),
            ("left", "right", "j", x.columns, y.columns),
        ):
            code.line(f"const int {low} = {index} * {given} / {made};")
            code.line(f"const int {high} = (({index} + 1) * {given} + {made - 1}) / {made};")
        code.line(f"x += n * {x.image} + c * {x.channel}ll + {x.offset};")
        code.line("float total = 0.0f;")
        with code.block("for (int h = top; h < bottom; h++)"):
            code.line("float sum = 0.0f;")
            with code.block("for (int w = left; w < right; w++)"):
                code.line(f"sum += md_value(x[h * {x.row}ll + w * {x.pixel}ll]);")
            code.line("total += sum;")
        code.line("total /= (float)((bottom - top) * (right - left));")
        place = f"n * {y.image} + c * {y.channel}ll + i * {y.row} + j * {y.pixel} + {y.offset}"
        code.line(f"y[{place}] = md_as<{TYPES[y.dtype]}>(total);")
    name = f"adaptive_{digest(str(code))[:20]}"
    source = KernelSource(name, str(code).replace("@", name))
    return Launch(source, (-(-count // THREADS), 1, 1), (THREADS, 1, 1))
