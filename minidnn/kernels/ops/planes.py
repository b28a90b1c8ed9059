"""Points over planes, and where the elements of planes lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir import Expr, Kernel, Param, Statement
from ..schedule import AxisSchedule


@dataclass(frozen=True, slots=True)
class Planes:
    """Strides of a value, in elements.

    Element (n, c, y, x) lies at ``offset + n * image + c * channel + y * row + x * pixel`` of what
    a kernel's pointer points to.
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


_AXES = ("image", "channel", "row", "column")
_CHANNELS_LAST = ("image", "row", "column", "channel")


class Grid:
    """A point for each element of planes, which is at image ``n``, channel ``c``, row ``y`` and
    column ``x``."""

    def __init__(self, batch: int, made: Planes, schedule: AxisSchedule) -> None:
        self.made, self._schedule = made, schedule
        extents = dict(zip(_AXES, (batch, made.channels, made.rows, made.columns), strict=True))
        order = _AXES if made.pixel == 1 else _CHANNELS_LAST
        self._nest = schedule.nest(**{axis: extents[axis] for axis in order})
        self.sizes = self._nest.sizes
        self.n, self.c, self.y, self.x = (self._nest.axes[axis] for axis in _AXES)

    def size(self, name: str, number: int) -> Expr:
        """A number that depends on sizes."""
        return self._schedule.size(name, number)

    def place(
        self,
        param: Param,
        lies: Planes,
        y: Expr | None = None,
        x: Expr | None = None,
        c: Expr | None = None,
    ) -> Expr:
        """Where the point's element of a value lies, which is repeated along axes of size 1, or the
        one in another row, column and channel."""
        made, side = self.made, "pixel" if lies.pixel == 1 else "channel"
        ends = (
            ("image", self.n, lies.image),
            ("channel", c or self.c, 0 if lies.channels == 1 < made.channels else lies.channel),
            ("row", y or self.y, lies.row * (not lies.rows == 1 < made.rows)),
            ("pixel", x or self.x, lies.pixel * (not lies.columns == 1 < made.columns)),
        )
        place = self.size(f"{param.name}_offset", lies.offset)
        for name, at, step in ends:
            known = name == side or getattr(lies, name) == 0
            place = place + at * (step if known else self.size(f"{param.name}_{name}", step))
        return place

    def kernel(self, kind: str, params: Sequence[Param], body: Sequence[Statement]) -> Kernel:
        nest = self._nest
        whole = (*nest.before, *body)
        return Kernel(kind, tuple(params), nest.tasks, nest.lanes, whole, nest.width)
