"""Prints a lone sum window over channels-last float16 or bfloat16: each thread goes down the rows
of a strip.

A thread has a pack of channels at a few columns.  It reads and converts the elements of each row
under its windows once, sums neighbouring ones, and keeps the sums of the last rows in registers,
while the next row is being loaded.  A tile of four rows reads and sums half of them twice, and its
blocks are too few to fill all multiprocessors evenly: :mod:`.step`'s tiles reach 0.67 to 0.90 of a
copy's rate on an H200, strips 0.88 to 0.93.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from minidnn.graph.window import Window, WindowAxis

from ....fusion.plan import Binding, KernelPlan
from ...codegen.code import Code
from ..expressions import may_diverge
from ..prelude import TYPES
from ..tensor import Tensor
from .mapping import ThreadTile, moves_by_one, pack_of
from .pack import Pack, Pairs
from .step import StepPrinter, StoreTarget
from .vectors import SequenceKernel, kernel_of, vector_at
from .view import Lanes, PlaneView, Span, plus, times
from .window import reduce_ranges, taps_of

NUMBERS = 8
"""Sums of each row that a thread has: of 8 channels, or of 4 at two columns, which shares taps, but
leaves half a thread idle where the number of columns is odd."""

ROWS = 7
"""The approximate rows of a strip.  Taller strips read fewer rows twice, but are too few to fill
all multiprocessors evenly: 14 rows reach 0.81 to 0.86 of a copy's rate where 7 reach 0.89 to 0.94.
"""

MOST_TAPS = 5
"""The most taps along each axis: sums of more rows would leave registers for too few threads."""

THREADS = 128
ENOUGH_THREADS = 1 << 16
"""Half of the threads that a GPU has room for; with fewer, strips are shorter."""

REGISTERS = 80
"""Registers of a thread that computes averages of up to 3x3 alone.  If that is not said, the
compiler takes fewer and waits for memory (0.83 to 0.92 of a copy's rate instead of 0.89 to 0.94);
with 64 or 72 it spills some."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """The strip of a thread: ``pack`` channels at ``columns`` columns, and at most ``rows``
    rows."""

    pack: int
    columns: int
    rows: int


def choose_rolling(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Rolling | None:
    """Returns the strips that a plan is computed by; None if it cannot be, or if that does not
    pay."""
    return next(rollings(plan, binding, tensors), None)


def rollings(plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor]) -> Iterator[Rolling]:
    """Yields the strips that seem fastest, then others to be measured; none if strips do not suit
    the plan."""
    window = _window_of(plan)
    pack = pack_of(binding, tensors)
    if window is None or pack < 2 or any(t.itemsize != 2 or t.is_planar for t in tensors):
        return
    height, width = plan.anchor
    half = NUMBERS // 2
    wide, square = (pack, 1), (min(pack, half), 2)
    is_wide = pack == NUMBERS and width % 2 == 1 and _is_bare(plan, window)
    shapes = [wide, square] if is_wide else [square, wide]
    for pack, columns in dict.fromkeys(shapes):
        strip = Rolling(pack, columns, height)
        rows = ceil(height / max(1, round(height / ROWS)))
        threads = binding.batch * _items(plan, binding, replace(strip, rows=rows))
        while rows > 2 and threads < ENOUGH_THREADS:
            rows, threads = ceil(rows / 2), 2 * threads
        if threads < 1 << 30:
            for each in dict.fromkeys((rows, ceil(rows / 2), min(2 * rows, height), height)):
                yield replace(strip, rows=each)


def _window_of(plan: KernelPlan) -> Window | None:
    """Returns the window of a plan of one step that sums, moves by one position and divides all
    sums by the same number (other divisions take registers that there are not), if its epilogue
    reads nothing but its results.  There are no registers for an epilogue of more than 3x3 taps,
    nor for calls of functions."""
    if len(plan.steps) != 1 or len(plan.steps[0].segments) != 1:
        return None
    first, *others = plan.steps[0].segments[0]
    window = first.window
    if window is None or not window.averages:
        return None
    if any(o.window is not None or may_diverge(o.code) for o in others):
        return None
    source = plan.planes[first.operands[0]]
    if source.input is None or source.one_channel or source.one_image:
        return None
    results = {first.result, *(o.result for o in others)}
    if not results.issuperset(n for o in others for n in o.operands):
        return None
    if any(len(set(table.tolist())) > 1 for table in window.divisors(source.extent)):
        return None
    is_dense = window.whole[0].dilation == 1 and all(map(moves_by_one, window.whole))
    most = 3 if others else MOST_TAPS
    return window if is_dense and all(a.kernel <= most for a in window.whole) else None


def _is_bare(plan: KernelPlan, window: Window) -> bool:
    """Whether ``REGISTERS`` are enough: for windows of up to 3x3 taps without an epilogue."""
    return len(plan.steps[0].segments[0]) == 1 and all(a.kernel <= 3 for a in window.whole)


def _offsets(axis: WindowAxis, columns: int) -> list[int]:
    """The columns under a thread's windows, counted from the first tap."""
    return sorted({tap for column in range(columns) for tap in taps_of(axis, column)})


def _items(plan: KernelPlan, binding: Binding, rolling: Rolling) -> int:
    """How many threads have work in an image."""
    ((begin, end),) = binding.segments
    height, width = plan.anchor
    down, across = ceil(height / rolling.rows), ceil(width / rolling.columns)
    return (end - begin) // rolling.pack * down * across


def print_rolling(
    plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], rolling: Rolling
) -> SequenceKernel:
    """Returns the kernel of a plan whose threads have the strips of ``rolling``."""
    return _Printer(plan, binding, tensors, rolling).print()


