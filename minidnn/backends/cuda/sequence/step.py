"""Prints one step for one segment of channels: a loop over the tiles of a block's threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, gcd

from minidnn.graph.expression import linearize
from minidnn.graph.window import Axis, Window

from ....fusion.plan import Plane, PlanOperation, roundings
from ...codegen.code import Code
from ...codegen.dialect import CUDA
from ...codegen.taps import TapLoop, TapPrinter, is_looped, tap_offset
from .mapping import ThreadTile
from .pack import Pack, Pairs, unit_pack
from .taps import Taps
from .view import Lanes, PlaneView, Span, minus, plus, times
from .window import Finish, WindowPrinter, combine_text, identity_text

FEW_TAPS = 16
"""Windows that are computed tap by tap are unrolled up to so many taps: then all elements are
loaded before the first are combined."""


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """Where a result is stored: all of it or, of an output, the part that the task owns."""

    view: PlaneView
    rows: Span | None = None
    columns: Span | None = None


@dataclass
class StepPrinter:
    """Prints the operations of one step over the tiles of a block's threads."""

    code: Code
    #: Vector n is the printed pointer a<n>, to the element of the block's first channel.
    operations: Sequence[PlanOperation]
    planes: Sequence[Plane]
    #: Views of the planes that are read, and where results are stored.
    sources: Mapping[int, PlaneView]
    targets: Mapping[int, Sequence[StoreTarget]]
    #: The positions that are computed.
    rows: Span
    columns: Span
    tile: ThreadTile
    lanes: Lanes
    #: Planes without negative elements, and whether a maximum of three is one instruction.
    positive: frozenset[int]
    triples: bool
    #: Bytes that each copy from a tensor to a buffer moves at once, by result.
    copies: Mapping[int, int] = field(default_factory=dict)
    names: dict[tuple[int, int, int], str] = field(default_factory=dict)
    #: Operations on the taps of the window, computed before it.
    prologue: Sequence[PlanOperation] = ()

    def __post_init__(self) -> None:
        self.pack = Pack(self.code, self.lanes.pack)
        self.dtypes = roundings(self.operations, self.planes)

    def print(self) -> None:
        code, threads = self.code, self.lanes.threads
        items = self._items()
        if items is not None and items <= threads:
            with code.block("" if items == threads else f"if (threadIdx.x < {items})"):
                code.line("const int item = threadIdx.x;")
                self._item()
            return
        with code.block(""):
            code.line(f"const int items = {self._count()};")
            with code.block(f"for (int item = threadIdx.x; item < items; item += {threads})"):
                self._item()

    # What a thread computes

    def _across(self, axis: int) -> str:
        """The number of tiles along an axis."""
        span, size = (self.rows, self.columns)[axis], (self.tile.rows, self.tile.columns)[axis]
        if span.size is not None:
            return str(ceil(span.size / size))
        length = minus(str(span.end), span.begin)
        return f"({length})" if size == 1 else f"(({length} + {size - 1}) / {size})"

    @property
    def _packs(self) -> int:
        return self.lanes.group // self.lanes.pack

    def _items(self) -> int | None:
        """How many tiles of packs of channels threads compute; None if that is not known here."""
        if self.rows.size is None or self.columns.size is None:
            return None
        down, across = (int(self._across(axis)) for axis in (0, 1))
        return down * across * self._packs

    def _count(self) -> str:
        return " * ".join((self._across(0), self._across(1), str(self._packs)))

    def _item(self) -> None:
        """Prints one tile of a pack of channels: its position, then what is computed there."""
        code, packs = self.code, self._packs
        down, across = self._across(0), self._across(1)
        if not self.lanes.planar:
            code.line(f"const int tx = item / {packs} % {across};")
            code.line(f"const int ty = item / ({packs} * {across});")
            code.line(f"const int c = {times(f'item % {packs}', self.lanes.pack)};")
        elif packs > 1:
            code.line(f"const int tx = item % {across};")
            code.line(f"const int ty = item / {across} % {down};")
            code.line(f"const int c = item / ({across} * {down});")
        else:
            code.line(f"const int tx = item % {across};")
            code.line(f"const int ty = item / {across};")
            code.line("const int c = 0;")
        code.line(f"const int y = {self.rows.begin} + {times('ty', self.tile.rows)};")
        code.line(f"const int x = {self.columns.begin} + {times('tx', self.tile.columns)};")
        with code.block("" if self.lanes.full else "if (c < channels)"):
            self._tile()

    def load_vectors(self) -> None:
        """Declares the elements of vectors for the channels of a pack, from ``c`` on."""
        for number in dict.fromkeys(n for o in self.operations for n in o.vectors):
            if self.lanes.aligned:
                self.code.line(f"float v{number}[{self.lanes.pack}];")
                self.code.line(f"md_load_floats(v{number}, a{number} + c);")
                continue
            channel = "c" if self.lanes.pack == 1 else "c + v"
            self.pack.declare(f"v{number}", f"a{number}[{channel}]")

    def _tile(self) -> None:
        """Prints the operations at the positions of a tile."""
        self.load_vectors()
        at = next((i for i, o in enumerate(self.operations) if o.window is not None), None)
        if at is None:
            for row in range(self.tile.rows):
                self.row(row, [""] * self.tile.columns)
            return
        self.prologue, windowed = self.operations[:at], self.operations[at]
        self.operations = self.operations[at:]
        assert windowed.window is not None
        window, source = windowed.window, windowed.operands[0]
        if is_looped(window):
            self.row(0, [self._tap_by_tap(windowed, window)])
            return
        computed = {o.result for o in self.prologue}
        read = [n for o in self.prologue for n in o.operands if n not in computed] or [source]
        pack = self._pack_of(window, source)
        taps = {n: self._taps(n, pack, window, len(read) > 1) for n in dict.fromkeys(read)}
        for each in taps.values():
            each.begin()
        printer = WindowPrinter(
            pack,
            window,
            self.tile.rows,
            self.tile.columns,
            lambda row, column: self._tap(taps, window, row, column),
            source in self.positive and not isinstance(pack, Pairs),
            self.triples,
        )
        for row, totals in printer.results():
            self.row(row, [self._as_floats(pack, total) for total in totals])

    def _tap_by_tap(self, operation: PlanOperation, window: Window) -> str:
        """Reduces the taps of one output, each computed by itself, and returns the result's
        name."""
        pack, under = self.pack, operation.operands[: window.under]
        here = [pack.at(self._operand(n, 0, 0)) for n in operation.operands[window.under :]]
        computed = {o.result for o in self.prologue}
        operands = (*under, *(n for o in self.prologue for n in o.operands))
        read = [n for n in dict.fromkeys(operands) if n not in computed]

        def compute_tap(
            number: str, at: tuple[str, str] = ("sy", "sx"), tag: str = "", test: str = ""
        ) -> str:
            names = {plane: f"e{k}{tag}" for k, plane in enumerate(read)}
            for plane, name in names.items():
                pack.load(name, self.sources[plane].address(*at, self.lanes), test)
            self._before(names, tag)
            arguments = [*(pack.at(names[n]) for n in under), *here, f"(float)({number})"]
            pack.compute(f"tap{tag}", linearize(window.tap), arguments, "float32")
            return f"tap{tag}"

        extent = self.planes[under[0]].extent
        if window.taps <= FEW_TAPS:
            return self._unrolled(window, extent, compute_tap)
        loop = TapLoop(self.code, "int", pack.declare, self._assign, pack.at, CUDA, window.combiner)
        return TapPrinter(loop, window, extent, lambda: None, compute_tap).print("y", "x")

    def _unrolled(
        self, window: Window, extent: tuple[int, int], compute_tap: Callable[..., str]
    ) -> str:
        """Reduces the taps of one output over planes of ``extent``, without a loop that would wait
        for each; ``compute_tap`` computes a tap from its number, its position, a suffix of names,
        and the condition for it to be inside."""
        pack = self.pack
        rows, columns = (
            [self._tap_at(name, axis, k, size) for k in range(axis.kernel)]
            for name, axis, size in zip("yx", window.axes, extent, strict=True)
        )
        pack.declare("total", identity_text(pack, window))
        for k, (y, down, row_test) in enumerate(rows):
            pack.declare(f"part{k}", identity_text(pack, window))
            for i, (x, across, column_test) in enumerate(columns):
                test = " && ".join(each for each in (row_test, column_test) if each)
                number = f"({down}) * {window.columns.numbers} + {across}"
                tap = compute_tap(number, (y, x), f"{k}_{i}", test)
                combined = combine_text(pack, window, pack.at(f"part{k}"), pack.at(tap), False)
                text = f"{test} ? {combined} : {pack.at(f'part{k}')}" if test else combined
                self._assign(f"part{k}", text)
            combined = combine_text(pack, window, pack.at("total"), pack.at(f"part{k}"), False)
            self._assign("total", combined)
        return "total"

    def _assign(self, name: str, text: str) -> None:
        self.pack.each(f"{self.pack.at(name)} = {text};")

    def _tap_at(self, name: str, axis: Axis, k: int, size: int) -> tuple[str, str, str]:
        """Declares where a tap of the output is along an axis: its position, its number, and the
        condition for it to be inside; empty if it always is."""
        declared, number, outside = tap_offset(f"{name}{k}", axis, name, str(k), size)
        for variable, text in declared.items():
            self.code.line(f"const int {variable} = {text};")
        if outside:
            self.code.line(f"const bool k{name}{k} = !({' || '.join(outside)});")
        return f"s{name}{k}", number, f"k{name}{k}" if outside else ""

    def _pack_of(self, window: Window, source: int) -> Pack:
        """How the elements under a window are held: as they are in memory, if they are float16 or
        bfloat16 of which the maximum is wanted, else as float32."""
        view = self.sources.get(source)
        size = self.lanes.pack
        is_half = view is not None and view.dtype in ("float16", "bfloat16")
        if window.reduction != "max" or not is_half or self.prologue or size % 2:
            return self.pack
        assert view is not None
        return self.pack if view.one_channel else Pairs(self.code, size, view.dtype)

    def _as_floats(self, pack: Pack, name: str) -> str:
        """Returns a pack of float32 with the elements of a pack."""
        if not isinstance(pack, Pairs):
            return name
        fresh = self.code.fresh()
        self.pack.declare(fresh, pack.element(name, "v"))
        return fresh

    def _taps(self, number: int, pack: Pack, window: Window, several: bool) -> Taps:
        view, tag = self.sources[number], f"_{number}_" if several else ""
        spans = self.rows, self.columns
        return Taps(self.code, pack, self.lanes, window, view, *spans, self.tile, tag)

    def _tap(self, taps: Mapping[int, Taps], window: Window, row: int, column: int) -> str:
        """Loads the elements under a tap, and computes the prologue on them."""
        loaded = {number: each.load(row, column) for number, each in taps.items()}
        if not self.prologue:
            return next(iter(loaded.values()))
        self._before(loaded, f"_{row}_{column}")
        name = loaded[self.prologue[-1].result]
        test = next(iter(taps.values())).test(row, column)
        if not test:
            return name
        fresh = self.code.fresh()
        outside = identity_text(self.pack, window)
        self.pack.declare(fresh, f"{test} ? {self.pack.at(name)} : {outside}")
        return fresh

    def _before(self, loaded: dict[int, str], tag: str = "") -> None:
        """Computes the prologue on the elements that were loaded for a tap, and adds its results to
        them."""
        for operation in self.prologue:
            arguments = [self.pack.at(loaded[n]) for n in operation.operands]
            arguments += [self.pack.at(f"v{n}") for n in operation.vectors]
            name = f"r{operation.result}{tag}"
            dtype = self.dtypes[operation.result]
            self.pack.compute(name, operation.code, arguments, dtype, self._stored(operation))
            loaded[operation.result] = name

    def row(self, row: int, totals: Sequence[str]) -> None:
        """Computes the epilogue of the window for one row of the tile, and stores it; ``totals``:
        the reduced window at each of its columns, of sums before they are divided."""
        for column in range(self.tile.columns):
            for operation in self.operations:
                if operation.result in self.copies:
                    continue
                if operation.window is not None:
                    name = self._windowed(operation, totals[column], row, column)
                else:
                    name = self._computed(operation, row, column)
                self.names[operation.result, row, column] = name
        for operation in self.operations:
            for column in range(self.tile.columns):
                if operation.result in self.copies:
                    self._copy(operation, row, column)
                    continue
                unit = self._stored_at_once(operation.result)
                if unit == 1:
                    self._store(operation.result, row, column)
                elif column % unit == 0:
                    self._store_unit(operation.result, row, column, unit)

    def _windowed(self, operation: PlanOperation, total: str, row: int, column: int) -> str:
        window = operation.window
        assert window is not None
        source, name = self.planes[operation.operands[0]], f"p{operation.result}_{row}_{column}"
        finish = Finish(self.pack, window, source.extent, source.dtype)
        at = plus("y", row), plus("x", column)
        return finish.print(name, total, *at, self.dtypes[operation.result])

    def _computed(self, operation: PlanOperation, row: int, column: int) -> str:
        operands = [self.pack.at(self._operand(n, row, column)) for n in operation.operands]
        vectors = [self.pack.at(f"v{n}") for n in operation.vectors]
        name = f"p{operation.result}_{row}_{column}"
        dtype = self.dtypes[operation.result]
        stored = self._stored(operation)
        self.pack.compute(name, operation.code, [*operands, *vectors], dtype, stored)
        return name

    def _stored(self, operation: PlanOperation) -> str:
        """The dtype of a result in memory."""
        return self.planes[operation.result].dtype

    # Memory

    def _inside(self, row: int, column: int) -> list[str]:
        """Conditions for a position of a tile to be computed at all."""
        tests = []
        for name, offset, span, size in (
            ("y", row, self.rows, self.tile.rows),
            ("x", column, self.columns, self.tile.columns),
        ):
            is_even = span.size is not None and span.size % size == 0
            if offset and not is_even:
                tests.append(f"{plus(name, offset)} < {span.end}")
        return tests

    def _operand(self, number: int, row: int, column: int) -> str:
        """Returns the variable that holds a plane at its reader's position, and loads it if need
        be."""
        if (number, row, column) in self.names:
            return self.names[number, row, column]
        view = self.sources[number]
        unit = self._unit([view]) if view.flat == (False, False) else 1
        if unit > 1:
            return self._operand_of_unit(number, row, column, unit)
        name = f"q{number}_{row}_{column}"
        y = "0" if view.flat[0] else plus("y", row)
        x = "0" if view.flat[1] else plus("x", column)
        address = view.address(y, x, self.lanes)
        condition = " && ".join(self._inside(row, column))
        if view.one_channel and self.lanes.pack > 1:
            fresh = self.code.fresh()
            Pack(self.code, 1).load(fresh, address, condition)
            self.pack.declare(name, fresh)
        else:
            self.pack.load(name, address, condition)
        self.names[number, row, column] = name
        return name

    def _operand_of_unit(self, number: int, row: int, column: int, unit: int) -> str:
        """Loads the vector of neighbouring elements that has a position in it."""
        first, view, vector = column // unit * unit, self.sources[number], self.code.fresh()
        address = view.address(plus("y", row), plus("x", first), self.lanes)
        pack = unit_pack(self.code, unit, view.dtype)
        pack.load(vector, address, " && ".join(self._inside(row, first)), pack.zero)
        for i in range(unit):
            name = f"q{number}_{row}_{first + i}"
            self.code.line(f"const float {name} = {pack.element(vector, i)};")
            self.names[number, row, first + i] = name
        return self.names[number, row, column]

    def _copy(self, operation: PlanOperation, row: int, column: int) -> None:
        """Starts a copy from a tensor to a buffer."""
        y, x = plus("y", row), plus("x", column)
        (target,) = self.targets[operation.result]
        source = self.sources[operation.operands[0]].address(y, x, self.lanes)
        tests = " && ".join(self._inside(row, column))
        bytes = self.copies[operation.result]
        to = target.view.address(y, x, self.lanes)
        self.code.line(f"{f'if ({tests}) ' if tests else ''}md_copy<{bytes}>({to}, {source});")

    def _stored_at_once(self, number: int) -> int:
        """How many elements of a row one store writes."""
        targets = self.targets.get(number, ())
        if not targets or any(target.columns is not None for target in targets):
            return 1
        return self._unit([target.view for target in targets])

    def _unit(self, views: Sequence[PlaneView]) -> int:
        """How many neighbouring elements of a tile's row one access moves."""
        begin, size = self.columns.begin, self.columns.size
        if self.pack.size > 1 or not isinstance(begin, int) or size is None:
            return 1
        return gcd(begin, size, self.tile.columns, *(view.unit for view in views))

    def _store_unit(self, number: int, row: int, column: int, unit: int) -> None:
        """Stores a vector of neighbouring elements of a row."""
        names = (self.names[number, row, column + i] for i in range(unit))
        vector = self.code.fresh()
        self.code.line(f"const float {vector}[{unit}] = {{{', '.join(names)}}};")
        y, x = plus("y", row), plus("x", column)
        for target in self.targets.get(number, ()):
            tests = self._inside(row, column)
            if target.rows is not None:
                tests += [f"{y} >= {target.rows.begin}", f"{y} < {target.rows.end}"]
            to = target.view.address(y, x, self.lanes)
            test = f"if ({' && '.join(tests)}) " if tests else ""
            self.code.line(f"{test}md_write({to}, {vector});")

    def _store(self, number: int, row: int, column: int) -> None:
        name = self.names[number, row, column]
        y, x = plus("y", row), plus("x", column)
        for target in self.targets.get(number, ()):
            tests = self._inside(row, column)
            for position, span in ((y, target.rows), (x, target.columns)):
                if span is not None:
                    tests += [f"{position} >= {span.begin}", f"{position} < {span.end}"]
            address = target.view.address(y, x, self.lanes)
            view = target.view
            function = "md_store" if view.shared or view.in_parts else "md_write"
            self.pack.store(address, name, view.dtype, " && ".join(tests), function)
