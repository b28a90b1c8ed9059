"""Prints one step over the rectangle of a plane that a thread keeps in registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from minidnn.graph.window import COMBINERS, Window

from ....fusion.plan import KernelPlan, PlanOperation
from ..prelude import TYPES
from .grid import Grid, is_number, phases_of, reach_of, taps_along
from .pack import Pack
from .taps import Tap, TapReduction
from .view import Function
from .window import Finish, identity_text, reduce_ranges, shares

Cells = dict[tuple[int, int], str]


@dataclass
class _Surroundings:
    """The elements of a plane in and around a rectangle: the variables of those that are loaded,
    and the slots of edges that are not."""

    names: Cells
    edges: Cells = field(default_factory=dict)


@dataclass
class RectanglePrinter:
    """Prints a step as a device function of the arrays of registers that it reads and writes.

    Variables that it uses: ``thread``, ``ty``, ``tx``, ``y``, ``x``, ``in`` with a plane's number
    (a staged input), ``corner`` (the rectangle's offset there) and ``edges``.
    """

    plan: KernelPlan
    operations: Sequence[PlanOperation]
    grid: Grid
    #: The arrays of registers of planes that outlive a step.
    arrays: Mapping[int, int]
    positive: frozenset[int]
    triples: bool
    #: The dtypes that results are rounded to when they are computed.
    dtypes: Mapping[int, str]
    #: Where the slots of a window's two phases begin, and from one slot of a thread to the next.
    phase_offsets: tuple[int, int]
    pitch: int
    barrier: str
    #: The condition for a position of the rectangle to be in the plane.
    inside: Callable[[int, int], str]
    #: Dtypes of staged planes whose rows are moved by 32-bit words.
    by_words: frozenset[str] = frozenset()
    #: The vectors of the call, in the order of its ``<vector k>``.
    vectors: list[int] = field(default_factory=list)
    names: dict[tuple[int, int, int], str] = field(default_factory=dict)
    #: The variables of inputs with one element for a plane.
    numbers: dict[int, str] = field(default_factory=dict)

    def print(self) -> Function:
        self.function = Function()
        self.code = self.function.body
        self.pack = Pack(self.code, 1)
        for name in ("thread", "ty", "tx", "y", "x", "corner"):
            self._pass("const int", name)
        self._pass("float *const", "edges")
        self.code.line("MD_SHARED;")
        self.local = {
            number: k
            for k, number in enumerate(
                dict.fromkeys(n for o in self.operations for n in (*o.operands, o.result))
            )
        }
        for number in self.local:
            if number in self.arrays:
                self._array(number)
        totals: Cells = {}
        for operation in self.operations:
            for number in operation.vectors:
                self._vector(number)
            if operation.window is not None:
                totals = self._window(operation, operation.window)
        for row in range(self.grid.rows):
            for column in range(self.grid.columns):
                self._position(row, column, totals)
        return self.function

    def _pass(self, type: str, name: str) -> None:
        self.function.formals.append(f"{type} {name}")
        self.function.actuals.append(name)

    def _array(self, number: int) -> None:
        """Declares the array of a plane under the plane's own number in this step."""
        size = self.grid.rows * self.grid.columns
        array = self.function.take(f"float (&{{}})[{size}]", f"r{self.arrays[number]}")
        self.code.line(f"float (&x{self.local[number]})[{size}] = {array};")

    def _vector(self, number: int) -> None:
        if number not in self.vectors:
            self.vectors.append(number)
            index = len(self.vectors) - 1
            pointer = self.function.take("const float *__restrict__ const", f"<vector {index}>")
            self.code.line(f"const float v{index} = *{pointer};")

    # A position

    def _position(self, row: int, column: int, totals: Cells) -> None:
        for operation in self.operations:
            if operation.window is not None:
                name = self._windowed(operation, operation.window, totals[row, column], row, column)
            else:
                operands = [self._operand(n, row, column) for n in operation.operands]
                vectors = [f"v{self.vectors.index(n)}" for n in operation.vectors]
                name = f"p{self.local[operation.result]}_{row}_{column}"
                dtype = self.dtypes[operation.result]
                stored = self.plan.planes[operation.result].dtype
                self.pack.compute(name, operation.code, [*operands, *vectors], dtype, stored)
            self.names[operation.result, row, column] = name
        for operation in self.operations:
            if operation.result in self.arrays:
                name = self.names[operation.result, row, column]
                self.code.line(f"{self._element(operation.result, row, column)} = {name};")
            if self.plan.planes[operation.result].output in self.plan.summed:
                self._add(operation.result, row, column)

    def _add(self, number: int, row: int, column: int) -> None:
        """Adds an element of a plane to the thread's sum; where the variance is wanted, its
        distance from the thread's first element, and the square of that."""
        total = self.function.take("float &", f"sum{number}")
        test, name = self.inside(row, column), self.names[number, row, column]
        condition = f"if ({test}) " if test else ""
        if self.plan.planes[number].output not in self.plan.spread:
            self.code.line(f"{condition}{total} += {name};")
            return
        first = self.function.take("float &", f"first{number}")
        squares = self.function.take("float &", f"squares{number}")
        if (row, column) == (0, 0):
            self.code.line(f"{first} = {name};")
        distance = self.code.fresh()
        self.code.line(f"const float {distance} = {name} - {first};")
        line = f"{total} += {distance}, {squares} += {distance} * {distance};"
        self.code.line(condition + line)

    def _windowed(
        self, operation: PlanOperation, window: Window, total: str, row: int, column: int
    ) -> str:
        """Prints the finish of a window at a position."""
        source = self.plan.planes[operation.operands[0]]
        finish = Finish(self.pack, window, source.extent, source.dtype, branch=True)
        name = f"p{self.local[operation.result]}_{row}_{column}"
        at = f"y + {row}", f"x + {column}"
        return finish.print(name, total, *at, self.dtypes[operation.result])

    def _element(self, number: int, row: int, column: int) -> str:
        return f"x{self.local[number]}[{row * self.grid.columns + column}]"

    def _operand(self, number: int, row: int, column: int) -> str:
        """Returns the variable of an operand at a position, and loads it if it is a staged
        input."""
        if (number, row, column) in self.names:
            return self.names[number, row, column]
        if number in self.arrays:
            return self._element(number, row, column)
        plane = self.plan.planes[number]
        if is_number(self.plan, plane):
            return self._number(number, plane.dtype)
        dtype = plane.dtype
        staged = self.function.take(f"const {TYPES[dtype]} *const", f"in{number}")
        at = f"{staged} + corner + {row * self.plan.anchor[1]}"
        if dtype in self.by_words:
            return self._row_of_halves(number, row, column, at)
        name = f"q{self.local[number]}_{row}_{column}"
        self.pack.load(name, f"{at} + {column}", self.inside(row, column))
        self.names[number, row, column] = name
        return name

    def _number(self, number: int, dtype: str) -> str:
        """Loads the one element that an input has for a whole plane."""
        if number not in self.numbers:
            pointer = self.function.take(f"const {TYPES[dtype]} *__restrict__ const", f"t{number}")
            self.numbers[number] = f"n{self.local[number]}"
            self.pack.load(self.numbers[number], pointer)
        return self.numbers[number]

    def _row_of_halves(self, number: int, row: int, column: int, at: str) -> str:
        """Loads a whole row of the rectangle; elements beyond the plane's last column are of the
        next row, or undefined."""
        name, columns = f"q{self.local[number]}_{row}", self.grid.columns
        Pack(self.code, columns).load(name, at, self.inside(row, 0), function="md_load_row")
        self.names.update({(number, row, c): f"{name}[{c}]" for c in range(columns)})
        return self.names[number, row, column]

    # Windows

    def _window(self, operation: PlanOperation, window: Window) -> Cells:
        """Returns the window at every position, reduced (of sums, before they are divided)."""
        if not window.is_plain:
            return self._tapped(operation, window)
        (source,) = operation.operands
        positive = source in self.positive
        cells: Cells = {}
        for row in range(self.grid.rows):
            for column in range(self.grid.columns):
                name = self._operand(source, row, column)
                test = self.inside(row, column)
                if test:
                    fresh = self.code.fresh()
                    self.pack.declare(
                        fresh, f"{test} ? {name} : {identity_text(self.pack, window)}"
                    )
                    name = fresh
                cells[row, column] = name
        phases = phases_of(window)
        for phase, axis in enumerate(phases):
            cells = self._along(phase, axis, window, cells, positive)
        if len(phases) == 1:
            self.code.line(self.barrier)  # the next step writes to the same slots
        return cells

    def _tapped(self, operation: PlanOperation, window: Window) -> Cells:
        """Reduces a window with computed taps, tap by tap in the reference's order.  Elements that
        a thread lacks come from the threads above and below, then from those to the left and right,
        which pass on what they received."""
        under, here = operation.operands[: window.under], operation.operands[window.under :]
        planes = [self._surroundings_of(number) for number in under]
        for phase, axis in enumerate(phases := phases_of(window)):
            self._exchange(phase, axis, window, planes, phase == len(phases) - 1)
        down, across = map(taps_along, window.axes)
        reduction = TapReduction(self.pack, window, self.plan.anchor, under[0] in self.positive)
        totals: Cells = {}
        for row, column in product(range(self.grid.rows), range(self.grid.columns)):
            centre = [self._operand(number, row, column) for number in here]
            taps = [
                [
                    Tap(
                        [self._known(plane, (row + y, column + x)) for plane in planes],
                        window.numbered(i, j),
                        self._in_plane(row + y, column + x),
                    )
                    for x, j in across
                ]
                for y, i in down
            ]
            totals[row, column] = reduction.print(taps, centre)
        if len(phases) == 1:
            self.code.line(self.barrier)  # the next step writes to the same slots
        return totals

    def _surroundings_of(self, number: int) -> _Surroundings:
        """The elements of a plane that a thread has before edges are exchanged."""
        positions = product(range(self.grid.rows), range(self.grid.columns))
        return _Surroundings({position: self._operand(number, *position) for position in positions})

    def _known(self, plane: _Surroundings, position: tuple[int, int]) -> str:
        """Returns the element at a position, which is loaded if it was not."""
        if position not in plane.names:
            plane.names[position] = self._edge(plane.edges[position])
        return plane.names[position]

    def _exchange(
        self, phase: int, axis: int, window: Window, planes: Sequence[_Surroundings], last: bool
    ) -> None:
        """Writes edges along an axis for both neighbours, and notes the slots of theirs.  Those of
        the last exchange are loaded where they are needed, so that few wait in registers; others at
        once, since the next step's first exchange writes to the same slots."""
        reach = reach_of(window)
        before, after = reach[axis]
        length = (self.grid.rows, self.grid.columns)[axis]
        lines = range(self.grid.columns)
        if axis == 1:
            lines = range(-reach[0][0], self.grid.rows + reach[0][1])

        def slot(k: int, edge: int, line: int, thread: str) -> str:
            number = (k * (before + after) + edge) * len(lines) + lines.index(line)
            return f"edges[{self.phase_offsets[phase] + number * self.pitch} + {thread}]"

        sent = [*range(length - before, length), *range(after)]
        for k, plane in enumerate(planes):
            for line, (edge, position) in product(lines, enumerate(sent)):
                name = self._known(plane, _cell(axis, position, line))
                self.code.line(f"{slot(k, edge, line, 'thread')} = {name};")
        self.code.line(self.barrier)
        low, high = self._neighbours(axis, window)
        received = [*range(-before, 0), *range(length, length + after)]
        for k, plane in enumerate(planes):
            for line, (edge, position) in product(lines, enumerate(received)):
                whose = low if position < 0 else high
                cell = _cell(axis, position, line)
                plane.edges[cell] = slot(k, edge, line, whose)
                if not last:
                    self._known(plane, cell)

    def _in_plane(self, row: int, column: int) -> str:
        """The condition for a position in or around the rectangle to be in the plane."""
        grid, tests = self.grid, []
        for name, at, each, count, size in (
            ("y", row, grid.rows, grid.down, self.plan.anchor[0]),
            ("x", column, grid.columns, grid.across, self.plan.anchor[1]),
        ):
            if at < 0:
                tests.append(f"{name} > 0")
            elif (count - 1) * each + at >= size:
                tests.append(f"{name} + {at} < {size}")
        return " && ".join(tests)

    def _along(self, phase: int, axis: int, window: Window, cells: Cells, positive: bool) -> Cells:
        """Reduces along one axis, after an exchange with both neighbours."""
        sides = self.grid.rows, self.grid.columns
        length, lines = sides[axis], sides[1 - axis]
        before, after = reach_of(window)[axis]

        def slot(edge: int, line: int, thread: str) -> str:
            number = edge * lines + line
            return f"edges[{self.phase_offsets[phase] + number * self.pitch} + {thread}]"

        extended: dict[tuple[int, int], str] = {}
        if before + after:
            for line in range(lines):
                for i in range(before):
                    value = cells[_cell(axis, length - before + i, line)]
                    self.code.line(f"{slot(i, line, 'thread')} = {value};")
                for i in range(after):
                    value = cells[_cell(axis, i, line)]
                    self.code.line(f"{slot(before + i, line, 'thread')} = {value};")
            self.code.line(self.barrier)
            low, high = self._neighbours(axis, window)
            for line in range(lines):
                for i in range(before):
                    extended[i - before, line] = self._edge(slot(i, line, low))
                for i in range(after):
                    extended[length + i, line] = self._edge(slot(before + i, line, high))
        extended |= {_cell(axis, *position): name for position, name in cells.items()}
        return self._lines(axis, window, extended, positive)

    def _edge(self, slot: str) -> str:
        """Loads an element from its slot."""
        name = self.code.fresh()
        self.code.line(f"const float {name} = {slot};")
        return name

    def _neighbours(self, axis: int, window: Window) -> tuple[str, str]:
        """Declares the threads with the rectangles before and after; at the plane's ends,
        identities."""
        grid = self.grid
        identity_slot = grid.threads + list(COMBINERS).index(window.reduction)
        place, count, step = ("ty", grid.down, grid.across) if axis == 0 else ("tx", grid.across, 1)
        low, high = self.code.fresh(), self.code.fresh()
        self.code.line(f"const int {low} = {place} > 0 ? thread - {step} : {identity_slot};")
        self.code.line(
            f"const int {high} = {place} < {count - 1} ? thread + {step} : {identity_slot};"
        )
        return low, high

    def _lines(
        self, axis: int, window: Window, extended: dict[tuple[int, int], str], positive: bool
    ) -> Cells:
        """Reduces the elements along an axis, those of neighbours included, for every position."""
        sides = self.grid.rows, self.grid.columns
        length, lines = sides[axis], sides[1 - axis]
        along = window.axes[axis]
        before = reach_of(window)[axis][0]
        step = 2 if shares(window, positive, self.triples) else 1
        cells: Cells = {}
        for line in range(lines):
            for first in range(0, length, step):
                outputs = range(first, min(first + step, length))
                ranges = [
                    [
                        extended[p - before + tap * along.dilation, line]
                        for tap in range(along.kernel)
                    ]
                    for p in outputs
                ]
                results = reduce_ranges(self.pack, window, ranges, positive)
                for position, name in zip(outputs, results, strict=True):
                    cells[_cell(axis, position, line)] = name
        return cells


def _cell(axis: int, position: int, line: int) -> tuple[int, int]:
    """Row and column of a position along an axis, in a line across it; also the other way round."""
    return (position, line) if axis == 0 else (line, position)
