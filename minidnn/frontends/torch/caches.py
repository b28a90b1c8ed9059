"""Functions that keep their results (``functools.lru_cache``): which they are, what they keep."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from operator import is_
from typing import Any

from minidnn.frontends.torch.reach import KEEPER


class _AllOfTheProcess:
    """Names in code do not lead to all of them.  To ask Python's collector takes long in a large
    process; it is asked when there may be others than the last time."""

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        self._others = -1

    def now(self) -> list[Any]:
        # Each holds its type, so that the references to that tell of new ones.  The collector has
        # none that were frozen (``gc.freeze``).  It is not asked for all objects: to hold a tuple
        # that another thread is making would be an error in that one.
        if sys.getrefcount(KEEPER) - len(self._known) != self._others:
            found = [each for each in gc.get_referrers(KEEPER) if type(each) is KEEPER]
            self._known = weakref.WeakSet(found)
            self._others = sys.getrefcount(KEEPER) - len(self._known)
        return list(self._known)


_all = _AllOfTheProcess()


class Caches:
    """What all functions of the process keep, and some more, as it is now."""

    def __init__(self, more: Iterable[Any] = ()) -> None:
        self._before = {id(each): (each, _contents(each)) for each in (*_all.now(), *more)}

    def changed(self, more: Iterable[Any] = ()) -> list[Any]:
        """Those that keep something else now, or were not there."""
        found = {id(each): each for each in (*_all.now(), *more)}
        return [each for each in found.values() if not self._is_as_before(each)]

    def _is_as_before(self, each: Any) -> bool:
        _, before = self._before.get(id(each), (None, None))
        if before is None:
            return False
        now = _contents(each)
        return len(now) == len(before) and all(map(is_, now, before))


def _contents(keeper: Any) -> list[Any]:
    # Not its type: what has a reference to that looks like another keeper.
    held = [each for each in gc.get_referents(keeper) if each is not KEEPER]
    return [*held, *(one for each in held if type(each) is dict for one in list(each.values()))]
