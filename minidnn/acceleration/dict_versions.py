"""Telling from one word of a dict that nobody has written to it.

CPython gives a dict a number that no dict had before whenever one of its entries comes, goes or is
replaced by another object (PEP 509).  So hundreds of dicts are looked at in one loop in C, without
their tables and values: these lie all over memory, and each line of it that is not in the caches is
waited for.  The number is no part of Python's interface.  It is read where it is known to be kept,
by versions of CPython in which every write changes it, and tried once before it is trusted.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from minidnn.backends.cpu.native import take_words

#: Those in which PEP 509 holds; later ones use the word for other things.
_CPYTHONS = ((3, 11), (3, 12))
#: Where a dict's number is: behind what every object has, and the count of entries.
_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
#: Where an object has its type, the last word of what every object has, and its dict.
_TYPE = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
_DICT = -3 * ctypes.sizeof(ctypes.c_void_p)
#: ``Py_TPFLAGS_MANAGED_DICT``: objects of the type have a dict, and have it there.
_MANAGED = 1 << 4


def places(dicts: Sequence[dict[Any, Any]], objects: Sequence[Any] = ()) -> Any:
    """Where dicts keep their numbers, and objects their types and their dicts, for C.

    Each dict is of exactly that type, there are numbers (:func:`are_known`), and objects
    :func:`say_their_dict`.
    """
    found = [id(each) + _OFFSET for each in dicts]
    found += [id(each) + offset for each in objects for offset in (_DICT, _TYPE)]
    return (ctypes.c_void_p * len(found))(*found)


def say_their_dict(one: Any) -> bool:
    """Whether an object has its type and its dict where :func:`places` says.  The dict must be
    held by others, too: else CPython may take it apart again, and lay its values there."""
    if not type(one).__flags__ & _MANAGED:
        return False
    inside = vars(one)  # lies there from now on
    return _word(id(one) + _DICT) == id(inside) and _word(id(one) + _TYPE) == id(type(one))


def versions(at: Any) -> Any:
    """The words in these places, for C; the dicts and objects must be alive."""
    seen = (ctypes.c_uint64 * len(at))()
    take_words()(at, seen, len(at))
    return seen


def version_of(one: dict[Any, Any]) -> int:
    """The number of a dict."""
    return _word(id(one) + _OFFSET)


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@cache
def are_known() -> bool:
    """Whether dicts have numbers here, each of which says that nothing was written since."""
    return (
        sys.implementation.name == "cpython"
        and sys.version_info[:2] in _CPYTHONS
        and getattr(sys, "_is_gil_enabled", lambda: True)()
        and dict.__basicsize__ >= _OFFSET + 8
        and all(map(_is_counted, _samples()))
    )


class _Owner:
    """One whose attributes are written."""


def _samples() -> Iterator[dict[Any, Any]]:
    """Dicts of each kind that CPython has: its own table of texts, or of any keys, and one that
    shares its table of names with those of its class."""
    yield {"a": 1.0, "b": "two"}
    yield {1: None, (2, 3): []}
    owner = _Owner()
    owner.a, owner.b = 1, (2,)  # type: ignore[attr-defined]
    yield vars(owner)


def _is_counted(one: dict[Any, Any]) -> bool:
    """Whether a dict's number is another after each kind of write, and the same after none."""
    first, second = one
    writes: tuple[Callable[[], Any], ...] = (
        lambda: one.__setitem__(first, object()),
        lambda: one.update({second: object()}),
        lambda: one.setdefault("c", 3),
        lambda: one.pop("c"),
        lambda: one.__delitem__(second),
        lambda: one.popitem(),
        lambda: one.update(a=1, b=2),
        lambda: one.clear(),
    )
    seen = {version_of(one), version_of({})}
    for number, write in enumerate(writes, start=3):
        write()
        now = version_of(one)
        list(one.items()), one.get(first), dict(one), version_of({})
        if version_of(one) != now:
            return False
        seen.add(now)
        if len(seen) != number:
            return False
    return True
