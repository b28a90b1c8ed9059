"""How printed code addresses planes: the threads and channels of a block, views of planes in shared
memory or in tensors, and steps as device functions.

Functions of equal text are printed, and compiled, once.  What differs between equal steps (the
addresses of their planes, their vectors, the spans of the patch) is passed as arguments.  A
function that is called once is inlined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...codegen.code import Code


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the channels of a block are divided: ``threads`` threads compute ``group`` channels,
    ``pack`` of them each at once.

    Planar: neighbouring threads compute neighbouring pixels, else neighbouring channels. ``full``:
    every block has all channels of its group; else the variable ``channels`` counts them.
    ``aligned``: vectors over channels are aligned to 16 bytes at the first channel of each pack.
    """

    planar: bool
    group: int
    pack: int
    threads: int
    full: bool
    aligned: bool


#: A number known when the kernel is printed, or the name of a variable.
Bound = int | str


@dataclass(frozen=True, slots=True)
class Span:
    """Positions along an axis, the end excluded."""

    begin: Bound
    end: Bound
    #: The number of positions, if it is known though their ends are not.
    length: int | None = None

    @property
    def size(self) -> int | None:
        """The number of positions, if it is known."""
        if self.length is not None:
            return self.length
        if isinstance(self.begin, int) and isinstance(self.end, int):
            return self.end - self.begin
        return None


@dataclass(frozen=True, slots=True)
class PlaneView:
    """A plane in memory; strides are in elements.

    ``pointer`` points to the block's first channel.  Position (y, x) has the offset ``(y -
    rows.begin) * row + (x - columns.begin) * column``; where rows are kept from patch to patch
    (``ring``), row y is at y modulo that many.  ``rows`` and ``columns`` are what the patch has of
    the plane.
    """

    pointer: str
    dtype: str
    extent: tuple[int, int]
    rows: Span
    columns: Span
    row: int
    column: int
    channel: int
    ring: int = 0
    #: Whether it is broadcast along rows and along columns: one position for all of a reader's.
    flat: tuple[bool, bool] = (False, False)
    #: Whether it is broadcast along channels.
    one_channel: bool = False
    #: Whether it is in shared memory, and whether the compiler may split its wide stores.
    shared: bool = False
    in_parts: bool = False
    #: Vector width of row accesses in elements, from each multiple of it on.
    unit: int = 1
    #: Whether its offsets need more than 32 bits.
    wide: bool = False

    def has_channel(self, lanes: Lanes) -> bool:
        """Whether its addresses depend on the channel."""
        return not self.one_channel and lanes.group > 1

    def address(self, y: str, x: str, lanes: Lanes) -> str:
        """Returns the address of position (y, x) of channel ``c``."""
        terms = [self.pointer]
        if y != "0" or self.ring or self.rows.begin != 0:
            terms.append(self.times(self.row_number(y), self.row))
        if x != "0" or self.columns.begin != 0:
            terms.append(self.times(minus(x, self.columns.begin), self.column))
        if self.has_channel(lanes):
            terms.append(self.times("c", self.channel))
        return " + ".join(terms)

    def times(self, text: str, step: int) -> str:
        """Returns the offset of so many strides ``step``."""
        return times(text, step, self.wide)

    def row_number(self, y: str) -> str:
        """Returns the row in memory of the plane's row ``y``."""
        if self.ring:
            return f"(int)((unsigned int)({y}) % {self.ring}u)"
        return minus(y, self.rows.begin)


def minus(text: str, bound: Bound) -> str:
    return text if bound == 0 else f"{text} - {bound}"


def plus(text: str, number: int) -> str:
    if number == 0:
        return text
    return f"{text} + {number}" if number > 0 else f"{text} - {-number}"


def times(text: str, factor: int, wide: bool = False) -> str:
    return text if factor == 1 else f"({text}) * {factor}{'LL' * wide}"


@dataclass
class Function:
    """A device function being printed, with the arguments of one call."""

    body: Code = field(default_factory=Code)
    formals: list[str] = field(default_factory=list)
    actuals: list[str] = field(default_factory=list)
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, type: str, actual: str, role: str = "") -> str:
        """Returns the name of an argument; the same for equal ``actual`` and ``role``.

        The name follows ``type``, or replaces ``{}`` in it.
        """
        key = (role or actual, type)
        if key not in self.known:
            name = f"a{len(self.formals)}"
            self.known[key] = name
            self.formals.append(type.format(name) if "{}" in type else f"{type} {name}")
            self.actuals.append(actual)
        return self.known[key]

    def span(self, span: Span) -> Span:
        """The span as the function sees it: integers stay integers, variables become arguments."""

        def bound(value: Bound) -> Bound:
            return value if isinstance(value, int) else self.take("const int", value)

        return Span(bound(span.begin), bound(span.end), span.length)


@dataclass
class Functions:
    """All device functions of a kernel, by their text.  ``inline``: even those called more than
    once are inlined."""

    inline: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def call(self, function: Function) -> str:
        """Returns a call; ``$`` stands for the kernel's name."""
        text = f"({', '.join(function.formals)}) {{\n{function.body}}}\n"
        self.counts[text] = self.counts.get(text, 0) + 1
        number = list(self.counts).index(text)
        return f"$_{number}({', '.join(function.actuals)});"

    def __str__(self) -> str:
        parts = []
        for number, (text, count) in enumerate(self.counts.items()):
            inline = "__forceinline__" if self.inline or count == 1 else "__noinline__"
            parts.append(f"static __device__ {inline} void $_{number}{text}")
        return "".join(parts)
