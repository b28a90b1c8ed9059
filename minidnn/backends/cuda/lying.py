"""Instances that work where callers' arrays lie, for addresses that come again.

Kernels are told at each launch where arrays lie.  Libraries are not: an instance that lies with
callers serves the addresses of those ends at which it was made, and another one serves others.  All
of a program share the memory between inputs and outputs, and so do all programs of a device that
have no other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from ...cudnn import driver
from ...cudnn.graph.spec import ALIGNMENT
from ...errors import OutOfMemoryError
from .arrays import DEVICE_TO_DEVICE, Given
from .instance import Instance, WorkingMemory
from .memory import told
from .table import CudaTable

_MOST_KEPT, _MOST_MET = 3, 16
"""So many instances are kept, and so many addresses without one are remembered."""
_OFTEN = 50
"""Making an instance takes as long as a few dozen calls: once as many as may be are kept, another
one is made for addresses that came so often."""

#: Makes an instance of the addresses of its ends, the numbers of those that stay there, and what it
#: shares its memory with.
MakeLying = Callable[[Sequence[int | None], Sequence[int], WorkingMemory], Instance]

#: Of each device, as long as a program works in it.
_SHARED: WeakValueDictionary[int, WorkingMemory] = WeakValueDictionary()


class LyingInstances:
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
        self._working: WorkingMemory | None = None
        self._at_once = False

    @property
    def bytes(self) -> int:
        """Device memory that they hold now, which other programs may share."""
        is_own = any(not within for within, *_ in self.kept)
        return self._working.bytes if self._working is not None and is_own else 0

    def share(self, device: int, is_usual: bool = True) -> None:
        """From now on one is made when addresses come for the first time, in memory that it shares
        with other programs of the device.

        is_usual: whether most are: else callers give them memory to work in.
        """
        self._at_once = True
        self._working = _SHARED.setdefault(device, WorkingMemory())
        if is_usual:
            self._working.bytes = max(self._working.bytes, self._bytes)

    def of(self, ends: Sequence[Given], make: MakeLying, within: int = 0) -> Instance | None:
        """The instance of these arrays, inputs first; None where there is none.

        make: makes one.  (Who kept it would keep the program alive that keeps this.)
        within: the address of a caller's memory in which it works; 0 for memory of its own.
        """
        if not (self._at_once or self.is_worth):
            return None
        addresses = (within, *(ends[place].pointer for place in self.places))
        found = self.kept.get(addresses)
        if found is not None:
            self.kept.move_to_end(addresses)
            return found
        if not (self._makes and self._came_often(addresses)):
            return None
        lying = [one.pointer if _is_reached(one) else None for one in ends]
        if any(lying[place] is None for place in self.places) or driver.driver() is None:
            return None
        if len(self.kept) >= _MOST_KEPT:
            self.kept.popitem(last=False)
        try:
            with told():
                working = WorkingMemory(address=within) if within else self._own()
                made = self.kept[addresses] = make(lying, self.places, working)
        except OutOfMemoryError:
            self._makes = False  # copies take less memory
            return None
        return made

    def _own(self) -> WorkingMemory:
        self._working = self._working or WorkingMemory()
        return self._working

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
