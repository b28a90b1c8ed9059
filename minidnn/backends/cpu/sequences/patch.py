"""The planes of a patch as the steps of a sequence address them, and the printer of windows.

A plane of a patch is in a thread's scratch memory (a ring buffer of rows), in a tensor of the
caller, or in both.  The functions that steps are printed as are shared by kernels.

A window is printed for several rows and columns of outputs at once, which share work.  Rows outside
of the plane are read from a row that holds the window's identity, columns outside of it from margin
columns of each row of a buffer, which hold it as well: so the same code computes the inside and the
edges.  Maxima are reduced down columns first; a column's maximum serves every output of its row
that reads it, and two neighbouring outputs share the part of the window that they have in common.
A maximum keeps the order of its operands (of equal ones the last is taken), so sharing changes no
bit; sums keep the order of the reference, rows first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ....fusion.plan import KernelPlan
from ....graph.window import COMBINERS, CombinerName, Window, WindowAxis
from ...codegen.code import Code
from ...codegen.dialect import ISPC, literal
from ...codegen.kernel import shared_function
from ...codegen.taps import combine_text, is_looped, print_count
from ..tensor import ELEMENTS, Access, Element

CARRIED = 8
CARRIED_SUMS = 4
"""The widest windows, of maxima and of sums, that carry the columns which the next output reads
again in variables (fusion.sequence overwrites what such windows read)."""


def print_identity(reduction: CombinerName) -> str:
    """The identity of a reduction: the value of padding, which changes no result."""
    return literal(COMBINERS[reduction].identity)


@dataclass
class WindowPrinter:
    """Prints one window over ``rows`` rows of outputs at once.

    ``load(row, column)`` is the expression of the element ``row`` rows and ``column`` columns from
    the first tap of the first output.
    """

    code: Code
    window: Window
    rows: int
    load: Callable[[int, int], str]
    #: Whether a maximum may lose a NaN.
    fast: bool

    @staticmethod
    def rows_at_once(window: Window) -> int:
        """The rows of outputs to print at once: two where their windows have rows in common."""
        axis = window.whole[0]
        return 2 if axis.dilation == 1 and axis.stride < axis.kernel <= CARRIED else 1

    @property
    def taken_rows(self) -> list[int]:
        """Rows that are read, counted from the first tap of the first output."""
        return sorted({o for r in range(self.rows) for o in _taps(self.window.whole[0], r)})

    @property
    def _carried(self) -> int:
        """How many columns of one output's window are kept for the next output; 0 for none."""
        axis = self.window.whole[1]
        widest = CARRIED if self.window.combiner.chooses else CARRIED_SUMS
        if axis.dilation > 1 or axis.kernel > widest:
            return 0
        return max(0, axis.kernel - axis.stride)

    def begin(self) -> None:
        """Prints what comes before the loop over columns: the columns that are carried."""
        for column in range(self._carried):
            self._take(column)

    def outputs(self, count: int) -> list[list[str]]:
        """Prints ``count`` columns of outputs; returns the names of the results, row by row."""
        across = self.window.whole[1]
        carried = self._carried
        columns = sorted({o for c in range(count) for o in _taps(across, c)})
        for column in columns:
            if column >= carried:
                self._take(column)
        if self.window.combiner.chooses:
            results = [self._maxima(row, count) for row in range(self.rows)]
        else:
            results = self._sums(count)
        if carried:
            for column in range(carried):
                later = self._names(column + count * across.stride)
                self.code.lines(
                    f"{a} = {b};" for a, b in zip(self._names(column), later, strict=True)
                )
        return results

    def _names(self, column: int) -> list[str]:
        if self.window.combiner.chooses:
            return [f"m{row}_{column}" for row in range(self.rows)]
        return [f"e{row}_{column}" for row in self.taken_rows]

    def _take(self, column: int) -> None:
        """Loads a column of elements; for a maximum, reduces it for each row of outputs."""
        if not self.window.combiner.chooses:
            for row, name in zip(self.taken_rows, self._names(column), strict=True):
                self.code.line(f"float {name} = {self.load(row, column)};")
            return
        elements = {}
        for row in self.taken_rows:
            elements[row] = self.code.fresh()
            self.code.line(f"float {elements[row]} = {self.load(row, column)};")
        ranges = [[elements[o] for o in _taps(self.window.whole[0], r)] for r in range(self.rows)]
        for name, value in zip(self._names(column), self._reduced(ranges), strict=True):
            self.code.line(f"float {name} = {value};")

    def _maxima(self, row: int, count: int) -> list[str]:
        across = self.window.whole[1]
        ranges = [[f"m{row}_{o}" for o in _taps(across, c)] for c in range(count)]
        return self._reduced(ranges)

    def _reduced(self, ranges: list[list[str]]) -> list[str]:
        """The maximum of each list; what two lists have in common is reduced once."""
        if len(ranges) == 2:
            first, second = ranges
            shared = [name for name in first if name in second]
            if len(shared) > 1:
                middle = self._chain(shared)
                before = first[: len(first) - len(shared)]
                after = second[len(shared) :]
                return [self._chain([*before, middle]), self._chain([middle, *after])]
        return [self._chain(names) for names in ranges]

    def _chain(self, names: list[str]) -> str:
        """Reduces elements from left to right; returns the result's name."""
        total = names[0]
        for name in names[1:]:
            fresh = self.code.fresh()
            self.code.line(f"float {fresh} = {self._combined(total, name)};")
            total = fresh
        return total

    def _combined(self, a: str, b: str) -> str:
        if self.fast and self.window.reduction == "max":
            return f"({a} > {b} ? {a} : {b})"
        return combine_text(ISPC, self.window.combiner, a, b)

    def _sums(self, count: int) -> list[list[str]]:
        """Adds the taps of each row, once for all outputs that read it, then the rows."""
        down, across = self.window.whole
        identity = print_identity(self.window.reduction)
        sums: dict[tuple[int, int], str] = {}
        for row in self.taken_rows:
            for c in range(count):
                sums[row, c] = self._chain([f"e{row}_{o}" for o in _taps(across, c)])
        return [
            [
                # The reference begins with the identity: without it minus zero would differ.
                f"({self._combined(self._chain([sums[o, c] for o in _taps(down, r)]), identity)})"
                for c in range(count)
            ]
            for r in range(self.rows)
        ]


