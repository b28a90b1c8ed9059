"""Prints one step of a kernel plan as a function over rows.

Steps of equal text share one function: whatever differs between such steps (the addresses of their
planes, their vectors) is an argument of it.  NCHW tensors are transposed to and from rows of
scratch memory by the functions of :mod:`.transpose`, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ....fusion.plan import PlanOperation
from ....graph.expression import linearize
from ....graph.window import Window
from ...codegen.code import Code
from ...codegen.dialect import ISPC
from ...codegen.taps import TapLoop, TapPrinter, is_looped
from ..tensor import ELEMENTS, Element
from .patch import (
    CallerTensor,
    PlaneView,
    Ring,
    StepFunction,
    WindowPrinter,
    print_divisor,
    print_identity,
)
from .transpose import Move

WORDS = "uniform unsigned int * uniform"
"""The type of ``seen``: for each lane, the bits of the largest magnitude that was loaded."""


@dataclass
class StepPrinter:
    """Prints the operations of one step for one segment of channels.

    ``full``: whether all lanes of the segment's blocks are channels.  ``columns``: the begin and
    the end of the step's columns, as variables of the caller or as numbers, at most
    ``most_columns``.  ``checked``: the inputs whose magnitudes are recorded in ``seen``.
    """

    operations: Sequence[PlanOperation]
    planes: dict[int, PlaneView]
    lanes: int
    full: bool
    columns: tuple[str, str]
    most_columns: int
    #: Whether maxima may lose a NaN.
    fast: bool
    checked: frozenset[int]
    #: The element to which each result is rounded as soon as it is computed.
    rounded: Mapping[int, Element]
    code: Code = field(default_factory=Code)
    #: The function's parameters, and the arguments of this call of it.
    formals: list[str] = field(default_factory=list)
    actuals: list[str] = field(default_factory=list)
    known: dict[tuple[str, object], str] = field(default_factory=dict)
    #: By plane, the pointer to the scratch rows that hold its transposed elements.
    temporaries: dict[int, str] = field(default_factory=dict)
    #: The transposing functions that it calls.
    moves: set[Move] = field(default_factory=set)

    def print(self) -> StepFunction:
        """The function; it is called with the rows to compute before its other arguments."""
        self.window = next((o.window for o in self.operations if o.window is not None), None)
        static = all(text.isdigit() for text in self.columns)
        xb, xe = (
            self.columns if static else (self._argument("uniform int", c, c) for c in self.columns)
        )
        self.static = static
        self.xb, self.xe = xb, xe
        self._make_temporaries()
        code = self.code
        code.line(f"const uniform int n = {xe} - {xb};")
        code.line("if (n <= 0) return;")
        if self._tracks:
            code.line("unsigned int most = 0;")
        if self.temporaries:
            with code.block(
                f"for (uniform int first = yb; first < ye; first += {self.rows_at_once})"
            ):
                code.line(f"const uniform int past = min(first + {self.rows_at_once}, ye);")
                self._load()
                self._rows("first", "past")
                self._save()
        else:
            self._rows("yb", "ye")
        if self._tracks:
            # Meanwhile transposing loads have recorded their magnitudes in ``seen``.
            code.line("seen[programIndex] = max(seen[programIndex], most);")
        formals = ", ".join(["uniform int yb", "uniform int ye", *self.formals])
        text = f"static noinline unmasked void <name>({formals}) {{\n{code}}}\n"
        floats = len(self.temporaries) * self.rows_at_once * self.most_columns * self.lanes
        return StepFunction(text, self.actuals, floats)

    # Arguments

    def _argument(self, type: str, key: object, actual: str) -> str:
        """The parameter for what ``key`` identifies; ``actual`` is its argument in this call."""
        if (type, key) not in self.known:
            name = f"a{len(self.formals)}"
            self.known[type, key] = name
            self.formals.append(f"{type} {name}")
            self.actuals.append(actual)
        return self.known[type, key]

    @property
    def rows_at_once(self) -> int:
        """Rows that are transposed at once: enough to fill tiles, few enough for the L1 cache."""
        return max(2, min(16, 112 // self.most_columns) & ~1)

    @property
    def _tracks(self) -> bool:
        """Whether checked inputs are read element by element, not by transposing loads."""
        return any(
            number in self.checked
            and self.planes[number].input is not None
            and number not in self.temporaries
            for o in self.operations
            for number in o.operands
        )

    def _make_temporaries(self) -> None:
        """Reserves scratch rows for the planes that are transposed."""
        numbers = dict.fromkeys(n for o in self.operations for n in (*o.operands, o.result))
        for number in numbers:
            view = self.planes[number]
            tensor = view.input or view.output
            if tensor is not None and tensor.access == "planar":
                offset = len(self.temporaries) * self.rows_at_once * self.most_columns * self.lanes
                base = self._argument("uniform float * uniform", "rows", "md_rows")
                self.temporaries[number] = f"({base} + {offset})"
        if self.temporaries or self._tracks:
            self._argument(WORDS, "seen", "md_seen")
            self.known[WORDS, "seen"] = "seen"
            self.formals[-1] = f"{WORDS} seen"

    # Transposed rows

    def _load(self) -> None:
        for number, rows in self.temporaries.items():
            view = self.planes[number].input
            if view is not None:
                self._move("load", number, view, rows, "first", "past")

    def _save(self) -> None:
        for number, rows in self.temporaries.items():
            view = self.planes[number].output
            if view is not None:
                begin, end = "first", "past"
                if view.rows is not None:
                    top, bottom = (
                        self._argument("uniform int", (number, i), view.rows[i]) for i in (0, 1)
                    )
                    begin, end = f"max(first, {top})", f"min(past, {bottom})"
                self._move("store", number, view, rows, begin, end)

    def _move(
        self,
        kind: str,
        number: int,
        view: CallerTensor,
        rows: str,
        begin: str,
        end: str,
    ) -> None:
        """Prints calls of the function that transposes rows ``begin`` to ``end`` of a plane."""
        code = self.code
        pointer = self._pointer(number, view)
        channels = "0" if self.full else self._argument("uniform int", "channels", "channels")
        kind = "stream" if kind == "store" and view.is_large else kind
        move = Move.of(kind, view.plane, self.lanes, self.full, view.element)
        self.moves.add(move)
        call, channels = f"if (size > 0) {move.name}", f"{view.plane}, {channels}"
        full_rows = self.static and (self.xb, self.xe) == ("0", str(view.columns))
        if full_rows and view.own_columns is None:
            with code.block(""):
                code.line(f"const uniform int top = {begin};")
                code.line(f"const uniform int size = {end} - top;")
                at = f"{pointer} + top * {view.columns}"
                scratch = f"{rows} + (top - first) * {view.columns * self.lanes}"
                code.line(f"{call}({at}, {channels}, size * {view.columns}, {scratch}, seen);")
            return
        left, right = self.xb, self.xe
        if view.own_columns is not None:
            left, right = (
                self._argument("uniform int", (number, 2 + i), view.own_columns[i]) for i in (0, 1)
            )
            left, right = f"max({self.xb}, {left})", f"min({self.xe}, {right})"
        with code.block(f"for (uniform int y = {begin}; y < {end}; y++)"):
            code.line(f"const uniform int left = {left};")
            code.line(f"const uniform int size = {right} - left;")
            at = f"{pointer} + y * {view.columns} + left"
            scratch = (
                f"{rows} + ((y - first) * {self.most_columns} + left - {self.xb}) * {self.lanes}"
            )
            code.line(f"{call}({at}, {channels}, size, {scratch}, seen);")

    def _pointer(self, number: int, view: CallerTensor) -> str:
        type = view.element.pointer_type(self.planes[number].input is view)
        return self._argument(type, number, view.pointer)

    # Rows

    def _rows(self, begin: str, end: str) -> None:
        code = self.code
        rows_at_once = 1
        if self.window is not None and not is_looped(self.window):
            rows_at_once = WindowPrinter.rows_at_once(self.window)
        code.line(f"uniform int y = {begin};")
        if rows_at_once > 1:
            with code.block(f"for (; y + {rows_at_once} <= {end}; y += {rows_at_once})"):
                self._row_group(rows_at_once)
        with code.block(f"for (; y < {end}; y++)"):
            self._row_group(1)

    def _row_group(self, rows: int) -> None:
        """A group of rows: pointers to rows, then the loop over columns, two at once."""
        code = self.code
        window = None
        if self.window is not None and not is_looped(self.window):
            window = WindowPrinter(code, self.window, rows, self._load_tap, self.fast)
        self._row_pointers(rows, window)
        code.line("uniform int j = 0;")
        if window is not None:
            window.begin()
        columns_at_once = 2 if self.window is None or not is_looped(self.window) else 1
        if columns_at_once > 1:
            with code.block(f"for (; j + {columns_at_once} <= n; j += {columns_at_once})"):
                self._outputs(rows, columns_at_once, window)
        with code.block("for (; j < n; j++)"):
            self._outputs(rows, 1, window)

    def _source(self) -> int:
        return next(o.operands[0] for o in self.operations if o.window is not None)

    def _row_pointers(self, rows: int, window: WindowPrinter | None) -> None:
        code = self.code
        if window is not None:
            assert self.window is not None
            axis = self.window.rows
            first_tap_row = f"y * {axis.stride} - {axis.padding[0]}"
            for offset in window.taken_rows:
                code.line(
                    f"const uniform float * uniform w{offset} = "
                    f"{self._window_row(f'{first_tap_row} + {offset}')};"
                )
        at_position = (n for o in self.operations for n, window in o.reads if window is None)
        for number in dict.fromkeys((*at_position, *(o.result for o in self.operations))):
            view = self.planes[number]
            for row in range(rows):
                if view.ring is not None:
                    at = self._ring_row(number, view.ring, f"y + {row}")
                    code.line(f"uniform float * uniform r{number}_{row} = {at};")
                tensor = view.input or view.output
                if tensor is not None:
                    self._outside_row(number, tensor, row)

    def _outside_row(self, number: int, view: CallerTensor, row: int) -> None:
        element = ELEMENTS["float32"] if number in self.temporaries else view.element
        pointer = element.pointer_type(self.planes[number].input is view)
        if number in self.temporaries:
            pitch = self.most_columns * self.lanes
            at = f"{self.temporaries[number]} + (y + {row} - first) * {pitch}"
        else:
            at = f"{self._pointer(number, view)}"
            if not self._is_flat(number, 0):
                at += f" + (y + {row}) * {view.columns * view.pixel}"
            if not self._is_flat(number, 1):
                at += f" + {self.xb} * {view.pixel}"
        self.code.line(f"{pointer} p{number}_{row} = {at};")

    def _is_flat(self, number: int, axis: int) -> bool:
        """Whether an input has one position along an axis, which is broadcast to all results."""
        view = self.planes[number]
        if view.input is None or view.extent[axis] != 1:
            return False
        return all(
            self.planes[o.result].extent[axis] != 1 for o in self.operations if number in o.operands
        )

    def _ring_row(self, number: int, ring: Ring, row: str, begin: str = "") -> str:
        """The address of a row in a ring buffer, from column ``begin`` on."""
        base = self._argument("uniform float * uniform", ring.pointer, ring.pointer)
        shift = self._argument("uniform int", (number, "shift"), str(ring.shift))
        column = self._argument("uniform int", (number, begin or "at"), begin or self._column(ring))
        slot = f"((uniform unsigned int)({row} + {shift}) % {ring.rows})"
        return f"{base} + {slot} * {ring.pitch} + {column} * {self.lanes}"

    def _column(self, ring: Ring) -> str:
        """The column of a ring's row that holds the step's first column."""
        return f"({self.columns[0]} + {ring.origin})"

    def _window_row(self, row: str) -> str:
        """The address of a row of taps, or of identities where the row is padding."""
        number = self._source()
        view = self.planes[number]
        assert view.ring is not None and self.window is not None
        axis = self.window.columns
        first_column = (
            f"({self.columns[0]} * {axis.stride} - {axis.padding[0]} + {view.ring.origin})"
        )
        at = self._ring_row(number, view.ring, row, first_column)
        # The row that is read where a window's row is padding.
        identity = f"md_identity_{self.window.reduction}"
        identity = self._argument("uniform float * uniform", "identity", identity)
        return f"({row} >= 0 && {row} < {view.extent[0]}) ? {at} : {identity}"

    def _load_tap(self, row: int, column: int) -> str:
        assert self.window is not None
        axis = self.window.columns
        at = f"w{row}[(j * {axis.stride} + {column}) * {self.lanes} + programIndex]"
        return self._guarded(at, f"{column}")

    def _guarded(self, element: str, tap: str) -> str:
        """An element, or the identity where its column is padding that the ring does not hold."""
        view = self.planes[self._source()]
        if view.padded:
            return element
        assert self.window is not None
        axis = self.window.columns
        column = f"(({self.xb} + j) * {axis.stride} - {axis.padding[0]} + {tap})"
        identity = print_identity(self.window.reduction)
        return f"(({column} >= 0 && {column} < {view.extent[1]}) ? {element} : {identity})"

    # Elements

    def _outputs(self, rows: int, columns: int, window: WindowPrinter | None) -> None:
        reduced: list[list[str]] = []
        if window is not None:
            reduced = window.outputs(columns)
        elif self.window is not None:
            reduced = [[""]]
        for row in range(rows):
            for column in range(columns):
                self._element(row, column, reduced[row][column] if reduced else "")

    def _element(self, row: int, column: int, windowed: str) -> None:
        code = self.code
        names: dict[int, str] = {}
        for operation in self.operations:
            if operation.window is not None:
                value = windowed or self._looped_window(operation, operation.window, names)
                result = self._finished(operation, operation.window, value, row, column)
            else:
                arguments = [self._operand(n, names, row, column) for n in operation.operands]
                arguments += [
                    self._argument("float", ("vector", n), f"v{n}") for n in operation.vectors
                ]
                lines, result = ISPC.print_code(operation.code, arguments, code.fresh)
                code.lines(lines)
            result = self._rounded(operation.result, result)
            names[operation.result] = result
            self._store(operation.result, result, row, column)

    def _rounded(self, number: int, result: str) -> str:
        """A result as other steps read it, rounded to its element; the result's name."""
        element = self.rounded[number]
        if element.dtype == "float32":
            return result
        name = self.code.fresh()
        self.code.line(f"float {name} = {element.round(result)};")
        return name

    def _operand(self, number: int, names: dict[int, str], row: int, column: int) -> str:
        if number in names:
            return names[number]
        view = self.planes[number]
        name = self.code.fresh()
        at = f"(j + {column})"
        if view.ring is not None:
            text = f"r{number}_{row}[{at} * {self.lanes} + programIndex]"
            self.code.line(f"float {name} = {text};")
            names[number] = name
            return name
        tensor = view.input
        assert tensor is not None
        if number in self.temporaries:
            text = f"p{number}_{row}[{at} * {self.lanes} + programIndex]"
            self.code.line(f"float {name} = {text};")
        else:
            index = "0" if self._is_flat(number, 1) else f"{at} * {tensor.pixel}"
            self._read(name, number, tensor, f"p{number}_{row}[{index}")
        if not (self._is_flat(number, 0) or self._is_flat(number, 1)):
            names[number] = name
        return name

    def _read(self, name: str, number: int, view: CallerTensor, at: str) -> None:
        """Prints the load of an input's element, whose magnitude is recorded if it is checked."""
        code = self.code
        load = view.element.load
        if view.access == "one":
            code.line(f"float {name} = {load(f'{at}]')};")
        elif view.access == "vector":
            code.line(f"float {name} = {load(f'{at} + programIndex]')};")
        else:
            lanes = self._argument("int", (number, "lanes"), view.lanes)
            channels = self._argument("uniform int", "channels", "channels")
            code.line(f"float {name} = 0.0f;")
            code.line(f"if (programIndex < {channels}) {name} = {load(f'{at} + {lanes}]')};")
        if number in self.checked:
            bits = f"(intbits({name}) & 0x7fffffffu)"
            if not self.full and view.access != "one":
                channels = self._argument("uniform int", "channels", "channels")
                bits = f"(programIndex < {channels} ? {bits} : 0u)"
            code.line(f"most = max(most, {bits});")

    def _store(self, number: int, result: str, row: int, column: int) -> None:
        code, view = self.code, self.planes[number]
        at = f"(j + {column})"
        if view.ring is not None:
            code.line(f"r{number}_{row}[{at} * {self.lanes} + programIndex] = {result};")
        tensor = view.output
        if tensor is None:
            return
        if number in self.temporaries:
            code.line(f"p{number}_{row}[{at} * {self.lanes} + programIndex] = {result};")
            return
        tests = []
        if tensor.rows is not None:
            low, high = (self._argument("uniform int", (number, i), tensor.rows[i]) for i in (0, 1))
            tests.append(f"y + {row} >= {low} && y + {row} < {high}")
        if tensor.own_columns is not None:
            low, high = (
                self._argument("uniform int", (number, 2 + i), tensor.own_columns[i])
                for i in (0, 1)
            )
            where = f"{self.xb} + j + {column}"
            tests.append(f"{where} >= {low} && {where} < {high}")
        test = f"if ({' && '.join(tests)}) " if tests else ""
        base = f"p{number}_{row}[{at} * {tensor.pixel}"
        if self.full and tensor.access == "vector":
            code.line(test + tensor.element.store(f"{base} + programIndex]", result))
            return
        channels = self._argument("uniform int", "channels", "channels")
        fill = self._argument("uniform int", (number, "fill"), tensor.fill)
        lanes = "programIndex"
        if tensor.access != "vector":
            lanes = self._argument("int", (number, "lanes"), tensor.lanes)
        value = f"(programIndex < {channels} ? {result} : 0.0f)"
        store = tensor.element.store(f"{base} + {lanes}]", value)
        code.line(f"{test}{{ if (programIndex < {fill}) {store} }}")

    def _finished(
        self, operation: PlanOperation, window: Window, reduced: str, row: int, column: int
    ) -> str:
        """Applies the window's final expression to reduced taps; the result's name."""
        code = self.code
        if window.is_finished:
            name = code.fresh()
            code.line(f"float {name} = {reduced};")
            return name
        extent = self.planes[operation.operands[0]].extent
        count = print_divisor(window, extent, f"(y + {row})", f"({self.xb} + j + {column})")
        lines, name = ISPC.print_code(linearize(window.finish), [reduced, count], code.fresh)
        code.lines(lines)
        return name

    def _looped_window(
        self, operation: PlanOperation, window: Window, names: dict[int, str]
    ) -> str:
        """Reduces the taps of one output in loops, sharing nothing; the result's name."""
        code = self.code
        under, here = operation.operands[: window.under], operation.operands[window.under :]
        at_output = [self._operand(number, names, 0, 0) for number in here]
        tap = linearize(window.tap)

        def declare(name: str, text: str) -> None:
            code.line(f"float {name} = {text};")

        def assign(name: str, text: str) -> None:
            code.line(f"{name} = {text};")

        def begin() -> None:
            for k, number in enumerate(under):
                ring = self.planes[number].ring
                assert ring is not None
                at = self._ring_row(number, ring, "sy", f"({ring.origin})")
                code.line(f"const uniform float * uniform w{k} = {at};")

        def compute_tap(number: str) -> str:
            read = [f"w{k}[sx * {self.lanes} + programIndex]" for k in range(len(under))]
            arguments = [*read, *at_output, f"((float)({number}))"]
            lines, name = ISPC.print_code(tap, arguments, code.fresh)
            code.lines(lines)
            return name

        loop = TapLoop(code, "uniform int", declare, assign, str, ISPC, window.combiner)
        extent = self.planes[under[0]].extent
        return TapPrinter(loop, window, extent, begin, compute_tap).print("y", f"{self.xb} + j")
