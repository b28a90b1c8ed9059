"""Element-wise operators and windows over planes of one size; the params are the operands, vectors
with a number for each channel, and the outputs.

Windows read no results of others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...fusion.operations import Operation
from ...graph.ir import Node, Value
from ...graph.operator import Elementwise, Windowed
from ...graph.window import Window, WindowAxis
from ..ir import Expr, Kernel, Let, Param, Statement, Write, compute, constant, variable
from ..schedule import AxisSchedule
from . import window
from .planes import Grid, Planes


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


def operands_of(operations: Sequence[Operation]) -> tuple[list[Value], list[Value]]:
    """The values from outside that operations read, and the vectors over channels."""
    made = {operation.output for operation in operations}
    read = dict.fromkeys(v for o in operations for v in o.operands if v not in made)
    return [*read], [*dict.fromkeys(v.value for o in operations for v in o.vectors)]


def lower(
    operations: Sequence[Operation],
    operands: Sequence[Value],
    outputs: Sequence[Value],
    lie: Mapping[Value, Planes],
    schedule: AxisSchedule,
) -> Kernel:
    """The kernel of operations.

    Args:
        operands: what they read from outside.
        outputs: what is stored of what they compute.
        lie: how operands, but for vectors, and outputs lie.
    """
    return _Lowering(operations, operands, outputs, lie, schedule).kernel()


class _Lowering:
    def __init__(
        self,
        operations: Sequence[Operation],
        operands: Sequence[Value],
        outputs: Sequence[Value],
        lie: Mapping[Value, Planes],
        schedule: AxisSchedule,
    ) -> None:
        self.operations = operations
        self.params = {v: Param(f"x{i}", v.dtype) for i, v in enumerate(operands)}
        self.results = {v: Param(f"y{i}", v.dtype, True) for i, v in enumerate(outputs)}
        batch = operations[0].output.type.plane[0]
        over_channels = {v: Planes(v.dtype, v.type.size, 1, 1, 0, 1, 0, 0) for v in operands}
        self.lie = over_channels | {**lie}
        made = lie[outputs[0]]
        plane = made.rows, made.columns
        flat = all(o.window is None for o in operations) and all(
            (lies.rows, lies.columns) in (plane, (1, 1)) for lies in self.lie.values()
        )
        for value, lies in self.lie.items():
            image = 0 if value.type.plane[0] == 1 < batch else lies.image
            self.lie[value] = replace(lies.flat if flat else lies, image=image)
        block = max(lies.block for lies in lie.values())
        if any(o.window and o.window.whole[1].stride > 1 for o in operations):
            block = max(block, schedule.lanes)  # neighbours read no neighbours
        self.grid = Grid(batch, self.lie[outputs[0]], schedule, flat, block)
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
            if (y := self.results.get(made)) is not None:
                stored.append(self._stored(y, made, result))
            rounded = result.cast(made.dtype).cast("float32")
            self.numbers[made] = result if rounded == result else self._named(f"n{i}", rounded)
        params = (*self.params.values(), *self.results.values())
        zero = constant(0.0, "float32")
        zeros = [
            (self.lie[value].padding, self._stored(param, value, zero))
            for value, param in self.results.items()
            if self.lie[value].block > 1
        ]
        return self.grid.kernel("any_size", params, (*self.body, *stored), zeros)

    def _stored(self, param: Param, value: Value, result: Expr) -> Write:
        return Write(param, self.grid.place(param, self.lie[value]), result.cast(param.dtype))

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
        return param[self.grid.place(param, self.lie[value], y, x)].cast("float32")

    def _windowed(
        self, how: Window, operands: Sequence[Value], own: Sequence[Expr], name: str
    ) -> Expr:
        under, grid = operands[: how.under], self.grid
        first, lies = self.params[under[0]].name, self.lie[under[0]]
        extent = grid.size(f"{first}_rows", lies.rows), grid.size(f"{first}_columns", lies.columns)

        def read(y: Expr, x: Expr) -> list[Expr]:
            return [self._read(value, y, x) for value in under]

        body, result = window.joined(how, extent, (grid.y, grid.x), read, own, name)
        self.body += body
        return result
