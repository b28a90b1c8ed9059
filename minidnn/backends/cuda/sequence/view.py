"""The threads and channels of a block, and how a step addresses a plane: in shared memory, or in a
tensor.
"""

from __future__ import annotations

from dataclasses import dataclass


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
