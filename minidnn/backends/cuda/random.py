"""Kernels that draw random numbers: dropout of elements or channels of values in NCHW order."""

from __future__ import annotations

from math import prod

from ...graph.operators import RandomDrop
from ...graph.types import TensorType, numpy_dtype
from ..codegen.code import Code
from ..codegen.dialect import literal
from .kernels import Launch
from .strided import THREADS, Strided, element_of
from .whole import STORED, read, stored

# ``graph.philox``: four words of the counter (block, stream, step) under the key ``seed``.
_PHILOX = """\
MD_FUNCTION void @_philox(unsigned int block, unsigned int stream, unsigned long long step,
                          unsigned long long seed, unsigned int (&words)[4]) {
  unsigned int a = block, b = stream, c = (unsigned int)step, d = (unsigned int)(step >> 32);
  unsigned int first = (unsigned int)seed, second = (unsigned int)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const unsigned long long x = a * 0xD2511F53ull, y = c * 0xCD9E8D57ull;
    a = (unsigned int)(y >> 32) ^ b ^ first;
    b = (unsigned int)y;
    c = (unsigned int)(x >> 32) ^ d ^ second;
    d = (unsigned int)x;
    first += 0x9E3779B9u;
    second += 0xBB67AE85u;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}
"""


def print_random_drop(op: RandomDrop, type: TensorType, x: Strided) -> Launch:
    """The kernel; pointers are the operand, seed, step, and the output, which is dense.

    A thread draws four words: for as many elements, or, to drop channels, for its own element.
    """
    element, each = STORED[type.dtype], 1 if op.channels else 4
    scale = literal(float(numpy_dtype(type.dtype).type(op.scale)))
    code = Code()
    code.lines(_PHILOX.splitlines())
    head = f"const {element} *x, const long long *seed, const long long *step, {element} *y"
    with code.block(f'extern "C" __global__ void @({head})'):
        code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
        code.line(f"if (t * {each} >= {type.size}) return;")
        code.line("unsigned int words[4];")
        channel = f"t / {prod(type.shape[2:])}" if op.channels else "t"
        block = f"(unsigned int)({channel} / 4)" if op.channels else "(unsigned int)t"
        code.line(f"@_philox({block}, {op.stream}u, *step, *seed, words);")
        with code.block(f"for (int j = 0; j < {each}; j++)"):
            code.line(f"const long long i = t * {each} + j;")
            if not op.channels:
                code.line(f"if (i >= {type.size}) return;")
            word = f"words[{channel} % 4]" if op.channels else "words[j]"
            given = read(f"x[{element_of('i', type.shape, x)}]", type.dtype, False)
            value = f"{word} < {op.threshold}ull ? 0.0f : {given} * {scale}"
            code.line(f"y[i] = {stored(value, type.dtype)};")
    count = -(-type.size // each)
    return Launch.named("random_drop", code, -(-count // THREADS), THREADS)
