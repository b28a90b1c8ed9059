"""Fetching objects into the processor's caches before Python looks at them.

A network takes the caches as it runs; each object that is looked at afterwards is waited for by
itself.  The processor fetches dozens of lines at a time if it is told to.  Which lines these are is
guessed once: what an object lies in, and what the words at its beginning point to.  A wrong guess
costs a fetch for nothing, and is no access: it cannot fail.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from minidnn.backends.cpu.native import runner

_LINE = 64
_HEAD = 48  # bytes that every dict, module and tensor has
_TENSOR = 208  # of PyTorch's part of a tensor
_ADDRESSES = range(1 << 16, 1 << 47)  # that a program can have


def fetcher(
    dicts: Iterable[Any], objects: Iterable[Any], tensors: Iterable[Any]
) -> Callable[[], None]:
    """What fetches these dicts with their entries, the heads of objects, and tensors without their
    data."""
    found: list[int] = []
    for each in dicts:
        found += _around(id(each), _HEAD)
    for each in objects:
        found += (id(each) - _LINE // 2, id(each))
    for tensor in tensors:
        found.append(id(tensor))
        found += _around(tensor._cdata, _TENSOR)
    lines = list(dict.fromkeys(address // _LINE * _LINE for address in found))
    array = (ctypes.c_void_p * len(lines))(*lines)
    return partial(runner().md_fetch, array, len(lines))


def _around(address: int, size: int) -> Iterator[int]:
    """Addresses in an object's lines, and in two lines of all that its beginning points to."""
    yield from range(address, address + size, _LINE)
    yield address + size - 1
    for word in struct.unpack(f"{_HEAD // 8}Q", ctypes.string_at(address, _HEAD)):
        if word in _ADDRESSES:
            yield from (word, word + _LINE)
