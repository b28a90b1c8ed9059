"""Lowers element-wise operators and windows over planes of one size; the params are the operands,
vectors with an element for each channel, and the outputs.

Windows read no results of other operators.  Adaptive averages, whose windows follow from the size
of the result, are a kernel of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ...fusion.operations import Operation
from ...graph.expression import linearize
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise, Windowed
from ...graph.window import COMBINERS, MEAN, Window, WindowAxis
from ..ir import (
    Expr,
    FoldRange,
    Kernel,
    Let,
    Param,
    Statement,
    Write,
    compute,
    constant,
    index_of,
    select,
    variable,
)
from ..schedule import AxisSchedule
from .planes import PlaneGrid, PlaneStrides


def why_not(nodes: Sequence[Node], dtypes: Collection[str]) -> str | None:
    """Why :func:`lower` does not take nodes, whose values have these dtypes; None if it does."""
    made = [node.output for node in nodes]
    if not all(isinstance(node.op, (Elementwise, Windowed)) for node in nodes):
        return "it concatenates channels"
    if len({value.type.plane for value in made}) != 1:
        return "its results have several sizes"
    values = [value for node in nodes for value in (*node.inputs, *node.outputs)]
    if (other := next((v.dtype for v in values if v.dtype not in dtypes), None)) is not None:
        return f"it has values of {other}"
    for node in nodes:
        if isinstance(node.op, Windowed):
            how = node.op.window()
            if any(value in made for value in node.inputs[: how.under]):
                return "a window reads what it computes"
            if not all(isinstance(axis, WindowAxis) for axis in how.axes):
                return "a window moves by fractions"
    return None


def lower(
    operations: Sequence[Operation],
    outputs: Sequence[Value],
    layout_of: Callable[[Value], PlaneStrides],
    schedule: AxisSchedule,
    operands: Sequence[Value] = (),
) -> tuple[Kernel, tuple[Value, ...]]:
    """Returns the kernel of operations, and the values that its params are.

    Args:
        outputs: the results that are stored.
        layout_of: the layouts of outputs and of operands from outside, but for vectors.
        operands: values that are read from outside, in the order of the params; by default all.
    """
    made = {operation.output for operation in operations}
    planes = dict.fromkeys(v for o in operations for v in o.operands if v not in made)
    vectors = dict.fromkeys(v.value for o in operations for v in o.vectors)
    values = (*(operands or (*planes, *vectors)), *outputs)
    layouts = {value: layout_of(value) for value in values if value not in vectors}
    layouts |= {
        value: PlaneStrides.over_channels(value.dtype, value.type.size) for value in vectors
    }
    params = {v: Param(f"x{i}", v.dtype, v in outputs) for i, v in enumerate(values)}
    return _Lowering(operations, params, layouts, schedule).kernel(), values


class _Lowering:
    def __init__(
        self,
        operations: Sequence[Operation],
        params: Mapping[Value, Param],
        layouts: dict[Value, PlaneStrides],
        schedule: AxisSchedule,
    ) -> None:
        self.operations, self.params, self.layouts = operations, params, layouts
        first = operations[0].output.type
        batch, plane = first.plane[0], first.plane[2:]
        flat = all(o.window is None for o in operations) and all(
            (each.rows, each.columns) in (plane, (1, 1)) for each in layouts.values()
        )
        for value, each in layouts.items():
            image = 0 if value.type.plane[0] == 1 < batch else each.image
            layouts[value] = replace(each.flat if flat else each, image=image)
        block = max(each.block for each in layouts.values())
        if any(o.window and o.window.whole[1].stride > 1 for o in operations):
            block = max(block, schedule.lanes)  # lanes along a row do not read neighbours
        made = next(layouts[value] for value, param in params.items() if param.is_written)
        self.grid = PlaneGrid(batch, made, schedule, flat, block)
        self.numbers: dict[Value, Expr] = {}
        self.body: list[Statement] = []

    def kernel(self) -> Kernel:
        stored: list[Statement] = []
        for i, operation in enumerate(self.operations):
            under = 0 if operation.window is None else operation.window.under
            read = (*operation.operands[under:], *(v.value for v in operation.vectors))
            arguments = [self._operand(value) for value in read]
            if operation.window is not None:
                result = self._windowed(operation.window, operation.operands, arguments, f"w{i}")
            else:
                result = self._named(f"r{i}", compute(operation.code, arguments, "float32"))
            output = operation.output
            if output in self.params:
                stored.append(self._stored(output, result))
            rounded = result.cast(output.dtype).cast("float32")
            self.numbers[output] = result if rounded == result else self._named(f"n{i}", rounded)
        zeros = [
            (self.layouts[value].padding, self._stored(value, constant(0.0, "float32")))
            for value, param in self.params.items()
            if param.is_written and self.layouts[value].block > 1
        ]
        params, body = [*self.params.values()], (*self.body, *stored)
        return self.grid.kernel("any_size", params, body, zeros)

    def _stored(self, value: Value, result: Expr) -> Write:
        param = self.params[value]
        return Write(param, self.grid.place(param, self.layouts[value]), result.cast(param.dtype))

    def _named(self, name: str, value: Expr) -> Expr:
        """Names a value of the body."""
        self.body.append(Let(variable(name, value.dtype), value))
        return variable(name, value.dtype)

    def _operand(self, value: Value) -> Expr:
        """The value of an operand at the point, which is loaded once."""
        if value not in self.numbers:
            name = f"a{len(self.numbers)}"
            self.numbers[value] = self._named(name, self._read(value))
        return self.numbers[value]

    def _read(self, value: Value, y: Expr | None = None, x: Expr | None = None) -> Expr:
        """Loads an element of a value as float32, at the point or at another row and column."""
        param = self.params[value]
        return param[self.grid.place(param, self.layouts[value], y, x)].cast("float32")

    def _windowed(
        self, how: Window, operands: Sequence[Value], here: Sequence[Expr], name: str
    ) -> Expr:
        """The result of a window at the point."""
        under, grid = operands[: how.under], self.grid
        first, layout = self.params[under[0]].name, self.layouts[under[0]]
        extent = (
            grid.size(f"{first}_rows", layout.rows),
            grid.size(f"{first}_columns", layout.columns),
        )

        def read(y: Expr, x: Expr) -> list[Expr]:
            return [self._read(value, y, x) for value in under]

        body, result = _reduced(how, extent, (grid.y, grid.x), read, here, name)
        self.body += body
        return result


def _reduced(
    window: Window,
    extent: tuple[Expr, Expr],
    at: tuple[Expr, Expr],
    read: Callable[[Expr, Expr], Sequence[Expr]],
    own: Sequence[Expr],
    name: str,
) -> tuple[list[Statement], Expr]:
    """Returns the statements of a window with integer strides at one position of a plane, and its
    result.

    Args:
        extent: rows and columns of the planes under the window.
        at: the row and column of the output.
        read: the elements under the window at a row and a column, in float32.
        own: those of its other operands at the output's position.
        name: the prefix of all names.
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
    inner = FoldRange(line, window.combiner, counts[1], inside[1], lets, value)
    body: list[Statement] = [
        FoldRange(total, window.combiner, counts[0], inside[0], (inner,), line)
    ]
    if window.is_finished:
        return body, total
    rows, columns = map(_counted, [window] * 2, window.whole, at, extent)
    count = rows * columns if window.divisor is None else constant(window.divisor)
    arguments = total, count.cast("int32").cast("float32")
    return [*body, Let(result, compute(linearize(window.finish), arguments, "float32"))], result


