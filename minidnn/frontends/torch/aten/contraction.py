"""Convolutions, linear layers and matrix products, and ``einsum`` in terms of these."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import apply, apply_or_compute
from minidnn.graph.transposed import transposed_convolution

_KNOWN_WEIGHT = "the weight is known, and there is a batch axis"


@takes("conv2d.default", "convolution.default", when=_KNOWN_WEIGHT)
def conv2d(call: AtenCall) -> Any:
    if "transposed" in call.names and call["transposed"]:
        return conv_transpose(call)
    rows, columns = call.pair("padding")
    return _conv2d(call, ((rows, rows), (columns, columns)))


@takes("conv2d.padding", when=_KNOWN_WEIGHT)
def conv2d_named_padding(call: AtenCall) -> Any:
    if call["padding"] == "valid":
        return _conv2d(call, ((0, 0), (0, 0)))
    rows, columns = map(_same, call.weight("weight").shape[2:], call.pair("dilation"))
    return _conv2d(call, (rows, columns))


def _same(kernel: int, dilation: int) -> tuple[int, int]:
    """The padding that keeps a size; of an odd padding, the larger half is at the end."""
    total = dilation * (kernel - 1)
    return total // 2, total - total // 2


def _conv2d(call: AtenCall, padding: tuple[tuple[int, int], tuple[int, int]]) -> Any:
    x = call.tensor("input")
    weight = call.weight("weight")
    if weight.type.rank != 4 or x.type.rank != 4:
        raise Refused(f"input {x.shape} and weight {weight.shape}; known is 2-d, with a batch")
    op = ops.Conv2d(call.pair("stride"), padding, call.pair("dilation"), call["groups"])
    return apply(op, x, weight, *_bias(call))


@takes("conv1d.default", when=_KNOWN_WEIGHT)
def conv1d(call: AtenCall) -> Any:
    (padding,) = call["padding"]
    return _conv1d(call, (padding, padding))


@takes("conv1d.padding", when=_KNOWN_WEIGHT)
def conv1d_named_padding(call: AtenCall) -> Any:
    if call["padding"] == "valid":
        return _conv1d(call, (0, 0))
    (dilation,) = call["dilation"]
    return _conv1d(call, _same(call.weight("weight").shape[-1], dilation))


def _conv1d(call: AtenCall, padding: tuple[int, int]) -> Any:
    """Convolves vectors as images of one row."""
    x = call.tensor("input")
    weight = call.weight("weight")
    if x.type.rank != 3:
        raise Refused(f"input has shape {x.shape}; known is one with a batch axis")
    (stride,), (dilation,) = call["stride"], call["dilation"]
    row = apply_or_compute(ops.View((*weight.shape[:2], 1, weight.shape[2])), weight)
    op = ops.Conv2d((1, stride), ((0, 0), padding), (1, dilation), call["groups"])
    images = apply(ops.View((*x.shape[:2], 1, x.shape[2])), x)
    out = apply(op, images, row, *_bias(call))
    return apply(ops.View(call.result.shape), out)


@takes("conv_transpose1d.default", "conv_transpose2d.input", when=_KNOWN_WEIGHT)
def conv_transpose(call: AtenCall) -> Any:
    x, weight = call.tensor("input"), call.weight("weight")
    axes = weight.type.rank - 2
    if axes not in (1, 2) or x.type.rank != weight.type.rank:
        raise Refused(f"input {x.shape} and weight {weight.shape}; known is 1-d, 2-d, with a batch")
    padding, output_padding = call.ints("padding", axes), call.ints("output_padding", axes)
    return transposed_convolution(
        x,
        weight,
        *_bias(call),
        stride=call.ints("stride", axes),
        cut=tuple((p, p - extra) for p, extra in zip(padding, output_padding, strict=True)),
        dilation=call.ints("dilation", axes),
        groups=call["groups"],
    )


def _bias(call: AtenCall) -> list[Value]:
    bias = call.optional_weight("bias")
    return [] if bias is None else [bias]


@takes("linear.default", when="the weight is known")
def linear(call: AtenCall) -> Any:
    x, operands = call.tensor("input"), [call.weight("weight"), *_bias(call)]
    if x.type.rank > 1:
        return apply(ops.Linear(), x, *operands)
    out = apply(ops.Linear(), apply(ops.View((1, *x.shape)), x), *operands)
    return apply(ops.View(call.result.shape), out)


@takes("addmm.default", when="the matrix and the vector added are known, alpha and beta are 1")
def addmm(call: AtenCall) -> Any:
    if (call.number("alpha"), call.number("beta")) != (1, 1):
        raise Refused(f"alpha={call['alpha']}, beta={call['beta']}; known is 1")
    bias = call.weight("self")
    if bias.type.rank != 1:
        raise Refused(f"self has shape {bias.shape}; known is one number per column")
    return apply(ops.Linear(), call.tensor("mat1"), _transposed(call.weight("mat2")), bias)


@takes("mm.default", "bmm.default")
def mm(call: AtenCall) -> Any:
    return product(call.tensor("self"), call.tensor("mat2"))


@takes("matmul.default", "mv.default", "dot.default")
def matmul(call: AtenCall) -> Any:
    """A vector becomes a matrix: of one row as the first operand, of one column as the second."""
    x, other = (call.tensor(name) for name in call.names)
    left = apply_or_compute(ops.View((1, *x.shape)), x) if x.type.rank == 1 else x
    right = other
    if other.type.rank == 1:
        right = apply_or_compute(ops.View((*other.shape, 1)), other)
    out = product(left, right)
    return out if (left, right) == (x, other) else apply(ops.View(call.result.shape), out)


@takes("baddbmm.default", when="no other dtype is asked for")
def baddbmm(call: AtenCall) -> Any:
    """``beta * self + alpha * batch1 @ batch2``; with ``beta = 0``, ``self`` is not read."""
    alpha, beta = float(call.number("alpha")), float(call.number("beta"))
    out = product(call.tensor("batch1"), call.tensor("batch2"))
    scaled = argument(0) if alpha == 1.0 else argument(0) * alpha
    if not beta:
        return apply(ops.Formula(scaled, title="Scale"), out)
    body = scaled + (argument(1) if beta == 1.0 else argument(1) * beta)
    return apply(ops.Formula(body, tensors=2, title="Add"), out, call.tensor("self"))


def product(x: Value, other: Value) -> Value:
    """``x @ other``; a constant matrix becomes the weight of a linear layer."""
    if min(x.type.rank, other.type.rank) < 2:
        raise Refused(f"operands have shapes {x.shape} and {other.shape}; known are matrices")
    if isinstance(other, Constant) and other.type.rank == 2:
        return apply(ops.Linear(), x, _transposed(other))
    return apply(ops.MatMul(), x, other)


def _transposed(matrix: Value) -> Value:
    return apply_or_compute(ops.Transpose((1, 0)), matrix)


@takes("einsum.default", when="of one or two operands, each letter once in each, and no '...'")
def einsum(call: AtenCall) -> Any:
    equation = call["equation"].replace(" ", "")
    values = call.tensors("tensors")
    operands, _, result = equation.partition("->")
    first, _, second = operands.partition(",")
    if "->" not in equation:
        result = "".join(sorted(set(first) ^ set(second)))
    repeats = any(len(set(part)) < len(part) for part in (first, second, result))
    if len(values) > 2 or "." in equation or repeats:
        raise Refused(f"{equation!r}; known are 1 or 2 operands, each letter once, and no '...'")
    if len(values) == 1:
        return _ordered(*_summed(values[0], first, result), list(result))
    sizes = dict(zip(second, values[1].shape, strict=True))
    if any(
        sizes.get(letter, size) != size for letter, size in zip(first, values[0].shape, strict=True)
    ):
        raise Refused(f"{equation!r} of {values[0].shape} and {values[1].shape} repeats an axis")
    sizes |= dict(zip(first, values[0].shape, strict=True))
    a, first = _summed(values[0], first, second + result)
    b, second = _summed(values[1], second, first + result)
    shared = [letter for letter in first if letter in second]
    batch = [letter for letter in shared if letter in result]
    contracted = [letter for letter in shared if letter not in result]
    rows = [letter for letter in first if letter not in shared]
    columns = [letter for letter in second if letter not in shared]

    def count(letters: Iterable[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    def matrices(x: Value, letters: str, one: list[str], other: list[str]) -> Value:
        ordered = _ordered(x, letters, [*batch, *one, *other])
        shape = (*(sizes[letter] for letter in batch), count(one), count(other))
        return apply_or_compute(ops.View(shape), ordered)

    out = product(matrices(a, first, rows, contracted), matrices(b, second, contracted, columns))
    letters = [*batch, *rows, *columns]
    out = apply_or_compute(ops.View(tuple(sizes[letter] for letter in letters)), out)
    return _ordered(out, "".join(letters), list(result))


def _summed(x: Value, letters: str, read: str) -> tuple[Value, str]:
    """Sums over the axes that neither the other operand nor the result has; returns the sum and its
    letters."""
    summed_axes = tuple(axis for axis, letter in enumerate(letters) if letter not in read)
    if not summed_axes:
        return x, letters
    kept = "".join(letter for letter in letters if letter in read)
    return apply_or_compute(ops.Reduce("sum", summed_axes), x), kept


def _ordered(x: Value, letters: str, wanted: list[str]) -> Value:
    """Transposes axes, which are named by letters, to the wanted order."""
    order = tuple(letters.index(letter) for letter in wanted)
    return x if order == tuple(range(len(order))) else apply_or_compute(ops.Transpose(order), x)
