"""The store: the memory of states (parameters, statistics, counters) between runs, by name."""

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
    """The memory of a device that holds all states of a store.  The store's lock is held during
    each call."""

    name: str

    def keep(self, array: np.ndarray, dtype: str) -> Any:
        """Allocates memory with the elements of an array, in the representation of ``dtype``."""

    def read(self, kept: Any) -> np.ndarray:
        """Returns its elements, after all runs that were started have ended."""

    def write(self, kept: Any, array: np.ndarray) -> None:
        """Overwrites its elements with those of an array of its shape."""


class _Host:
    """NumPy arrays, on which the CPU and reference backends compute."""

    name = "the host"

    def keep(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return array

    def read(self, kept: np.ndarray) -> np.ndarray:
        return kept

    def write(self, kept: np.ndarray, array: np.ndarray) -> None:
        kept[...] = array


HOST: StateMemory = _Host()


@dataclass(frozen=True)
class _StoredState:
    """A state's memory, and the type of what it holds."""

    kept: Any
    type: TensorType


class Store(Mapping[str, np.ndarray]):
    """The arrays of states, which programs share: a mapping from their names.

    A program that is compiled with a store finds its states there, or adds them with their initial
    arrays.  A state that one program updates, all others read at their next run.  All states are
    in the memory of the device of the first program, and all programs run there.  ``lock`` is held
    while a program runs, or is started; hold it, too, to read several arrays that belong together.

    >>> store = md.Store()
    >>> one = md.compile(net, (1, 3, 32, 32), device="reference", store=store)
    >>> two = md.compile(net, (2, 3, 32, 32), device="reference", store=store)
    """

    def __init__(self) -> None:
        self.lock = ForkLock(reentrant=True)
        self.memory: StateMemory | None = None
        self._states: dict[str, _StoredState] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        """The array of a state: on the host the store's own, which changes when programs run; from
        another device a copy."""
        with self.lock:
            return self._memory.read(self._held(name).kept)

    def __setitem__(self, name: str, array: Any) -> None:
        """Copies an array into an existing state; GraphError if its shape or dtype does not fit."""
        data = np.asarray(array)
        with self.lock:
            held = self._held(name)
            kind = numpy_dtype(held.type.dtype).kind
            if data.shape != held.type.shape or data.dtype.kind != kind:
                raise GraphError(
                    f"store[{name!r}] = {data.dtype}{list(data.shape)}; valid is {held.type}"
                )
            self._memory.write(held.kept, data)

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def __repr__(self) -> str:
        size = sum(held.type.bytes for held in self._states.values())
        return f"<Store of {len(self)} states, {size} bytes>"

    def kept(self, names: Iterable[str]) -> list[Any]:
        """The device memory of states; the caller holds the lock while it uses it.  KeyError if
        there is no such state."""
        return [self._held(name).kept for name in names]

    def hold(
        self, states: Iterable[State], memory: StateMemory = HOST, wide: bool = False
    ) -> dict[State, Any]:
        """The memory of a program's states; new states are made from their initial arrays.

        ``memory`` is that of the program's device: if the store has none yet, it uses this one.
        ``wide`` holds floating-point states in float64.  GraphError if the store's states are
        elsewhere, or a state of that name has another shape or dtype; nothing is added then.
        """
        with self.lock:
            own = self.memory or memory
            if own.name != memory.name:
                raise GraphError(
                    f"{self!r} is in the memory of {own.name}, where its first program runs, and "
                    f"this one runs in that of {memory.name}; valid is a store of its own"
                )
            held_states: dict[State, _StoredState] = {}
            for state in states:
                is_wide = wide and "float" in state.dtype
                type = replace(state.type, dtype="float64") if is_wide else state.type
                held = self._states.get(state.name)
                if held is None:
                    array = np.array(state.data, numpy_dtype(type.dtype))  # runs may change it
                    held = _StoredState(own.keep(array, type.dtype), type)
                elif held.type != type:
                    raise GraphError(
                        f"state {state.name!r} is {type}, but the store has {held.type} under that "
                        "name"
                    )
                held_states[state] = held
            self.memory = own
            self._states.update((state.name, held) for state, held in held_states.items())
            return {state: held.kept for state, held in held_states.items()}

    def arrange(self, names: Iterable[str]) -> None:
        """Moves these states to the end, in this order; names that it does not have are ignored."""
        with self.lock:
            for name in names:
                if name in self._states:
                    self._states[name] = self._states.pop(name)

    @contextmanager
    def unchanged(self, names: Iterable[str]) -> Iterator[None]:
        """Holds the lock meanwhile, and restores these states afterwards."""
        with self.lock:
            snapshot = {name: self[name].copy() for name in names}
            try:
                yield
            finally:
                for name, array in snapshot.items():
                    self[name] = array

    @property
    def _memory(self) -> StateMemory:
        assert self.memory is not None, "there are states"
        return self.memory

    def _held(self, name: str) -> _StoredState:
        if name not in self._states:
            raise KeyError(f"{name}: the store has {', '.join(self._states) or 'no states'}")
        return self._states[name]
