"""How blocks and threads share what a sweep adds up; it follows from shapes and layouts alone.

Of channels side by side a thread has one pack, at every ``step``-th pixel.  What float32 has here
never changes, as its bits would; sums of halves take blocks of whole warps but for a few threads,
of whatever numbers these consist: a warp of which a quarter has no channels computes no less.
"""

from __future__ import annotations

from dataclasses import dataclass

THREADS = 256
"""Most of a block."""
_BLOCKS = 512
"""So many blocks keep every card busy, and run all at once where each has 64 registers a thread."""
_LEAST, _MOST, _MOST_NARROW = 4, 64, 256
"""Elements of a channel that a thread adds, in packs."""
_COLUMNS = (1, 2, 4, 8, 16, 32)
"""How many packs side by side a block adds."""
_ROW = 64  # bytes
"""Of shorter rows memory moves more than is read."""
_BUSY = 0.75
"""Where so many of the threads have a pack, a long row gains more than idle ones cost."""
_AS_BUSY = 0.95
"""Long rows are worth that, where threads are as many as the row needs."""
_WARP = 32


@dataclass(frozen=True)
class SumsGrid:
    """The threads of a block: ``wide`` packs side by side, and ``step`` of them below each other.

    Attributes:
        beside: so many blocks have the packs of a row.
        narrow: whether it is chosen for halves.
    """

    wide: int
    step: int
    beside: int
    narrow: bool

    @property
    def threads(self) -> int:
        return self.wide * self.step

    def part(self, count: int, groups: int) -> int:
        """How many of ``count`` packs below each other a block adds, where so many groups have sums
        of their own."""
        blocks, step = groups * self.beside, self.step
        most = _MOST_NARROW if self.narrow else _MOST
        if groups > 1 and blocks * 2 >= _BLOCKS:
            parts = -(-count // (step * most))
            return step * -(-count // (step * parts))
        packs = -(-count * blocks // (step * _BLOCKS))
        if self.narrow:  # no more blocks than run at once
            packs = -(-count // (step * max(1, _BLOCKS // blocks)))
        return step * max(_LEAST, min(most, packs))


def grid_of_columns(packs: int, pack_bytes: int, narrow: bool) -> SumsGrid:
    """The grid of so many packs of channels side by side."""
    if narrow:
        return _busy_grid(packs, pack_bytes)
    wide = _wide(packs, pack_bytes)
    return SumsGrid(wide, THREADS // wide, -(-packs // wide), narrow)


def grid_of_planes(channels: int, narrow: bool) -> SumsGrid:
    """That of channels whose pixels lie side by side."""
    return SumsGrid(1, THREADS, channels, narrow)


def _wide(packs: int, pack_bytes: int) -> int:
    """How many packs side by side a block adds: long rows, if few threads are without a pack; else
    those that leave the fewest without one."""
    enough = [wide for wide in _COLUMNS if wide >= packs or wide * pack_bytes >= _ROW]
    taken = {wide: -(-packs // wide) * wide for wide in enough or _COLUMNS[-1:]}
    full = [wide for wide, threads in taken.items() if threads * _BUSY <= packs]
    return max(full) if full else min(taken, key=lambda wide: (taken[wide], -wide))


def _busy_grid(packs: int, pack_bytes: int) -> SumsGrid:
    """The longest rows among the grids that leave the fewest of their warps' threads idle."""
    grids: list[SumsGrid] = []
    for beside in range(-(-packs // THREADS), packs + 1):
        wide = -(-packs // beside)
        if wide * pack_bytes < _ROW and grids:
            break
        grids.append(SumsGrid(wide, THREADS // wide, -(-packs // wide), True))

    def busy(grid: SumsGrid) -> float:
        warps = -(-grid.threads // _WARP)
        return packs * grid.step / (grid.beside * warps * _WARP)

    most = max(map(busy, grids))
    return max((grid for grid in grids if busy(grid) >= _AS_BUSY * most), key=lambda g: g.wide)
