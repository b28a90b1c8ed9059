"""Sums of products that an equation says, as products of matrices."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.frontends.torch.aten.contraction import product
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply_or_compute


@takes("einsum.default", when="of two operands, each letter once in either, and no '...'")
def einsum(call: AtenCall) -> Any:
    equation = call["equation"].replace(" ", "")
    values = call.tensors("tensors")
    given, _, result = equation.partition("->")
    first, _, second = given.partition(",")
    if "->" not in equation:
        result = "".join(sorted(set(first) ^ set(second)))
    twice = any(len(set(part)) < len(part) for part in (first, second, result))
    if len(values) != 2 or "." in equation or twice:
        raise Refused(f"{equation!r}; known are two operands, each letter once, and no '...'")
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
    over = [letter for letter in shared if letter not in result]
    rows = [letter for letter in first if letter not in shared]
    columns = [letter for letter in second if letter not in shared]

    def count(letters: Iterable[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    def matrices(x: Value, letters: str, one: list[str], other: list[str]) -> Value:
        ordered = _ordered(x, letters, [*batch, *one, *other])
        shape = (*(sizes[letter] for letter in batch), count(one), count(other))
        return apply_or_compute(ops.View(shape), ordered)

    out = product(matrices(a, first, rows, over), matrices(b, second, over, columns))
    letters = [*batch, *rows, *columns]
    out = apply_or_compute(ops.View(tuple(sizes[letter] for letter in letters)), out)
    return _ordered(out, "".join(letters), list(result))


def _summed(x: Value, letters: str, read: str) -> tuple[Value, str]:
    """The operand without the axes that nothing else has, whose sum is taken first."""
    alone = tuple(axis for axis, letter in enumerate(letters) if letter not in read)
    if not alone:
        return x, letters
    kept = "".join(letter for letter in letters if letter in read)
    return apply_or_compute(ops.Reduce("sum", alone), x), kept


def _ordered(x: Value, letters: str, wanted: list[str]) -> Value:
    order = tuple(letters.index(letter) for letter in wanted)
    return x if order == tuple(range(len(order))) else apply_or_compute(ops.Transpose(order), x)