class _Printer:
    def __init__(
        self, plan: KernelPlan, binding: Binding, tensors: Sequence[Tensor], rolling: Rolling
    ) -> None:
        self.plan = plan
        self.binding = binding
        self.tensors = tensors
        self.rolling = rolling
        self.operations = plan.steps[0].segments[0]
        window, source = self.operations[0].window, plan.planes[self.operations[0].operands[0]]
        assert window is not None and source.input is not None
        self.window, self.at = window, source.input
        self.source = tensors[self.at]
        ((self.begin, self.end),) = binding.segments

    def print(self) -> SequenceKernel:
        items = _items(self.plan, self.binding, self.rolling)
        total = self.binding.batch * items
        code = Code()
        with code.block(""):
            code.line(f"const unsigned int item = blockIdx.x * {THREADS}u + threadIdx.x;")
            with code.block(f"if (item < {total}u)" if total % THREADS else ""):
                code.line(f"const long long image = item / {items}u;")
                code.line(f"const unsigned int of_image = item % {items}u;")
                self._item(code)
        blocks = ceil(total / THREADS)
        at_once = 65536 // REGISTERS // THREADS if _is_bare(self.plan, self.window) else 0
        return kernel_of(self.binding, self.tensors, code, blocks, THREADS, at_once=at_once)

    def _item(self, code: Code) -> None:
        """Prints a thread's work: channels from ``c``, columns from ``x``, and rows ``yb`` to
        ``ye``."""
        rolling, (height, width) = self.rolling, self.plan.anchor
        packs, across = (self.end - self.begin) // rolling.pack, ceil(width / rolling.columns)
        end = f"yb + {rolling.rows}"
        if height % rolling.rows:
            end = f"min({end}, {height})"
        code.line(f"const unsigned int strip = of_image / {packs}u;")
        code.line(f"const int c = of_image % {packs}u * {rolling.pack};")
        code.line(f"const int x = strip % {across}u * {rolling.columns};")
        code.line(f"const int yb = strip / {across}u * {rolling.rows};")
        code.line(f"const int ye = {end};")
        for at, (slot, tensor) in enumerate(zip(self.binding.slots, self.tensors, strict=True)):
            const = "const " if at < len(self.binding.inputs) else ""
            offset = tensor.offset + self.begin - slot.channel
            where = plus(f"a{at} + image * {tensor.image}", offset)
            code.line(f"{const}{TYPES[tensor.dtype]} *const g{at} = {where};")
        printer = self._step(code)
        printer.load_vectors()
        self._rows(code, printer)

    def _step(self, code: Code) -> StepPrinter:
        """Returns the printer of the window's epilogue at (``y``, ``x``), and of the stores.
        Vectors are numbered after the kernel's tensors."""
        pack, planes, first = self.rolling.pack, self.plan.planes, len(self.tensors)
        targets = {}
        for number in (o.result for o in self.operations):
            at = self.binding.slot_of(planes[number])
            if at is not None:
                targets[number] = [StoreTarget(self._view(f"g{at}", self.tensors[at]))]
        frame = self.end
        for number in dict.fromkeys(n for o in self.operations for n in o.vectors):
            where = vector_at(self.binding, number, str(self.begin))
            code.line(f"const float *const a{first + number} = {where};")
        named = [replace(o, vectors=tuple(first + n for n in o.vectors)) for o in self.operations]
        aligned = all(number % 4 == 0 for number in (pack, self.begin, frame))
        lanes = Lanes(False, self.end - self.begin, pack, THREADS, full=True, aligned=aligned)
        tile = ThreadTile(1, self.rolling.columns)
        spans = Span("yb", "ye"), Span(0, self.plan.anchor[1])
        return StepPrinter(
            code, named, planes, {}, targets, *spans, tile, lanes, frozenset(), False
        )

    def _view(self, pointer: str, tensor: Tensor) -> PlaneView:
        extent = tensor.rows, tensor.columns
        whole = Span(0, extent[0]), Span(0, extent[1])
        steps = tensor.row, tensor.pixel, tensor.channel
        return PlaneView(pointer, tensor.dtype, extent, *whole, *steps, wide=tensor.is_wide)

    # Rows

    def _rows(self, code: Code, printer: StepPrinter) -> None:
        """Prints the loop over a strip's rows, which loads the next row and sums the last."""
        down, sums = self.window.whole[0], Pack(code, self.rolling.pack)
        columns = range(self.rolling.columns)
        self._columns(code)
        before = -down.padding[0]
        for row in range(down.kernel):
            name = f"r{row}" if row < down.kernel - 1 else "last"
            self._load(code, name, plus("yb", before + row), "")
        for row in range(down.kernel - 1):
            for column, total in enumerate(self._summed(code, f"r{row}")):
                sums.declare(f"h{row}_{column}", sums.at(total))
        head = f'_Pragma("unroll {down.kernel}") for (int y = yb; y < ye; y++)'
        with code.block(head):
            self._load(code, "next", plus("y", before + down.kernel), "y + 1 < ye")
            added = self._summed(code, "last")
            kept = [[f"h{row}_{column}" for row in range(down.kernel - 1)] for column in columns]
            ranges = [[*names, new] for names, new in zip(kept, added, strict=True)]
            printer.row(0, reduce_ranges(sums, self.window, ranges, False))
            for names in ranges:
                for name, following in pairwise(names):
                    sums.each(f"{sums.at(name)} = {sums.at(following)};")
            pairs = self._pairs(code)
            for offset in self.offsets:
                name, following = f"last_{offset}", f"next_{offset}"
                pairs.each(f"{pairs.at(name)} = {pairs.at(following)};")

    def _columns(self, code: Code) -> None:
        """Declares the pointer to the first tap's column, and which of the columns are inside."""
        tensor = self.source
        axis, (_, width) = self.window.whole[1], self.plan.anchor
        self.offsets = _offsets(axis, self.rolling.columns)
        self.inside: dict[int, str] = {}
        last = (ceil(width / self.rolling.columns) - 1) * self.rolling.columns
        code.line(f"const int u = {plus('x', -axis.padding[0])};")
        where = f"g{self.at} + {times('u', tensor.pixel, tensor.is_wide)} + c"
        code.line(f"const {TYPES[tensor.dtype]} *const p = {where};")
        for offset in self.offsets:
            low, high = offset - axis.padding[0], last - axis.padding[0] + offset
            if low < 0 or high >= tensor.columns:
                self.inside[offset] = f"j{offset}"
                test = f"(unsigned int)({plus('u', offset)}) < {tensor.columns}u"
                code.line(f"const bool j{offset} = {test};")

    def _load(self, code: Code, name: str, row: str, test: str) -> None:
        """Loads a row as it is in memory; zeros where it is outside or the test does not hold."""
        tensor, pairs = self.source, self._pairs(code)
        at, inside = code.fresh(), code.fresh()
        tests = [*([test] if test else []), f"(unsigned int){at} < {tensor.rows}u"]
        code.line(f"const int {at} = {row};")
        code.line(f"const bool {inside} = {' && '.join(tests)};")
        for offset in self.offsets:
            condition = " && ".join([inside, *filter(None, [self.inside.get(offset)])])
            place = times(at, tensor.row, tensor.is_wide)
            address = f"p + ({place} + {offset * tensor.pixel})"
            pairs.load(f"{name}_{offset}", address, condition, pairs.zero)

    def _summed(self, code: Code, name: str) -> list[str]:
        """Sums the elements of a loaded row under each column's window."""
        pack, pairs = Pack(code, self.rolling.pack), self._pairs(code)
        floats = {}
        for offset in self.offsets:
            floats[offset] = code.fresh()
            pack.declare(floats[offset], pairs.element(f"{name}_{offset}", "v"))
        taps = [taps_of(self.window.whole[1], column) for column in range(self.rolling.columns)]
        return reduce_ranges(
            pack, self.window, [[floats[o] for o in offsets] for offsets in taps], False
        )

    def _pairs(self, code: Code) -> Pairs:
        return Pairs(code, self.rolling.pack, self.source.dtype)
