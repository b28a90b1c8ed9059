"""Instances on callers' buffers: no copies of inputs and outputs, for addresses that recur.

Each launch sets the addresses that generated kernels receive.  The addresses that a library's call
receives are fixed when an instance is captured, so there is one instance for each set of them.  All
such instances of a program share an arena, and so do all programs of a device that keep no memory
for inputs and outputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from ...cudnn import driver
from ...cudnn.graph.spec import ALIGNMENT
from ...errors import OutOfMemoryError
from .arrays import DEVICE_TO_DEVICE, CallerArray
from .instance import Instance, SharedArena
from .memory import told
from .table import CudaTable

_MOST_KEPT, _MOST_COUNTED = 3, 16
"""The most instances that are kept, and the most sets of addresses without one whose calls are
counted."""
_OFTEN = 50
"""Calls with the same addresses before an instance for them replaces another one, once the most
are kept: making one takes as long as a few dozen calls."""

#: Makes an instance, of the addresses of its ends, the indices of those whose address is fixed, and
#: the arena that it shares.
MakeExternal = Callable[[Sequence[int | None], Sequence[int], SharedArena], Instance]

#: The arena that programs of a device share, for each device, as long as a program uses it.
_SHARED: WeakValueDictionary[int, SharedArena] = WeakValueDictionary()


class ExternalInstances:
    """A cache of one table's instances on callers' buffers.

    The key is the address of the donated buffer, if any, and the addresses of the ends that
    libraries take.

    Attributes:
        kept: the instances, the most recently used last.
        places: the indices of the ends that libraries take, inputs first.
        is_worth: whether an instance saves enough copies: the arrays at ``places`` have more than
            half as many bytes as values and workspaces.
    """

    def __init__(self, table: CudaTable) -> None:
        sizes = (*table.inputs, *table.outputs)
        self.places = tuple(p for p, size in enumerate(sizes) if size and not table.sites(1 + p))
        self.is_worth = sum(sizes[index] for index in self.places) > table.block.bytes // 2
        self.kept: OrderedDict[tuple[int, ...], Instance] = OrderedDict()
        self._met: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self._makes = True
        self._bytes = table.block.bytes
        self._arena: SharedArena | None = None
        self._at_once = False

    @property
    def bytes(self) -> int:
        """Device memory of the arena, in bytes, which other programs may share."""
        is_own = any(not donated for donated, *_ in self.kept)
        return self._arena.bytes if self._arena is not None and is_own else 0

    def share(self, device: int, reserves: bool = True) -> None:
        """From now on makes an instance when addresses come for the first time, in the arena that
        the device's programs share.

        reserves: whether the arena has to be large enough for this table; not where callers mostly
            donate a buffer.
        """
        self._at_once = True
        self._arena = _SHARED.setdefault(device, SharedArena())
        if reserves:
            self._arena.bytes = max(self._arena.bytes, self._bytes)

    def of(
        self, ends: Sequence[CallerArray], make: MakeExternal, donated: int = 0
    ) -> Instance | None:
        """The instance for these arrays; None if they have to be copied.

        ends: the caller's arrays, inputs first.
        make: makes an instance.  (An attribute would refer back to the program that owns this.)
        donated: the address of a caller's buffer for values and workspaces; 0 for the arena.
        """
        if not (self._at_once or self.is_worth):
            return None
        addresses = (donated, *(ends[index].pointer for index in self.places))
        instance = self.kept.get(addresses)
        if instance is not None:
            self.kept.move_to_end(addresses)
            return instance
        if not (self._makes and self._came_often(addresses)):
            return None
        external = [one.pointer if _is_reached(one) else None for one in ends]
        if any(external[index] is None for index in self.places) or driver.driver() is None:
            return None
        if len(self.kept) >= _MOST_KEPT:
            self.kept.popitem(last=False)
        try:
            with told():
                arena = SharedArena(address=donated) if donated else self._own()
                new_instance = self.kept[addresses] = make(external, self.places, arena)
        except OutOfMemoryError:
            self._makes = False  # copies take less memory
            return None
        return new_instance

    def _own(self) -> SharedArena:
        self._arena = self._arena or SharedArena()
        return self._arena

    def _came_often(self, addresses: tuple[int, ...]) -> bool:
        """Counts a call with addresses that have no instance; whether there were enough calls to
        make one."""
        count = self._met[addresses] = self._met.pop(addresses, 0) + 1
        if len(self._met) > _MOST_COUNTED:
            self._met.popitem(last=False)
        if len(self.kept) >= _MOST_KEPT:
            return count >= _OFTEN
        return count > 1 or self._at_once


def _is_reached(array: CallerArray) -> bool:
    """Whether kernels can read and write an array in place: it is on the device, and aligned."""
    return array.kind == DEVICE_TO_DEVICE and array.pointer % ALIGNMENT == 0