def _tap(axis: WindowAxis, at: Expr, tap: Expr, size: Expr) -> tuple[Expr, Expr | None]:
    """The position of a tap, and the condition for it to be inside; None if all are."""
    place = at * axis.stride + (tap * axis.dilation - axis.padding[0])
    inside = axis.ceil_mode or any(axis.padding)
    return place, (place >= 0) & (place < size) if inside else None


def _counted(window: Window, axis: WindowAxis, at: Expr, size: Expr) -> Expr:
    """The number of taps along an axis that count."""
    first = at * axis.stride - axis.padding[0]

    def before(end: Expr) -> Expr:
        """Taps before a position."""
        distance = end - first
        steps = (distance + (axis.dilation - 1)) // axis.dilation
        clipped = select(steps < axis.kernel, steps, axis.kernel)
        return select(distance < 1, 0, clipped)

    if not (axis.ceil_mode or (any(axis.padding) and not window.count_padding)):
        return constant(axis.kernel)
    if window.count_padding:
        return before(size + axis.padding[1])
    return before(size) - before(constant(0))


def lower_adaptive(
    batch: int, given: PlaneStrides, made: PlaneStrides, schedule: AxisSchedule
) -> Kernel:
    """Returns the kernel of an adaptive average, whose params are the operand and the output.

    Each row is added up as the reference does it, then the rows.
    """
    grid = PlaneGrid(batch, made, schedule)
    x, y = Param("x", given.dtype), Param("y", made.dtype, is_written=True)
    top, left, high, wide = map(variable, ("top", "left", "high", "wide"))
    total, line, result = (variable(name, "float32") for name in ("total", "line", "result"))
    body: list[Statement] = []
    for first, count, at, size, axis in (
        (top, high, grid.y, grid.size("x_rows", given.rows), "row"),
        (left, wide, grid.x, grid.size("x_columns", given.columns), "column"),
    ):
        parts = grid.sizes[axis]
        body.append(Let(first, at * size // parts))
        body.append(Let(count, ((at + 1) * size + (parts - 1)) // parts - first))
    place = grid.place(x, given, top + index_of(total), left + index_of(line))
    row = FoldRange(line, COMBINERS["sum"], wide, None, (), x[place].cast("float32"))
    count = (high * wide).cast("float32")
    body += [
        FoldRange(total, COMBINERS["sum"], high, None, (row,), line),
        Let(result, compute(linearize(MEAN), (total, count), "float32")),
        Write(y, grid.place(y, made), result.cast(made.dtype)),
    ]
    return grid.kernel("adaptive", (x, y), body)
