"""Kernels of softmax and its logarithm, along any axis."""

from __future__ import annotations

from math import prod

from ...graph.operators import LogSoftmax, Softmax
from ...graph.types import TensorType
from ..codegen.code import Code
from .kernels import Launch
from .prelude import TYPES
from .reduce import Blocks
from .strided import Strided

THREADS = 128

_JOIN = """\
for (int s = 16; s; s >>= 1) {value} = {join};  // of lane 0
if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = {value};
__syncthreads();
{value} = part[0];
for (int w = 1; w < {warps}; w++) {value} = {again};
__syncthreads();"""


def print_softmax(op: Softmax | LogSoftmax, type: TensorType, x: Strided) -> Launch:
    """The kernel from a value that lies as ``x`` says to a dense one; pointers are both.

    Along the last axis a block computes a row, else a thread a column.
    """
    dim = op.dim % type.rank
    outer, length, inner = prod(type.shape[:dim]), type.shape[dim], prod(type.shape[dim + 1 :])
    # Samples may lie apart; what is inside of one is dense.
    per_sample = prod(type.shape[1:dim])
    run = length * inner
    sample = f"o / {per_sample} * {x.strides[0]} + o % {per_sample} * {run}"
    first = f"{'0' if dim == 0 else sample} + {x.offset}"
    step = x.strides[dim]
    logarithm = isinstance(op, LogSoftmax)
    element = TYPES[type.dtype]
    code = Code()
    with code.block(f'extern "C" __global__ void @(const {element} *x, {element} *y)'):
        if inner == 1:
            _rows(code, length, first, step, logarithm, element)
            grid = outer
        else:
            _columns(code, outer * inner, length, inner, first, step, logarithm, element)
            grid = -(-outer * inner // THREADS)
    return Launch.named("softmax", code, grid, THREADS, THREADS // 32 * 4)


def _result(logarithm: bool) -> str:
    return "shifted - scale" if logarithm else "md_exp(shifted) / scale"


def _rows(code: Code, length: int, first: str, step: int, logarithm: bool, element: str) -> None:
    code.line("MD_SHARED;")
    code.line("float *part = (float *)md_shared;")
    code.line("const long long o = blockIdx.x;")
    code.line(f"x += {first};")
    code.line(f"y += o * {length};")
    loop = f"for (int i = threadIdx.x; i < {length}; i += {THREADS})"
    code.line("float top = floatbits(0xff800000u);")
    code.line(f"{loop} top = md_max(top, md_value(x[i * {step}ll]));")
    _join(code, "top", "md_max(top, __shfl_down_sync(0xffffffffu, top, s))", "md_max(top, part[w])")
    sums = Blocks(code, "float", "0.0f", "{0} + {1}", length, THREADS)
    with sums.each("scale", "i"):
        sums.add(f"md_exp(md_value(x[i * {step}ll]) - top)")
    _join(code, "scale", "scale + __shfl_down_sync(0xffffffffu, scale, s)", "scale + part[w]")
    if logarithm:
        code.line("scale = md_log(scale);")
    with code.block(loop):
        code.line(f"const float shifted = md_value(x[i * {step}ll]) - top;")
        code.line(f"y[i] = md_as<{element}>({_result(logarithm)});")


def _join(code: Code, value: str, join: str, again: str) -> None:
    """All threads of the block end with the same value."""
    text = _JOIN.format(value=value, join=join, again=again, warps=THREADS // 32)
    code.lines(text.splitlines())


def _columns(
    code: Code,
    count: int,
    length: int,
    inner: int,
    first: str,
    step: int,
    logarithm: bool,
    element: str,
) -> None:
    code.line(f"const long long t = blockIdx.x * {THREADS}ll + threadIdx.x;")
    code.line(f"if (t >= {count}) return;")
    code.line(f"const long long o = t / {inner}, p = t % {inner};")
    code.line(f"x += {first} + p;")
    code.line(f"y += o * {length * inner} + p;")
    loop = f"for (int i = 0; i < {length}; i++)"
    code.line("float top = floatbits(0xff800000u);")
    code.line(f"{loop} top = md_max(top, md_value(x[i * {step}ll]));")
    sums = Blocks(code, "float", "0.0f", "{0} + {1}", length, 1)
    with sums.each("scale", "i"):
        sums.add(f"md_exp(md_value(x[i * {step}ll]) - top)")
    if logarithm:
        code.line("scale = md_log(scale);")
    with code.block(loop):
        code.line(f"const float shifted = md_value(x[i * {step}ll]) - top;")
        code.line(f"y[i * {inner}ll] = md_as<{element}>({_result(logarithm)});")
