"""A cache of a network's programs: one for each size of its arguments, least recently used out."""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidnn._forks import ForkLock
from minidnn._garbage_collection import garbage_collection_paused
from minidnn.acceleration.program import SizedProgram
from minidnn.frontends.torch.captured import CAPTURING

log = logging.getLogger(__name__)

#: Makes a program that is not in the cache.
Make = Callable[[], SizedProgram]


class Programs:
    """An LRU cache of programs, by the sizes of the arguments.

    Several threads may use it at once.  One thread of the process makes programs at a time; a
    thread whose program is cached and has the current weights does not wait for that.
    """

    def __init__(self, name: str, limit: int, kept_for: str = "sizes of arguments") -> None:
        """limit: the number of programs that are kept; kept_for: what keys are, in the plural, for
        messages."""
        self._name = name
        #: Whether there was the warning that a program is dropped, which comes once.
        self._has_warned = False
        #: Hashes of the keys for which programs were ever made.
        self._met: set[int] = set()
        self._limit = limit
        self._kept_for = kept_for
        self._found: OrderedDict[Any, SizedProgram] = OrderedDict()
        self._lock = ForkLock()  # of the cache, held briefly, never while a program is made
        self._last: _Last | None = None

    def items(self) -> list[tuple[Any, Any]]:
        """The keys and programs, least recently used first."""
        with self._lock:
            return list(self._found.items())

    def clear(self) -> None:
        """Drops all programs."""
        with self._lock:
            self._found.clear()
        self._last = None

    def run_by(
        self,
        leaves: Sequence[Any],
        arranged: Any,
        make: Make,
        arguments: Sequence[Any],
    ) -> tuple[Any, Any]:
        """Returns the program for these leaves (see :meth:`program_for`) and its result.

        It runs on ``arguments``: leaves and weights.  A GPU computes already while weights are
        checked; if they have changed, its result is discarded.
        """
        program = self._again(leaves, arranged)
        if program is None:
            program = self._kept(self._key(leaves, arranged))
            if program is not None:
                self._last = _Last(program, arranged, leaves)
        if program is not None:
            if program.starts_early:
                result = program.run(arguments)
                if program.watch.is_as_it_was():
                    return program, result
            elif program.watch.is_as_it_was():
                return program, program.run(arguments)
        program = self.program_for(leaves, arranged, make)
        return program, program.run(arguments)

    def program_for(self, leaves: Sequence[Any], arranged: Any, make: Make) -> SizedProgram:
        """Returns the program for such arguments: makes it if there is none, compiles it again if
        weights have changed since; both are logged."""
        key = self._key(leaves, arranged)
        with CAPTURING:
            program = self._kept(key)
            if program is not None and (name := program.watch.changed()) is not None:
                program = self._renewed(key, program, name)
            if program is None:
                program = self._made(key, leaves, make)
            self._last = _Last(program, arranged, leaves)
        return program

    def _key(self, leaves: Sequence[Any], arranged: Any) -> Any:
        """The cache key of a call: the arguments' structure, and the type of each leaf."""
        return (arranged, *map(key_of_leaf, leaves))

    def _kept(self, key: Any) -> SizedProgram | None:
        """The cached program of a key, which becomes the most recently used; None if missing."""
        with self._lock:
            program = self._found.get(key)
            if program is not None:
                self._found.move_to_end(key)
            return program

    def _keep(self, key: Any, program: SizedProgram) -> bool:
        """Caches a program.  Returns whether another one was dropped for it."""
        with self._lock:
            self._found[key] = program
            self._found.move_to_end(key)
            if len(self._found) > self._limit:
                self._found.popitem(last=False)
                return True
            return False

    def _again(self, leaves: Sequence[Any], arranged: Any) -> SizedProgram | None:
        """The program used last, if the arguments have its types; else None: look the key up."""
        last = self._last
        if last is None or last.arranged != arranged or len(leaves) != len(last.types):
            return None
        return last.program if all(map(_is_like, leaves, last.types)) else None

    def _renewed(self, key: Any, program: SizedProgram, name: str) -> SizedProgram | None:
        """Compiles a copy of a program again; None if a weight has another type."""
        if (refitted := program.watch.refitted()) is not None:
            log.info("%s: captured again: weight %s has another type", self._name, refitted)
            return None
        start = time.perf_counter()
        # Other threads keep checking the old program, which says that a weight has changed.
        program = copy.copy(program)
        program.watch = copy.copy(program.watch)
        program.compile()
        seconds = time.perf_counter() - start
        self._keep(key, program)
        log.info("%s: compiled again in %.1f s: weight %s changed", self._name, seconds, name)
        return program

    def _made(self, key: Any, leaves: Sequence[Any], make: Make) -> SizedProgram:
        """Makes and caches a program, and warns once if another one was dropped for it."""
        start = time.perf_counter()
        with garbage_collection_paused():
            program = make()
        seconds = time.perf_counter() - start
        key_hash = hash(key)  # the key itself may hold tensors
        note = ""
        if key_hash in self._met and key not in self._found:
            note = f", which had been dropped: {len(self._met)} {self._kept_for} so far"
        self._met.add(key_hash)
        log.info("%s: compiled in %.1f s for %s%s", self._name, seconds, program.sizes, note)
        if self._keep(key, program) and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %d %s so far, of which sizes=%d are kept: one that was dropped is compiled "
                "again when it comes again; sizes= as many as there will be keeps them all (this "
                "is said once)",
                self._name,
                len(self._met),
                self._kept_for,
                self._limit,
            )
        return program


class _Last:
    """The program used last, and the types of its leaves: with any but tensors it never matches."""

    def __init__(self, program: SizedProgram, arranged: Any, leaves: Sequence[Any]) -> None:
        self.program = program
        self.arranged = arranged
        self.types = [
            (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, torch.Tensor) else None
            for leaf in leaves
        ]


def _is_like(leaf: Any, expected: tuple[Any, ...] | None) -> bool:
    return (
        expected is not None
        and isinstance(leaf, torch.Tensor)
        and leaf.shape == expected[0]
        and leaf.dtype is expected[1]
        and leaf.device == expected[2]
    )


def describe(leaves: Sequence[Any]) -> str:
    """Returns the arguments' types, for messages."""
    shown = (
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves
    )
    return ", ".join(shown)


def key_of_leaf(leaf: Any, batch: bool = False) -> Any:
    """The part of the key for one argument; with ``batch`` it leaves the number of rows out."""
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape[1:] if batch else leaf.shape, leaf.dtype, leaf.device)
    return (type(leaf), "" if batch else repr(leaf))
