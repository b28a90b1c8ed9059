"""``x[...]`` of tensors that have no numbers yet, as NumPy does it."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.operators import Gather, Slice, Take, View
from minidnn.graph.symbolic import Symbolic, described
from minidnn.graph.types import INTEGERS

_VALID = (
    "valid are ints, slices, ..., None, lists of ints, and one tensor of indices by itself; to "
    "choose by a condition write np.where(condition, a, b)"
)


@described("Slice")
def subscript(x: Any, key: Any) -> Any:
    """The elements of ``x`` that ``key`` names."""
    return _gather(x, key) if isinstance(key, Symbolic) else _subscript(x, key)


def _gather(x: Any, indices: Any) -> Any:
    if indices.dtype not in INTEGERS:
        raise GraphError(f"index {indices!r:.80} is {indices.dtype}; {_VALID}")
    return x._record(Gather(0), x, indices)


def _subscript(x: Any, key: Any) -> Any:
    keys = _every_axis(key if isinstance(key, tuple) else (key,), len(x.shape))
    starts: list[int] = []
    sizes: list[int] = []
    steps: list[int] = []
    shape: list[int] = []
    taken: dict[int, tuple[int, ...]] = {}
    for each in keys:
        if each is None:
            shape.append(1)
            continue
        axis = len(sizes)
        extent = x.shape[axis]
        start, size, step = 0, extent, 1
        if isinstance(each, slice):
            start, size, step = _range(each, extent)
            shape.append(size)
        elif isinstance(each, (list, np.ndarray)):
            taken[axis] = tuple(_index(one, extent, axis) for one in np.asarray(each).tolist())
            shape.append(len(taken[axis]))
        else:
            start, size = _index(each, extent, axis), 1
        starts, sizes, steps = [*starts, start], [*sizes, size], [*steps, step]
    if 0 in (*sizes, *shape):
        raise GraphError(f"index {key!r:.100} leaves no elements of {x.shape}")
    if (starts, sizes, steps) != ([0] * len(sizes), list(x.shape), [1] * len(sizes)):
        x = x._record(Slice(tuple(starts), tuple(sizes), tuple(steps)), x)
    if taken:
        x = x._record(Take(tuple(taken.get(axis) for axis in range(len(sizes)))), x)
    return x if x.shape == tuple(shape) else x._record(View(tuple(shape)), x)


def _every_axis(keys: tuple[Any, ...], rank: int) -> list[Any]:
    """The keys, with those that were left away, so that there is one for each axis."""
    for each in keys:
        flat = np.asarray(each) if isinstance(each, (list, np.ndarray)) else None
        ints = flat is not None and flat.ndim == 1 and flat.dtype.kind in "iu"
        whole = isinstance(each, (int, np.integer)) and not isinstance(each, bool)
        if not (ints or whole or each is None or each is Ellipsis or isinstance(each, slice)):
            raise GraphError(f"index {each!r:.100} ({type(each).__name__}); {_VALID}")
    used = sum(each is not None and each is not Ellipsis for each in keys)
    if used > rank or sum(each is Ellipsis for each in keys) > 1:
        raise GraphError(
            f"index {keys!r:.100} has {used} axes; valid are at most {rank}, and at most one ..."
        )
    rest = [slice(None)] * (rank - used)
    place = next((i for i, each in enumerate(keys) if each is Ellipsis), len(keys))
    return [*keys[:place], *rest, *keys[place + 1 :]]


def _range(key: slice, extent: int) -> tuple[int, int, int]:
    try:
        start, stop, step = key.indices(extent)
    except (TypeError, ValueError) as error:
        raise GraphError(f"index {key!r:.100}: {error}; {_VALID}") from None
    return start, len(range(start, stop, step)), step


def _index(key: int, extent: int, axis: int) -> int:
    if not -extent <= key < extent:
        raise GraphError(f"index {key} of axis {axis}; valid are {-extent} to {extent - 1}")
    return int(key) % extent
