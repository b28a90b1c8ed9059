"""Kernels by NumPy: what the texts are held to.

All points run side by side.  What no kernel may do raises an error: reading or writing beside a
param, naming what it writes, dividing negative numbers, writing one element from two points.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minidnn.graph.expression import run as run_code
from minidnn.graph.types import INT8_DTYPES
from minidnn.graph.window import combine_taps
from minidnn.kernels.ir import (
    LANE,
    OPERATIONS,
    TASK,
    Expr,
    FoldRange,
    For,
    If,
    Kernel,
    Let,
    Statement,
    Write,
)

_Points = dict[str, np.ndarray]


def run(kernel: Kernel, arrays: Mapping[str, np.ndarray]) -> None:
    """Runs a kernel on flat arrays, by its params' names, of its params' dtypes."""
    tasks = np.arange(kernel.tasks)
    if kernel.lanes is None:
        _run(kernel.body, {TASK.value: tasks}, arrays)
        return
    counts = _value(kernel.lanes, {TASK.value: tasks}, arrays)
    ends = np.cumsum(counts)
    lanes = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    _run(kernel.body, {TASK.value: np.repeat(tasks, counts), LANE.value: lanes}, arrays)


def _run(body: tuple[Statement, ...], points: _Points, arrays: Mapping[str, np.ndarray]) -> _Points:
    """Runs statements; the numbers that there are then."""
    points = dict(points)
    for statement in body:
        match statement:
            case Let(name, value):
                if any(each.op == "load" and each.value.is_written for each in value.walk()):
                    raise ValueError(f"{name.value} reads what the kernel writes")
                points[name.value] = _value(value, points, arrays)
            case Write(param, index, value):
                at = _value(index, points, arrays)
                if len(np.unique(at)) != len(at):
                    raise IndexError(f"two points write one element of {param.name}")
                arrays[param.name][_inside(at, arrays[param.name])] = _value(value, points, arrays)
            case For(name, begin, end, inner):
                first, last = (_value(bound, points, arrays) for bound in (begin, end))
                for i in range(first.min(initial=0), last.max(initial=0)):
                    chosen = _chosen(points, (first <= i) & (i < last))
                    chosen[name.value] = np.full(len(chosen[TASK.value]), i)
                    _run(inner, chosen, arrays)
            case If(condition, inner):
                _run(inner, _chosen(points, _value(condition, points, arrays)), arrays)
            case FoldRange():
                points[statement.name.value] = _folded(statement, points, arrays)
    return points


def _folded(fold: FoldRange, points: _Points, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    counts = _value(fold.count, points, arrays)
    result = np.empty(len(counts), np.float32)
    for count in np.unique(counts):
        alike = _chosen(points, counts == count)
        values = np.full((len(alike[TASK.value]), count), fold.combiner.identity, np.float32)
        for i, each in enumerate(values.T):
            alike[fold.index.value] = np.full(len(each), i)
            there = np.full(len(each), True)
            if fold.condition is not None:
                there = _value(fold.condition, alike, arrays)
            chosen = _run(fold.body, _chosen(alike, there), arrays)
            each[there] = _value(fold.value, chosen, arrays)
        result[counts == count] = combine_taps(fold.combiner, values)
    return result


def _chosen(points: _Points, which: np.ndarray) -> _Points:
    return {name: array[which] for name, array in points.items()}


def _inside(at: np.ndarray, array: np.ndarray) -> np.ndarray:
    if at.size and not 0 <= at.min() <= at.max() < array.size:
        raise IndexError(f"elements {at.min()} to {at.max()} of {array.size}")
    return at


def _value(expr: Expr, points: _Points, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """An expression at each point."""
    count = len(points[TASK.value])
    if expr.op == "select":  # reads no more than what it chooses
        chosen = _value(expr.args[0], points, arrays)
        a, b = (
            _value(each, _chosen(points, which), arrays)
            for each, which in zip(expr.args[1:], (chosen, ~chosen), strict=True)
        )
        result = np.empty(count, a.dtype)
        result[chosen], result[~chosen] = a, b
        return result
    args = [_value(each, points, arrays) for each in expr.args]
    match expr.op:
        case "const" | "size":
            number = expr.number if expr.op == "size" else expr.value
            return np.full(count, number, expr.dtype.replace("bits", "uint"))
        case "var":
            return points[expr.value]
        case "load":
            array = arrays[expr.value.name]
            return array[_inside(args[0], array)]
        case "cast" if expr.dtype in INT8_DTYPES:  # the nearest of its numbers, of NaN the least
            bounds = np.iinfo(expr.dtype)
            return np.fmin(np.fmax(args[0], bounds.min), bounds.max).astype(expr.dtype)
        case "cast":
            return args[0].astype(expr.dtype)
        case "compute":
            return run_code(expr.value, args, np.dtype(expr.dtype))
        case "div" | "mod":
            if (args[0] < 0).any() or (args[1] <= 0).any():
                raise ZeroDivisionError("a division of or by a negative number or zero")
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[expr.op][1](*args))
