"""The store: where states live between runs, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from minidnn._forks import ForkLock
from minidnn.errors import GraphError
from minidnn.graph.ir import State
from minidnn.graph.types import numpy_dtype

__all__ = ["Store"]


class Store(Mapping[str, np.ndarray]):
    """The arrays of states, which programs share: a mapping from their names.

    A program that is compiled with a store finds its states there, or puts them there with their
    initial arrays.  What one program makes of a state, all others read at their next run.
    ``lock`` is held while a program runs; whoever reads several arrays that belong together holds
    it too.

    >>> store = md.Store()
    >>> one = md.compile(net, (1, 3, 32, 32), device="reference", store=store)
    >>> two = md.compile(net, (2, 3, 32, 32), device="reference", store=store)
    """

    def __init__(self) -> None:
        self.lock = ForkLock(reentrant=True)
        self._arrays: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a state.  It is the store's own and changes when programs run."""
        if name not in self._arrays:
            raise KeyError(f"{name}: the store has {', '.join(self._arrays) or 'no states'}")
        return self._arrays[name]

    def __setitem__(self, name: str, array: Any) -> None:
        """Copies an array into a state that is there already; GraphError if it does not fit."""
        given = np.asarray(array)
        with self.lock:
            held = self[name]
            if given.shape != held.shape or given.dtype.kind != held.dtype.kind:
                raise GraphError(
                    f"store[{name!r}] = {given.dtype}{list(given.shape)}; valid is "
                    f"{held.dtype}{list(held.shape)}"
                )
            held[...] = given

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        size = sum(array.nbytes for array in self._arrays.values())
        return f"<Store of {len(self)} states, {size} bytes>"

    def hold(self, states: Iterable[State], wide: bool = False) -> dict[State, np.ndarray]:
        """The arrays of a program's states, those that are new made from their initial arrays.

        ``wide`` holds floating-point states in float64.  GraphError if a state of that name has
        another shape or dtype; nothing is added then.
        """
        with self.lock:
            found: dict[State, np.ndarray] = {}
            for state in states:
                dtype = numpy_dtype(state.dtype)
                if wide and "float" in state.dtype:
                    dtype = np.dtype(np.float64)
                held = self._arrays.get(state.name)
                if held is None:
                    held = np.array(state.data, dtype)  # a copy, which runs may change
                elif (held.shape, held.dtype) != (state.shape, dtype):
                    raise GraphError(
                        f"state {state.name!r} is {dtype}{list(state.shape)}, but the store has "
                        f"{held.dtype}{list(held.shape)} under that name"
                    )
                found[state] = held
            self._arrays.update((state.name, array) for state, array in found.items())
            return found
