"""The threads and channels of a block, how a step addresses a plane (in shared memory, or in a
tensor), and steps as functions.

Functions of equal text are printed, and compiled, once.  What differs between equal steps (where
their planes lie, their vectors, what the patch has of them) are arguments.  A function that is
called once is inlined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...codegen.code import Code


@dataclass(frozen=True, slots=True)
class Lanes:
    """``threads`` compute ``group`` channels, ``pack`` of them each at once.

    Planar: neighbouring threads compute neighbouring pixels, else neighbouring channels.
    ``full``: every block has all channels of its group; else ``channels`` is a variable.
    ``aligned``: numbers of vectors over channels lie at multiples of 16 bytes for each pack.
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
    """Positions along an axis, end not included."""

    begin: Bound
    end: Bound
    #: How many, if that is known though their ends are not.
    length: int | None = None

    @property
    def size(self) -> int | None:
        """How many, if that is known."""
        if self.length is not None:
            return self.length
        if isinstance(self.begin, int) and isinstance(self.end, int):
            return self.end - self.begin
        return None


@dataclass(frozen=True, slots=True)
class PlaneView:
    """A plane that lies in memory.

    ``pointer`` is of the block's first channel.  Position (y, x) lies ``(y - rows.begin) * row +
    (x - columns.begin) * column`` elements on; where rows are kept from patch to patch (``ring``),
    row y lies at y modulo that many.  ``rows`` and ``columns`` are what the patch has of it.
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
    #: Whether it has one position along an axis for all of its readers'.
    flat: tuple[bool, bool] = (False, False)
    #: Whether it has one channel for all.
    one_channel: bool = False
    #: Whether it lies in shared memory, or is left to the compiler to write in parts.
    shared: bool = False
    in_parts: bool = False
    #: How many neighbours of a row one access moves, from each multiple of that many on.
    unit: int = 1
    #: Whether 32 bits may not count its elements.
    wide: bool = False

    def has_channel(self, lanes: Lanes) -> bool:
        """Whether its elements are found by channel."""
        return not self.one_channel and lanes.group > 1

    def address(self, y: str, x: str, lanes: Lanes) -> str:
        """Where position (y, x) of channel ``c`` lies."""
        terms = [self.pointer]
        if y != "0" or self.ring or self.rows.begin != 0:
            terms.append(self.times(self.row_number(y), self.row))
        if x != "0" or self.columns.begin != 0:
            terms.append(self.times(minus(x, self.columns.begin), self.column))
        if self.has_channel(lanes):
            terms.append(self.times("c", self.channel))
        return " + ".join(terms)

    def times(self, text: str, step: int) -> str:
        """Elements of so many steps."""
        return times(text, step, self.wide)

    def row_number(self, y: str) -> str:
        """Which of the rows that are kept row ``y`` is."""
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
    """A function being printed, with the arguments of one call."""

    body: Code = field(default_factory=Code)
    formals: list[str] = field(default_factory=list)
    actuals: list[str] = field(default_factory=list)
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, type: str, actual: str, role: str = "") -> str:
        """The name of an argument; the same for equal ``actual`` and ``role``.

        The name stands behind ``type``, or where that says ``{}``.
        """
        key = (role or actual, type)
        if key not in self.known:
            name = f"a{len(self.formals)}"
            self.known[key] = name
            self.formals.append(type.format(name) if "{}" in type else f"{type} {name}")
            self.actuals.append(actual)
        return self.known[key]

    def span(self, span: Span) -> Span:
        """The span as the function sees it: numbers stay numbers."""

        def bound(value: Bound) -> Bound:
            return value if isinstance(value, int) else self.take("const int", value)

        return Span(bound(span.begin), bound(span.end), span.length)


@dataclass
class Functions:
    """All functions of a kernel, by their text.  ``inline``: even those called more than once."""

    inline: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def call(self, function: Function) -> str:
        """A call; ``$`` stands for the kernel's name."""
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
