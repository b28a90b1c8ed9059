"""The store: where states live between runs, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from minidnn._forks import ForkLock
from minidnn.errors import GraphError
from minidnn.graph.ir import State
from minidnn.graph.types import TensorType, numpy_dtype

__all__ = ["HOST", "StateMemory", "Store"]


class StateMemory(Protocol):
    """The memory of a device in which all states of a store lie.  The store's lock is held during
    each call."""

    name: str

    def keep(self, array: np.ndarray, dtype: str) -> Any:
        """New memory with the elements of an array, as a value of ``dtype`` has them."""

    def read(self, kept: Any) -> np.ndarray:
        """Its elements, once all runs are done that were started."""

    def write(self, kept: Any, array: np.ndarray) -> None:
        """Makes its elements those of an array of its shape."""


class _Host:
    """NumPy's arrays, which CPU and reference compute on."""

    name = "the host"

    def keep(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return array

    def read(self, kept: np.ndarray) -> np.ndarray:
        return kept

    def write(self, kept: np.ndarray, array: np.ndarray) -> None:
        kept[...] = array


HOST: StateMemory = _Host()


@dataclass(frozen=True)
class _Held:
    """A state's memory, and what it has there."""

    kept: Any
    type: TensorType


class Store(Mapping[str, np.ndarray]):
    """The arrays of states, which programs share: a mapping from their names.

    A program that is compiled with a store finds its states there, or puts them there with their
    initial arrays.  What one program makes of a state, all others read at their next run.  All
    states lie in the memory of the device of the first program, and all programs run there.
    ``lock`` is held while a program runs, or is started; whoever reads several arrays that belong
    together holds it too.

    >>> store = md.Store()
    >>> one = md.compile(net, (1, 3, 32, 32), device="reference", store=store)
    >>> two = md.compile(net, (2, 3, 32, 32), device="reference", store=store)
    """

    def __init__(self) -> None:
        self.lock = ForkLock(reentrant=True)
        self.memory: StateMemory | None = None
        self._states: dict[str, _Held] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a state: on the host the store's own, which changes when programs run; of
        another device's memory a copy."""
        with self.lock:
            return self._memory.read(self._held(name).kept)

    def __setitem__(self, name: str, array: Any) -> None:
        """Copies an array into a state that is there already; GraphError if it does not fit."""
        given = np.asarray(array)
        with self.lock:
            held = self._held(name)
            kind = numpy_dtype(held.type.dtype).kind
            if given.shape != held.type.shape or given.dtype.kind != kind:
                raise GraphError(
                    f"store[{name!r}] = {given.dtype}{list(given.shape)}; valid is {held.type}"
                )
            self._memory.write(held.kept, given)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        size = sum(held.type.bytes for held in self._states.values())
        return f"<Store of {len(self)} states, {size} bytes>"

    def kept(self, names: Iterable[str]) -> list[Any]:
        """The memory of states, as their device has it; the caller holds the lock while it works
        on that.  KeyError if there is no such state."""
        return [self._held(name).kept for name in names]

    def hold(
        self, states: Iterable[State], memory: StateMemory = HOST, wide: bool = False
    ) -> dict[State, Any]:
        """The memory of a program's states, those that are new made from their initial arrays.

        ``memory`` is where the program runs: if the store has none of that name yet, it takes this
        one.  ``wide`` holds floating-point states in float64.  GraphError if the store's states lie
        elsewhere, or a state of that name has another shape or dtype; nothing is added then.
        """
        with self.lock:
            own = self.memory or memory
            if own.name != memory.name:
                raise GraphError(
                    f"{self!r} lies in the memory of {own.name}, where its first program runs, and "
                    f"this one runs in that of {memory.name}; valid is a store of its own"
                )
            found: dict[State, _Held] = {}
            for state in states:
                is_wide = wide and "float" in state.dtype
                type = replace(state.type, dtype="float64") if is_wide else state.type
                held = self._states.get(state.name)
                if held is None:
                    array = np.array(state.data, numpy_dtype(type.dtype))  # runs may change it
                    held = _Held(own.keep(array, type.dtype), type)
                elif held.type != type:
                    raise GraphError(
                        f"state {state.name!r} is {type}, but the store has {held.type} under that "
                        "name"
                    )
                found[state] = held
            self.memory = own
            self._states.update((state.name, held) for state, held in found.items())
            return {state: held.kept for state, held in found.items()}

    def arrange(self, names: Iterable[str]) -> None:
        """Lists these states behind all others, in that order; those it does not have are none."""
        with self.lock:
            for name in names:
                if name in self._states:
                    self._states[name] = self._states.pop(name)

    @contextmanager
    def unchanged(self, names: Iterable[str]) -> Iterator[None]:
        """Meanwhile no other thread runs a program; what happens to these states is undone."""
        with self.lock:
            before = {name: self[name].copy() for name in names}
            try:
                yield
            finally:
                for name, array in before.items():
                    self[name] = array

    @property
    def _memory(self) -> StateMemory:
        assert self.memory is not None, "there are states"
        return self.memory

    def _held(self, name: str) -> _Held:
        if name not in self._states:
            raise KeyError(f"{name}: the store has {', '.join(self._states) or 'no states'}")
        return self._states[name]