def _taps(axis: WindowAxis, output: int) -> list[int]:
    """The positions of an output's taps along an axis, from the first tap of output 0 on."""
    return [output * axis.stride + tap * axis.dilation for tap in range(axis.kernel)]


def overhang(axis: WindowAxis, size: int) -> tuple[int, int]:
    """How many positions before and after the plane an output's taps reach."""
    last_tap = axis.tap(axis.output_size(size) - 1, axis.kernel - 1)
    return axis.padding[0], max(0, last_tap - (size - 1))


def print_divisor(window: Window, extent: tuple[int, int], row: str, column: str) -> str:
    """Prints how many taps count at a position: a constant, or an expression of the position."""
    counts = window.divisors(extent)
    if all(len(set(table.tolist())) == 1 for table in counts):
        return f"({int(counts[0][0]) * int(counts[1][0])}.0f)"
    parts = []
    for name, axis, size, table in zip((row, column), window.whole, extent, counts, strict=True):
        if len(set(table.tolist())) == 1:
            parts.append(str(int(table[0])))
            continue
        parts.append(print_count(window, axis, name, size))
    return f"(uniform float)({parts[0]} * {parts[1]})"


@dataclass
class Storage:
    """A ring buffer in scratch memory that planes share.

    Each row has margin columns for windows that read beyond the plane.
    """

    lanes: int
    rows: int
    columns: int
    members: list[int] = field(default_factory=list)
    #: Margin columns before and after each row; they hold the identity of ``reduction``.
    before: int = 0
    after: int = 0
    reduction: CombinerName | None = None

    @property
    def pitch(self) -> int:
        """Floats from one row to the next."""
        return (self.before + self.columns + self.after) * self.lanes

    def span(self, plan: KernelPlan) -> tuple[int, int]:
        """The begin and the end of the columns that the first column of patches keeps."""
        (patch, *_) = plan.patches(1)
        spans = [plan.planes[number].columns.interval(*patch) for number in self.members]
        return min(begin for begin, _ in spans), max(end for _, end in spans)


