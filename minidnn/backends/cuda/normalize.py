"""Kernels of softmax, of layer normalization and of group normalization.

Contiguous rows that fit in registers are computed as row regions (:mod:`.regions`).  Here are
longer rows, rows that are not contiguous, columns, and groups.  The mean that is computed first is
rounded; the mean of the distances from it is the rounding error, which is subtracted as well.
"""

from __future__ import annotations

from math import prod

from ...graph.operators import GroupNorm, LayerNorm, LogSoftmax, Softmax
from ...graph.types import ITEMSIZE, TensorType
from ..codegen.code import Code
from ..codegen.dialect import literal
from .kernels import Launch
from .prelude import TYPES
from .reduce import BLOCK, COMBINE, Blocks, reduce_block
from .strided import Strided, element_of


def print_softmax(op: Softmax | LogSoftmax, type: TensorType, x: Strided) -> Launch:
    """The kernel that reads the view ``x`` and writes a dense value; pointers are both.

    Along the last axis a block computes a row, else a thread a column.
    """
    dim = op.dim % type.rank
    outer, length, inner = prod(type.shape[:dim]), type.shape[dim], prod(type.shape[dim + 1 :])
    # The stride of samples may be any; each sample is dense.
    per_sample = prod(type.shape[1:dim])
    run = length * inner
    sample = f"o / {per_sample} * {x.strides[0]} + o % {per_sample} * {run}"
    first = f"{'0' if dim == 0 else sample} + {x.offset}"
    by_block = inner == 1
    element, loaded = TYPES[type.dtype], f"md_value(x[i * {x.strides[dim]}ll])"
    code = Code()
    with code.block(f'extern "C" __global__ void @(const {element} *x, {element} *y)'):
        if by_block:
            code.line("const long long o = blockIdx.x;")
            code.line(f"x += {first};")
            code.line(f"y += o * {length};")
            loop = f"for (int i = threadIdx.x; i < {length}; i += {BLOCK})"
        else:
            code.line(f"const long long t = blockIdx.x * {BLOCK}ll + threadIdx.x;")
            code.line(f"if (t >= {outer * inner}) return;")
            code.line(f"const long long o = t / {inner}, p = t % {inner};")
            code.line(f"x += {first} + p;")
            code.line(f"y += o * {run} + p;")
            loop = f"for (int i = 0; i < {length}; i++)"
        code.line("float top = floatbits(0xff800000u);")
        code.line(f"{loop} top = md_max(top, {loaded});")
        if by_block:
            reduce_block(code, "top", COMBINE["max"])
        sums = Blocks(code, "float", "0.0f", _ADD, length, BLOCK if by_block else 1)
        with sums.each("scale", "i"):
            sums.add(f"md_exp({loaded} - top)")
        if by_block:
            reduce_block(code, "scale", _ADD, declared=True)
        is_logarithm = isinstance(op, LogSoftmax)
        if is_logarithm:
            code.line("scale = md_log(scale);")
        with code.block(loop):
            code.line(f"const float shifted = {loaded} - top;")
            result = "shifted - scale" if is_logarithm else "md_exp(shifted) / scale"
            place = "i" if by_block else f"i * {inner}ll"
            code.line(f"y[{place}] = md_as<{element}>({result});")
    blocks = outer if by_block else -(-outer * inner // BLOCK)
    return Launch.named("softmax", code, blocks, BLOCK, BLOCK // 32 * 4)


_ACCESS = 16  # bytes
_SHORT = 2048
"""Elements of a row that threads of a warp keep in registers."""
_ADD = COMBINE["sum"]


def print_layer_norm(
    op: LayerNorm | GroupNorm, type: TensorType, x: Strided, vectors: int
) -> Launch:
    """The kernel of a normalization; a block computes a row, or a part of a warp a short one.

    Pointers are the input, weight and bias as far as there are any, and the output.
    """
    if isinstance(op, LayerNorm):  # short rows are a region's
        length = prod(type.shape[type.rank - op.axes :])
    else:
        length = prod(type.shape[1:]) // op.groups
        pack = _ACCESS // ITEMSIZE[type.dtype]
        if length % pack == 0 and length <= _SHORT and element_of("i", type.shape, x) == "i":
            return _short_group_norm(op, type, length, vectors)
    element = TYPES[type.dtype]
    code = Code()
    pointers = [f"const {element} *{name}" for name in ("x", "w", "b")[: 1 + vectors]]
    with code.block(f'extern "C" __global__ void @({", ".join([*pointers, f"{element} *y"])})'):
        code.line(f"const long long first = blockIdx.x * {length}ll;")
        loaded = f"md_value(x[{element_of('(first + i)', type.shape, x)}])"
        loop = f"for (int i = threadIdx.x; i < {length}; i += {BLOCK})"
        sums = Blocks(code, "float", "0.0f", _ADD, length, BLOCK)
        with sums.each("mean", "i"):
            sums.add(loaded)
        reduce_block(code, "mean", _ADD)
        code.line(f"mean /= {literal(float(length))};")
        with sums.each("rest", "i"):  # the rounding error of the mean
            sums.add(f"{loaded} - mean")
        reduce_block(code, "rest", _ADD, declared=True)
        code.line(f"rest /= {literal(float(length))};")
        with sums.each("variance", "i"):
            code.line(f"const float apart = ({loaded} - mean) - rest;")
            sums.add("apart * apart")
        reduce_block(code, "variance", _ADD, declared=True)
        code.line(
            f"const float scale = sqrtf(variance / {literal(float(length))} + {literal(op.eps)});"
        )
        with code.block(loop):
            code.line(f"float value = (({loaded} - mean) - rest) / scale;")
            if isinstance(op, GroupNorm):
                _scale_channel(code, op, type, vectors, "value", "blockIdx.x", "i")
            else:
                for sign, vector in zip("*+", ("w[i]", "b[i]")[:vectors], strict=False):
                    code.line(f"value = value {sign} md_value({vector});")
            code.line(f"y[first + i] = md_as<{element}>(value);")
    return Launch.named("layernorm", code, type.size // length, BLOCK, BLOCK // 32 * 4)


def _scale_channel(
    code: Code, op: GroupNorm, type: TensorType, vectors: int, value: str, row: str, index: str
) -> None:
    """Scales and shifts an element of a row by its channel's weight and bias, if there are any."""
    if vectors:
        inner, channels = prod(type.shape[2:]), type.shape[1] // op.groups
        code.line(f"const int c = {row} % {op.groups} * {channels} + {index} / {inner};")
        code.line(f"{value} = md_fma({value}, md_value(w[c]), md_value(b[c]));")


def _short_group_norm(op: GroupNorm, type: TensorType, length: int, vectors: int) -> Launch:
    """The kernel of rows that stay in registers: of as few threads as have a pack of a row each, or
    of a warp."""
    dtype = type.dtype
    element, pack = TYPES[dtype], _ACCESS // ITEMSIZE[dtype]
    rows, packs = type.size // length, length // pack
    lanes = min(32, 1 << (packs - 1).bit_length())
    turns = -(-packs // lanes)
    code = Code()
    pointers = [f"const {element} *{name}" for name in ("x", "w", "b")[: 1 + vectors]]
    with code.block(f'extern "C" __global__ void @({", ".join([*pointers, f"{element} *y"])})'):
        code.line(f"const int lane = threadIdx.x % {lanes};")
        code.line(f"const long long row = blockIdx.x * {BLOCK // lanes}ll + threadIdx.x / {lanes};")
        code.line(f"const bool there = row < {rows}ll;")
        code.line(f"const long long first = row * {length}ll;")
        code.line(f"float v[{turns}][{pack}];")
        loop = f"for (int t = 0; t < {turns}; t++)"
        each = f"for (int j = 0; j < {pack}; j++)"
        inside = f"lane + t * {lanes} < {packs}"
        offset = f"(lane + t * {lanes}) * {pack}"
        with code.unrolled(loop):
            code.unrolled_line(f"{each} v[t][j] = 0.0f;")
            code.line(f"if (there && {inside}) md_load<{pack}>(v[t], x + first + {offset});")
        code.line("float mean = 0.0f, rest = 0.0f, variance = 0.0f;")
        count = literal(float(length))

        def print_mean(value: str, term: str) -> None:
            with code.unrolled(loop):
                code.line("float part = 0.0f;")
                code.unrolled_line(f"{each} part += {term};")
                code.line(f"{value} += part;")
            # The sum over neighbouring threads, in a fixed order, which all of them have.
            other = f"__shfl_xor_sync(0xffffffffu, {value}, s)"
            code.unrolled_line(f"for (int s = {lanes // 2}; s; s >>= 1) {value} += {other};")
            code.line(f"{value} /= {count};")

        def print_centered(value: str) -> None:
            with code.unrolled(loop):
                code.unrolled_line(f"{each} v[t][j] = {inside} ? v[t][j] - {value} : 0.0f;")

        print_mean("mean", "v[t][j]")
        print_centered("mean")
        print_mean("rest", "v[t][j]")  # the rounding error of the mean
        print_centered("rest")
        print_mean("variance", "v[t][j] * v[t][j]")
        code.line(f"const float scale = sqrtf(variance + {literal(op.eps)});")
        with code.unrolled(loop):
            code.line(f"if (!there || !({inside})) continue;")
            with code.unrolled(each):
                code.line("v[t][j] = v[t][j] / scale;")
                _scale_channel(code, op, type, vectors, "v[t][j]", "row", f"({offset} + j)")
            code.line(f"md_store<{pack}>(y + first + {offset}, v[t]);")
    return Launch.named("layernorm", code, -(-rows * lanes // BLOCK), BLOCK)
