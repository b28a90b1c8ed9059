"""A window at one position of a plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.expression import linearize
from ...graph.window import Window, WindowAxis
from ..ir import Expr, FoldRange, Let, Statement, compute, constant, index_of, select, variable


def joined(
    window: Window,
    extent: tuple[Expr, Expr],
    at: tuple[Expr, Expr],
    read: Callable[[Expr, Expr], Sequence[Expr]],
    own: Sequence[Expr],
    name: str,
) -> tuple[list[Statement], Expr]:
    """What computes a window that moves by whole steps, and the result.

    Args:
        extent: rows and columns of the planes under the window.
        at: the row and column of the output.
        read: the elements under the window at a row and a column, in float32.
        own: those of its other operands at the output's position.
        name: stands in the names of all that is named.
    """
    total, line, result = (variable(f"{name}_{x}", "float32") for x in ("total", "line", "result"))
    taps = index_of(total), index_of(line)
    places, inside = zip(*map(_tap, window.whole, at, taps, extent), strict=True)
    number = taps[0] * window.columns.numbers + taps[1]
    under = [variable(f"{name}_{i}", "float32") for i in range(window.under)]
    values = (*under, *own, number.cast("int32").cast("float32"))
    value = compute(linearize(window.tap), values, "float32")
    lets = tuple(map(Let, under, read(*places)))
    counts = [constant(axis.kernel) for axis in window.axes]
    inner = FoldRange(line, window.joins, counts[1], inside[1], lets, value)
    body: list[Statement] = [FoldRange(total, window.joins, counts[0], inside[0], (inner,), line)]
    if window.is_finished:
        return body, total
    rows, columns = map(_counted, [window] * 2, window.whole, at, extent)
    count = rows * columns if window.divisor is None else constant(window.divisor)
    given = total, count.cast("int32").cast("float32")
    return [*body, Let(result, compute(linearize(window.finish), given, "float32"))], result


def _tap(axis: WindowAxis, at: Expr, tap: Expr, size: Expr) -> tuple[Expr, Expr | None]:
    """Where a tap lies, and the condition that it is inside, unless all are."""
    place = at * axis.stride + (tap * axis.dilation - axis.padding[0])
    inside = axis.ceil_mode or any(axis.padding)
    return place, (place >= 0) & (place < size) if inside else None


def _counted(window: Window, axis: WindowAxis, at: Expr, size: Expr) -> Expr:
    """How many taps count along an axis."""
    first = at * axis.stride - axis.padding[0]

    def before(end: Expr) -> Expr:
        """Taps before a position."""
        left = end - first
        steps = (left + (axis.dilation - 1)) // axis.dilation
        most = select(steps < axis.kernel, steps, axis.kernel)
        return select(left < 1, 0, most)

    if not (axis.ceil_mode or (any(axis.padding) and not window.count_padding)):
        return constant(axis.kernel)
    if window.count_padding:
        return before(size + axis.padding[1])
    return before(size) - before(constant(0))
