"""The inputs on which precisions are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minidnn.backends.backend import AUTO
from minidnn.errors import GraphError
from minidnn.graph.types import BYTES, FLOATS, numpy_dtype
from minidnn.runtime.arrays import checked, random_array, to_numpy
from minidnn.runtime.interface import Interface

Call = Sequence[np.ndarray]
"""The inputs of a call, in order."""

_RANDOM_CALLS, _RANDOM_BYTES = 4, 1 << 28
"""So many random inputs are drawn, unless they are larger."""


def calls_of(examples: Any, interface: Interface) -> list[Call]:
    """The inputs of each call: random ones without examples, else what these give.

    Raises:
        GraphError: they do not fit, or random ones would make no sense.
    """
    if examples is None:
        return _random_calls(interface)
    several = isinstance(examples, list)
    calls: list[Call] = []
    for number, given in enumerate(examples if several else [examples]):
        named = given if isinstance(given, Mapping) else {}
        placed = () if named else given if isinstance(given, tuple) else (given,)
        try:
            arrays = _arrays(interface.ordered(placed, named), interface)
            calls += [_checked(call, interface) for call in _apart(arrays, interface)]
        except GraphError as error:
            what = f"examples[{number}]" if several else "examples"
            raise GraphError(f"{what}: {error}") from None
    if not calls:
        raise GraphError("examples=[]; valid is at least one array, or None for random inputs")
    return calls


def _random_calls(interface: Interface) -> list[Call]:
    for value in interface.inputs:
        if value.dtype not in (*FLOATS, *BYTES):
            raise GraphError(
                f"examples=None with precision={AUTO!r}: input {value.name!r} has dtype "
                f"{value.dtype}, of which random numbers mean nothing; valid are examples such as "
                "the network will see"
            )
    random = np.random.default_rng(0)
    types = [(value.shape, numpy_dtype(value.dtype)) for value in interface.inputs]
    size = sum(value.type.bytes for value in interface.inputs)
    count = max(1, min(_RANDOM_CALLS, _RANDOM_BYTES // max(1, size)))
    return [[random_array(random, *each) for each in types] for _ in range(count)]


def _arrays(given: Sequence[Any], interface: Interface) -> list[np.ndarray]:
    pairs = zip(given, interface.inputs, strict=True)
    return [to_numpy(f"input {value.name!r}", array)[0] for array, value in pairs]


def _apart(arrays: Sequence[np.ndarray], interface: Interface) -> list[Call]:
    """The inputs of several calls, where arrays have several times the rows of one."""
    counts = set()
    for array, value in zip(arrays, interface.inputs, strict=True):
        fits = array.ndim and value.shape and array.shape[1:] == value.shape[1:]
        count, rest = divmod(len(array), value.shape[0]) if fits else (0, 1)
        counts.add(0 if rest else count)
    count = counts.pop() if len(counts) == 1 else 0
    if count < 2:
        return [arrays]
    return list(zip(*(np.split(array, count) for array in arrays), strict=True))


def _checked(call: Call, interface: Interface) -> Call:
    pairs = zip(call, interface.inputs, strict=True)
    return [
        checked(f"input {value.name!r}", array, value.shape, numpy_dtype(value.dtype))
        for array, value in pairs
    ]
