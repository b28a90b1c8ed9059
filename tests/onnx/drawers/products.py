"""Products of matrices, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.onnx.random_models import Drawer, RandomModel

from .registry import FLOATS, NUMBERS, registrar

DRAWERS: list[Drawer] = []
_drawer = registrar(DRAWERS)


@_drawer
def matmul(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), ("float32", "float32", "int64", "int32"))
    array = m.arrays[x]
    other: tuple[int, ...] = (array.shape[-1], m.draw.randint(1, 6))
    how = m.draw.randrange(4)
    if how == 0:
        other = other[:1]
    elif how == 1 and array.ndim > 2:
        other = (*(n if m.chance(0.6) else 1 for n in array.shape[:-2]), *other)
    exact = array.dtype != np.float32
    known = m.numbers(other, str(array.dtype))
    m.add("MatMul", [x, m.constant(known) if exact else m.weight(other)], exact=exact)


@_drawer
def gemm(m: RandomModel) -> None:
    x = m.value((2,))
    rows, terms = m.arrays[x].shape
    attributes = m.maybe({"alpha": 0.5, "beta": 1.5, "transA": 1, "transB": 1})
    if "transA" in attributes:
        rows, terms = terms, rows
    columns = m.draw.randint(1, 6)
    weight = (columns, terms) if "transB" in attributes else (terms, columns)
    operands = [x, m.weight(weight)]
    bias = m.draw.choice([(columns,), (rows, columns), (1, columns), (rows, 1), (1,), ()])
    if m.opset < 11 or m.chance(0.7):
        operands.append(m.weight(bias))
    m.add("Gemm", operands, **attributes)


@_drawer
def reduction(m: RandomModel) -> None:
    names = ("Mean", "Max", "Min", "Sum", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    kind = "Reduce" + m.draw.choice(names)
    x = m.value((1, 2, 3, 4), FLOATS if kind[6:] in ("L2", "LogSumExp") else NUMBERS)
    rank = m.arrays[x].ndim
    axes = m.draw.sample(range(rank), m.draw.randint(1, rank))
    if m.opset >= 11 and m.chance(0.3):
        axes = [axis - rank for axis in axes]
    attributes: dict[str, Any] = m.maybe({"keepdims": m.draw.randint(0, 1)}, 0.7)
    exact = kind in ("ReduceMax", "ReduceMin")
    operands = [x]
    as_operand = m.opset >= 18 or (kind == "ReduceSum" and m.opset >= 13)
    if as_operand:
        attributes |= m.maybe({"noop_with_empty_axes": m.draw.randint(0, 1)}, 0.3)
    if m.chance(0.8):
        if as_operand:
            operands.append(m.constant(axes, "int64"))
        else:
            attributes["axes"] = axes
    m.add(kind, operands, exact=exact, **attributes)


@_drawer
def place(m: RandomModel) -> None:
    x = m.value((1, 2, 3, 4), NUMBERS if m.opset >= 11 else FLOATS, exact=True)
    axis = m.draw.randrange(m.arrays[x].ndim)
    attributes = m.maybe({"axis": axis, "keepdims": 0})
    if m.opset >= 12:
        attributes |= m.maybe({"select_last_index": 1})
    m.add(m.draw.choice(["ArgMax", "ArgMin"]), [x], exact=True, **attributes)