def storages_of(plan: KernelPlan, lanes: int) -> list[Storage]:
    """The storages of a plan's buffers, in their order."""
    storages: dict[int, Storage] = {}
    for number, plane in enumerate(plan.planes):
        if plane.buffer is not None:
            buffer = plane.buffer
            storage = storages.setdefault(
                buffer.storage, Storage(lanes, buffer.rows, buffer.columns)
            )
            storage.members.append(number)
    for step in plan.steps:
        for operation in step.operations:
            if operation.window is None or is_looped(operation.window):
                continue
            source = plan.planes[operation.operands[0]]
            assert source.buffer is not None
            storage = storages[source.buffer.storage]
            before, after = overhang(operation.window.whole[1], source.extent[1])
            storage.before = max(storage.before, before)
            storage.after = max(storage.after, after)
            storage.reduction = storage.reduction or operation.window.reduction
    return [storages[i] for i in sorted(storages)]


def identity_columns(plan: KernelPlan) -> int:
    """The most columns that a window reads of a row outside of the plane."""
    columns = 0
    for step in plan.steps:
        outputs = max(
            end - begin for begin, end in map(lambda p: step.columns.interval(*p), plan.patches(1))
        )
        for operation in step.operations:
            if operation.window is not None and not is_looped(operation.window):
                _, axis = operation.window.whole
                columns = max(columns, (outputs - 1) * axis.stride + axis.reach)
    return columns


@dataclass(frozen=True)
class Ring:
    """How a plane in a :class:`Storage` is addressed; ``pointer`` and ``shift`` are arguments."""

    rows: int
    #: Floats from one row to the next.
    pitch: int
    pointer: str
    shift: int
    #: The column of a ring's row that holds the plane's column 0, as an expression.
    origin: str


@dataclass(frozen=True)
class CallerTensor:
    """An input or output of the kernel: how its lanes are accessed, and the caller's variables
    with its pointer and the lanes' offsets."""

    access: Access
    pointer: str
    #: Elements from one pixel to the next, pixels of a row, and elements from one channel (or
    #: block of channels) to the next.
    pixel: int
    columns: int
    plane: int
    lanes: str = ""
    #: Lanes that an output has to fill, with zeros past its channels.
    fill: str = ""
    #: The part of an output that is written, if it is not all that is computed.
    rows: tuple[str, str] | None = None
    own_columns: tuple[str, str] | None = None
    #: Whether it is so large that caches would not keep it until it is read.
    is_large: bool = False
    element: Element = ELEMENTS["float32"]


@dataclass(frozen=True)
class PlaneView:
    """A plane as a step addresses it: in a ring buffer, in tensors of the caller, or in both."""

    extent: tuple[int, int]
    ring: Ring | None = None
    input: CallerTensor | None = None
    output: CallerTensor | None = None
    #: Whether the ring's edge columns hold the identity of the window that reads it.
    padded: bool = True


@dataclass
class StepFunction:
    """A step's function: its text, with <name> for its name, the arguments of one call, and the
    scratch memory for transposed rows, in floats."""

    text: str
    arguments: list[str]
    scratch_floats: int


class StepFunctions:
    """The functions of a kernel's steps, and calls of them."""

    def __init__(self) -> None:
        #: By text, the placeholder of the name until all calls are known.
        self._marks: dict[str, str] = {}
        #: By mark, the arguments of each call that are numbers.
        self._constants: dict[str, set[tuple[str, ...]]] = {}

    def call(self, function: StepFunction) -> str:
        mark = self._marks.setdefault(function.text, f"$_s{len(self._marks)}")
        constants = ("" if re.search("[a-z]", each) else each for each in function.arguments)
        self._constants.setdefault(mark, set()).add(tuple(constants))
        return f"{mark}({', '.join(['yb', 'ye', *function.arguments])});"

    def named(self, text: str) -> tuple[str, list[str]]:
        """Puts the functions' names into a text with calls; returns it, and the functions."""
        functions = {
            mark: shared_function("seq_step", function, *sorted(self._constants[mark]))
            for function, mark in self._marks.items()
        }
        text = re.sub(r"\$_s\d+", lambda mark: functions[mark[0]][0], text)
        return text, [function for _, function in functions.values()]
