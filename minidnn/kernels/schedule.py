"""How the parallel axes of a kernel become tasks and lanes; what each engine prefers is data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from .ir import LANE, TASK, Expr, Let, Statement, constant, select, variable


@dataclass(frozen=True)
class AxisSchedule:
    """What an engine wants of a kernel's parallel axes.

    Attributes:
        lanes: a task's lanes are the innermost axes, as many as have so many points together; 0:
            each task is one point.
        chunk: the most lanes of a task.
        points: sequential work is split where there are fewer points.
        widest: bytes of the widest access.
        keeps_sizes: sizes are symbols, except for 1, which leaves no arithmetic.
        keeps_unit_sizes: 1 is a symbol, too.
    """

    lanes: int = 0
    chunk: int = 1
    points: int = 1
    widest: int = 1
    keeps_sizes: bool = False
    keeps_unit_sizes: bool = False

    def size(self, name: str, number: int) -> Expr:
        """A size of this launch, as a symbol or a constant."""
        if self.keeps_sizes and (self.keeps_unit_sizes or number != 1):
            return Expr("size", "int64", (), f"n_{name}", number)
        return constant(number)

    def nest(self, apart: int = 0, **extents: int) -> Nest:
        """Returns parallel loops over axes, the outermost first; at least ``apart`` of these are
        the same for all lanes of a task."""
        names = list(extents)
        split = len(names)
        while self.lanes and split > apart and prod(extents[n] for n in names[split:]) < self.lanes:
            split -= 1
        sizes = {name: self.size(name, extent) for name, extent in extents.items()}
        outer, inner = names[:split], names[split:]
        length = prod(extents[name] for name in inner)
        points = prod(extents.values())
        narrow = not self.lanes and points < 1 << 31
        task = replace(TASK, dtype="uint32") if narrow else TASK
        if not self.lanes:
            lets, axes = decoded(task, "r", outer, sizes)
            return Nest(axes, sizes, task.cast("int64"), points, None, 1, lets)
        chunks = -(-length // self.chunk)
        count = self.size("chunks", chunks)
        whole = prod((sizes[name] for name in inner), start=constant(1))
        first = variable("first") if chunks > 1 else constant(0)
        before = [Let(first, TASK % count * self.chunk)] if chunks > 1 else []
        row = variable("row")
        before.append(Let(row, TASK // count))
        lets, axes = decoded(row, "r", outer, sizes)
        element = first + LANE
        lane_lets, lanes = decoded(element, "e", inner, sizes)
        remaining = whole - TASK % count * self.chunk
        return Nest(
            axes | lanes,
            sizes,
            row * whole + element,
            points // max(length, 1) * chunks,
            remaining if chunks == 1 else select(remaining < self.chunk, remaining, self.chunk),
            min(length, self.chunk),
            (*before, *lets, *lane_lets),
        )


@dataclass(frozen=True)
class Nest:
    """Parallel loops as an engine runs them.

    Attributes:
        axes: the position along each axis.
        sizes: the size of each axis.
        flat: the linear index of a point, the last axis being the innermost.
        tasks: how many there are; ``lanes`` how many points each has, ``width`` at most.
        before: statements that compute the positions.
    """

    axes: dict[str, Expr]
    sizes: dict[str, Expr]
    flat: Expr
    tasks: int
    lanes: Expr | None
    width: int
    before: tuple[Statement, ...]


def decoded(
    flat: Expr, prefix: str, names: Sequence[str], sizes: dict[str, Expr]
) -> tuple[tuple[Let, ...], dict[str, Expr]]:
    """Returns the statements that compute positions along axes from a linear index, and these."""
    lets: list[Let] = []
    axes = {name: constant(0) for name in names}
    wide = [name for name in names if sizes[name] != constant(1)] or names[-1:]
    rest = flat
    for name in reversed(wide):
        if name == wide[0]:
            axes[name] = rest.cast("int64")
            break
        size = sizes[name].cast(rest.dtype)
        axes[name] = variable(name)
        lets.append(Let(axes[name], (rest % size).cast("int64")))
        lets.append(Let(variable(f"{prefix}_{name}", rest.dtype), rest // size))
        rest = lets[-1].name
    return tuple(lets), axes
