"""Points over planes, and the offsets of their elements in a value's layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..ir import (
    LANE,
    TASK,
    Expr,
    FoldRange,
    For,
    If,
    Kernel,
    Let,
    Param,
    Statement,
    Write,
    constant,
    expressions,
    select,
    variable,
)
from ..schedule import AxisSchedule, decoded

#: Positions of a plane that a task computes, for a block of channels and for one channel.
_OF_BLOCK, _OF_PLANE = 256, 4096


@dataclass(frozen=True, slots=True)
class PlaneStrides:
    """The layout of a value: strides in elements.

    Element (n, c, y, x) has the offset ``offset + n * image + c // block * channel + y * row + x *
    pixel + c % block`` from a kernel's pointer.
    """

    dtype: str
    channels: int
    rows: int
    columns: int
    image: int
    channel: int
    row: int
    pixel: int
    offset: int = 0
    #: Channels that are contiguous, before the next pixel.
    block: int = 1
    #: The index in its block of its first channel; channels after its last that become zeros.
    first: int = 0
    padding: int = 0

    @classmethod
    def over_channels(cls, dtype: str, channels: int) -> PlaneStrides:
        """The layout of a vector over channels, which is broadcast over planes."""
        return cls(dtype, channels, 1, 1, 0, 1, 0, 0)

    @property
    def flat(self) -> PlaneStrides:
        """The same with each plane as one row."""
        return replace(self, rows=1, columns=self.rows * self.columns)


class PlaneGrid:
    """A point for each element of planes, which is at image ``n``, channel ``c``, row ``y`` and
    column ``x``.

    Args:
        made: the layout of the result.
        flat: whether planes are one row, whatever their size.
        block: channels that are a task's lanes; 1: lanes are positions of a row, or, of planes of
            one position, channels.
    """

    def __init__(
        self,
        batch: int,
        made: PlaneStrides,
        schedule: AxisSchedule,
        flat: bool = False,
        block: int = 1,
    ) -> None:
        self.made, self.block, self._schedule = made, block, schedule
        self._loops: list[tuple[Expr, Expr, Expr]] = []
        #: The first lane without a channel; None: all lanes have one.
        self._left: Expr | None = None
        extents = {"image": batch, "channel": made.channels, "row": made.rows}
        extents["column"] = made.columns
        if flat:
            del extents["row"]
        self.sizes = {axis: self.size(axis, extent) for axis, extent in extents.items()}
        self._in_pixel = bool(schedule.lanes) and block == made.rows == made.columns == 1
        if schedule.lanes:
            self._tasks(extents)
            return
        last = ("image", "row", "column", "channel")
        order = extents if made.pixel == 1 else [axis for axis in last if axis in extents]
        nest = schedule.nest(**{axis: extents[axis] for axis in order})
        self._before, self._points = nest.before, (nest.tasks, nest.lanes, nest.width)
        axes = {"row": constant(0)} | nest.axes
        self.n, self.c, self.y, self.x = axes["image"], axes["channel"], axes["row"], axes["column"]

    def _tasks(self, extents: Mapping[str, int]) -> None:
        """Divides points into tasks: some rows of the planes of a block, or a part of one row."""
        block, columns = self.block, extents["column"]
        along = "channel" if self._in_pixel else "row" if "row" in extents else "column"
        most = _OF_PLANE if block == 1 else _OF_BLOCK
        each = max(1, most // columns) if along == "row" else most
        blocks = -(-(extents["channel"] + self.made.padding) // block)
        axes = {"image": extents["image"], "block": 1 if self._in_pixel else blocks}
        axes["part"] = -(-extents[along] // each)
        sizes = {axis: self.size(f"{axis}s", count) for axis, count in axes.items()}
        lets, places = decoded(TASK, "r", [*axes], sizes)
        begin, end, share = variable("begin"), variable("end"), self.size("share", each)
        past, size = begin + share, self.sizes[along]
        cut = Let(end, select(past < size, past, size))
        self._before = (*lets, Let(begin, places["part"] * share), cut)
        rest = size - TASK % sizes["part"] * share  # lanes are counted before the body
        lanes = select(rest < share, rest, share)
        self.n, self.c, self.y, self.x = places["image"], places["block"], constant(0), constant(0)
        if along == "row":
            self.y, lanes = variable("row"), self.sizes["column"]
            self._loops = [(self.y, begin, end)]
        if along == "channel":
            self.c = begin + LANE
        elif block == 1:
            self.x = LANE if along == "row" else begin + LANE
        else:
            first, self.x, lanes = self.c * block, variable("column"), constant(block)
            ends = (constant(0), self.sizes["column"]) if along == "row" else (begin, end)
            self._loops.append((self.x, *ends))
            self._block, self.c = self.c, first + LANE
            if extents["channel"] % block or self.made.padding:
                self._left = self.sizes["channel"] - first
        work = block * each * (columns if along == "row" else 1)
        self._points = prod(axes.values()), lanes, work

    def size(self, name: str, number: int) -> Expr:
        """A number that depends on sizes, as a symbol or a constant."""
        return self._schedule.size(name, number)

    def place(
        self,
        param: Param,
        strides: PlaneStrides,
        y: Expr | None = None,
        x: Expr | None = None,
        c: Expr | None = None,
    ) -> Expr:
        """The offset of the point's element in a value, which is broadcast along axes of size 1; or
        of the element in another row, column and channel."""
        made, channel = self.made, c or self.c
        place = self.size(f"{param.name}_offset", strides.offset)
        is_shared = strides.channels == 1 < made.channels
        if is_shared:
            channel = constant(0)
        if strides.first:
            channel = channel + self.size(f"{param.name}_first", strides.first)
        if strides.block > 1 and strides.block == self.block and not (strides.first or is_shared):
            place, channel = place + LANE, self._block
        elif strides.block > 1:
            place, channel = place + channel % strides.block, channel // strides.block
        row = 0 if y is None and strides.rows == 1 < made.rows else strides.row
        pixel = 0 if x is None and strides.columns == 1 < made.columns else strides.pixel
        ends = (
            ("image", self.n, strides.image),
            ("channel", channel, strides.channel),
            ("row", y or self.y, row),
            ("pixel", x or self.x, pixel),
        )
        side = "channel" if self._in_pixel or strides.pixel != strides.block else "pixel"
        # Of contiguous pixels there may be one, which is broadcast at other sizes.
        knows = self._schedule.lanes or side == "channel" or param.is_written or x is not None
        for name, at, step in ends:
            known = getattr(strides, name) == 0 or (
                knows and name == side and step <= strides.block
            )
            place = place + at * (step if known else self.size(f"{param.name}_{name}", step))
        return place

    def kernel(
        self,
        kind: str,
        params: Sequence[Param],
        body: Sequence[Statement],
        zeros: Sequence[tuple[int, Write]] = (),
    ) -> Kernel:
        """Returns the kernel that runs a body at each point.

        Args:
            zeros: what is written after the last channel, and for how many channels.
        """
        whole, left, lane = self._looped(body), self._left, LANE
        if self.block > 1:  # a condition on lanes puts the loop over lanes around the others
            whole = (If(lane >= 0 if left is None else lane < left, whole),)
        if left is not None:
            for count, zero in zeros:
                end = left + self.size(f"{zero.param.name}_padding", count)
                whole += (If((lane >= left) & (lane < end), self._looped((zero,))),)
        tasks, lanes, work = self._points
        return Kernel(kind, tuple(params), tasks, lanes, (*self._before, *whole), work)

    def _looped(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """A body in the loops over all points of a lane.  Statements that these points share come
        first: compilers would leave them in the loops, as they cannot tell that writes do not
        change what is read."""
        moving = {name for name, *_ in self._loops}
        shared: list[Statement] = []
        rest: list[Statement] = []
        for each in body:
            if isinstance(each, Let) and moving.isdisjoint(expressions((each,))):
                shared.append(each)
                continue
            rest.append(each)
            if isinstance(each, Let | FoldRange):
                moving.add(each.name)
        for name, begin, end in reversed(self._loops):
            rest = [For(name, begin, end, tuple(rest))]
        return (*shared, *rest)
