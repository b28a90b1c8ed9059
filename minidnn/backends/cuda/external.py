"""Instances whose inputs and outputs are callers' buffers, for addresses that come again.

Kernels are told at each launch where buffers are.  Libraries are not: an instance on external
buffers serves the addresses of those that libraries take at which it was made, and another instance
serves others.  All of a program share an arena, and so do all programs of a device that have no
memory for inputs and outputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from ...cudnn import driver
from ...cudnn.graph.spec import ALIGNMENT
from ...errors import OutOfMemoryError
from .arrays import DEVICE_TO_DEVICE, Given
from .instance import Instance, SharedArena
from .memory import told
from .table import CudaTable

_MOST_KEPT, _MOST_MET = 3, 16
"""So many instances are kept, and so many addresses without one are remembered."""
_OFTEN = 50
"""Making an instance takes as long as a few dozen calls: once as many as may be are kept, another
one is made for addresses that came so often."""

#: Makes an instance of the addresses of its ends, the numbers of those that stay there, and what it
#: shares its memory with.
MakeExternal = Callable[[Sequence[int | None], Sequence[int], SharedArena], Instance]

#: Of each device, as long as a program works in it.
_SHARED: WeakValueDictionary[int, SharedArena] = WeakValueDictionary()


class ExternalInstances:
    """Those of one table, by the addresses of the ends that libraries take.

    Attributes:
        kept: the instances, those that were used last behind.
        places: the numbers of the ends that libraries take, inputs first.
        is_worth: whether less lies in one more instance than copies would move.
    """

    def __init__(self, table: CudaTable) -> None:
        sizes = (*table.inputs, *table.outputs)
        self.places = tuple(p for p, size in enumerate(sizes) if size and not table.sites(1 + p))
        self.is_worth = sum(sizes[place] for place in self.places) > table.block.bytes // 2
        self.kept: OrderedDict[tuple[int, ...], Instance] = OrderedDict()
        self._met: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._makes = True
        self._bytes = table.block.bytes
        self._arena: SharedArena | None = None
        self._at_once = False

    @property
    def bytes(self) -> int:
        """Device memory that they hold now, which other programs may share."""
        is_own = any(not donated for donated, *_ in self.kept)
        return self._arena.bytes if self._arena is not None and is_own else 0

    def share(self, device: int, reserves: bool = True) -> None:
        """From now on one is made when addresses come for the first time, in the arena of the
        device's programs that do so.

        reserves: whether the arena is made large enough for this table at once: else callers mostly
            donate a buffer to work in.
        """
        self._at_once = True
        self._arena = _SHARED.setdefault(device, SharedArena())
        if reserves:
            self._arena.bytes = max(self._arena.bytes, self._bytes)

    def of(self, ends: Sequence[Given], make: MakeExternal, donated: int = 0) -> Instance | None:
        """The instance of these arrays, inputs first; None where there is none.

        make: makes one.  (Who kept it would keep the program alive that keeps this.)
        donated: the address of a caller's buffer in which it works; 0 for the arena.
        """
        if not (self._at_once or self.is_worth):
            return None
        addresses = (donated, *(ends[place].pointer for place in self.places))
        found = self.kept.get(addresses)
        if found is not None:
            self.kept.move_to_end(addresses)
            return found
        if not (self._makes and self._came_often(addresses)):
            return None
        external = [one.pointer if _is_reached(one) else None for one in ends]
        if any(external[place] is None for place in self.places) or driver.driver() is None:
            return None
        if len(self.kept) >= _MOST_KEPT:
            self.kept.popitem(last=False)
        try:
            with told():
                arena = SharedArena(address=donated) if donated else self._own()
                made = self.kept[addresses] = make(external, self.places, arena)
        except OutOfMemoryError:
            self._makes = False  # copies take less memory
            return None
        return made

    def _own(self) -> SharedArena:
        self._arena = self._arena or SharedArena()
        return self._arena

    def _came_often(self, addresses: tuple[int, ...]) -> bool:
        """Whether addresses, which have no instance, came as often as one is worth."""
        count = self._met[addresses] = self._met.pop(addresses, 0) + 1
        if len(self._met) > _MOST_MET:
            self._met.popitem(last=False)
        if len(self.kept) >= _MOST_KEPT:
            return count >= _OFTEN
        return count > 1 or self._at_once


def _is_reached(one: Given) -> bool:
    """Whether kernels can work where an array lies."""
    return one.kind == DEVICE_TO_DEVICE and one.pointer % ALIGNMENT == 0
