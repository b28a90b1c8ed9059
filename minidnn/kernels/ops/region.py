"""Element-wise operators and windows over planes of one size; the params are the operands, vectors
with a number for each channel, and the outputs.

Windows read no results of others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from ...fusion.operations import Operation
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise, Windowed
from ...graph.window import Window, WindowAxis
from ..ir import Expr, Kernel, Let, Param, Statement, Write, compute, constant, variable
from ..schedule import AxisSchedule
from . import window
from .planes import PlaneGrid, Planes


def why_not(nodes: Sequence[Node], dtypes: Collection[str]) -> str | None:
    """Why :func:`lower` does not take nodes, whose values have these dtypes; None if it does."""
    made = [node.output for node in nodes]
    if not all(isinstance(node.op, (Elementwise, Windowed)) for node in nodes):
        return "it joins channels"
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
    layout_of: Callable[[Value], Planes],
    schedule: AxisSchedule,
    operands: Sequence[Value] = (),
) -> tuple[Kernel, tuple[Value, ...]]:
    """The kernel of operations, and the values that its params are.

    Args:
        outputs: what is stored of what they compute.
        layout_of: how outputs and what operations read from outside lie, but for vectors.
        operands: what they read from outside, in the order of the params; by default all of it.
    """
    made = {operation.output for operation in operations}
    planes = dict.fromkeys(v for o in operations for v in o.operands if v not in made)
    vectors = dict.fromkeys(v.value for o in operations for v in o.vectors)
    values = (*(operands or (*planes, *vectors)), *outputs)
    layouts = {value: layout_of(value) for value in values if value not in vectors}
    layouts |= {value: Planes.over_channels(value.dtype, value.type.size) for value in vectors}
    params = {v: Param(f"x{i}", v.dtype, v in outputs) for i, v in enumerate(values)}
    return _Lowering(operations, params, layouts, schedule).kernel(), values


class _Lowering:
    def __init__(
        self,
        operations: Sequence[Operation],
        params: Mapping[Value, Param],
        layouts: dict[Value, Planes],
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
            block = max(block, schedule.lanes)  # what lanes along a row read are no neighbours
        made = next(layouts[value] for value, param in params.items() if param.is_written)
        self.grid = PlaneGrid(batch, made, schedule, flat, block)
        self.numbers: dict[Value, Expr] = {}
        self.body: list[Statement] = []

    def kernel(self) -> Kernel:
        stored: list[Statement] = []
        for i, operation in enumerate(self.operations):
            under = 0 if operation.window is None else operation.window.under
            read = (*operation.operands[under:], *(v.value for v in operation.vectors))
            given = [self._operand(value) for value in read]
            if operation.window is not None:
                result = self._windowed(operation.window, operation.operands, given, f"w{i}")
            else:
                result = self._named(f"r{i}", compute(operation.code, given, "float32"))
            made = operation.output
            if made in self.params:
                stored.append(self._stored(made, result))
            rounded = result.cast(made.dtype).cast("float32")
            self.numbers[made] = result if rounded == result else self._named(f"n{i}", rounded)
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
        self.body.append(Let(variable(name, value.dtype), value))
        return variable(name, value.dtype)

    def _operand(self, value: Value) -> Expr:
        if value not in self.numbers:
            name = f"a{len(self.numbers)}"
            self.numbers[value] = self._named(name, self._read(value))
        return self.numbers[value]

    def _read(self, value: Value, y: Expr | None = None, x: Expr | None = None) -> Expr:
        param = self.params[value]
        return param[self.grid.place(param, self.layouts[value], y, x)].cast("float32")

    def _windowed(
        self, how: Window, operands: Sequence[Value], own: Sequence[Expr], name: str
    ) -> Expr:
        under, grid = operands[: how.under], self.grid
        first, layout = self.params[under[0]].name, self.layouts[under[0]]
        extent = (
            grid.size(f"{first}_rows", layout.rows),
            grid.size(f"{first}_columns", layout.columns),
        )

        def read(y: Expr, x: Expr) -> list[Expr]:
            return [self._read(value, y, x) for value in under]

        body, result = window.joined(how, extent, (grid.y, grid.x), read, own, name)
        self.body += body
        return result
