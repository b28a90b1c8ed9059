"""The programs of one network: one for each size of its arguments, as many as are kept."""

from __future__ import annotations

import copy
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidnn._forks import ForkLock
from minidnn._garbage_collection import garbage_collection_paused
from minidnn.acceleration.program import SizedProgram
from minidnn.frontends.torch.captured import CAPTURING

log = logging.getLogger(__name__)

#: Makes the program that is missing.
Make = Callable[[], SizedProgram]


class Programs:
    """Programs by the sizes of the arguments; when there are too many, the one not used for the
    longest time is dropped.

    Several threads may ask at once.  Whose program is there and as its weights are does not wait
    for one that is being made, which one thread of the process does at a time.
    """

    def __init__(
        self, name: str, limit: int, kept_for: str = "sizes of arguments", warns: bool = True
    ) -> None:
        """kept_for: what there are programs for, in the plural; warns: whether to warn when there
        are more of these than are kept."""
        self._name = name
        self._has_warned = not warns
        #: What there were programs for, by their hashes.
        self._met: set[int] = set()
        self._limit = limit
        self._kept_for = kept_for
        self._found: OrderedDict[Any, SizedProgram] = OrderedDict()
        self._lock = ForkLock()  # of what was found, for a moment; never while one is made
        self._last: _Last | None = None

    def __iter__(self) -> Iterator[Any]:
        """The programs, the one used last at the end."""
        with self._lock:
            return iter(list(self._found.values()))

    def items(self) -> list[tuple[Any, Any]]:
        """The programs with what they are for, the one used last at the end."""
        with self._lock:
            return list(self._found.items())

    def clear(self) -> None:
        """Drops all programs."""
        with self._lock:
            self._found.clear()
        self._last = None

    def run(
        self,
        leaves: Sequence[Any],
        arranged: Any,
        make: Make,
        arguments: Sequence[Any] | None = None,
    ) -> Any:
        """The result of the program for these arguments, see :meth:`program_for`, which is run on
        ``arguments`` if weights are among them.

        A GPU is at work already while weights are looked at; if they turn out to have changed, its
        result is thrown away.
        """
        return self.run_by(leaves, arranged, make, arguments)[1]

    def run_by(
        self,
        leaves: Sequence[Any],
        arranged: Any,
        make: Make,
        arguments: Sequence[Any] | None = None,
    ) -> tuple[Any, Any]:
        """The program, and its result: see :meth:`run`."""
        arguments = leaves if arguments is None else arguments
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
        """The program for such arguments, made if there is none yet, and compiled again if weights
        have changed since; both are logged."""
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
        """What a program is for."""
        return (arranged, *map(key_of_leaf, leaves))

    def _kept(self, key: Any) -> SizedProgram | None:
        """The program of this key, from now on the one used last."""
        with self._lock:
            program = self._found.get(key)
            if program is not None:
                self._found.move_to_end(key)
            return program

    def _keep(self, key: Any, program: SizedProgram) -> bool:
        """Keeps a program; whether another had to go."""
        with self._lock:
            self._found[key] = program
            self._found.move_to_end(key)
            if len(self._found) > self._limit:
                self._found.popitem(last=False)
                return True
            return False

    def _again(self, leaves: Sequence[Any], arranged: Any) -> SizedProgram | None:
        """The program used last, if these arguments are of its types; None says nothing."""
        last = self._last
        if last is None or last.arranged != arranged or len(leaves) != len(last.types):
            return None
        return last.program if all(map(_is_like, leaves, last.types)) else None

    def _renewed(self, key: Any, program: SizedProgram, name: str) -> SizedProgram | None:
        if (refitted := program.watch.refitted()) is not None:
            log.info("%s: captured again: weight %s has another type", self._name, refitted)
            return None
        start = time.perf_counter()
        # Other threads go on asking the one that there is, which says that a weight has changed.
        program = copy.copy(program)
        program.watch = copy.copy(program.watch)
        program.compile()
        seconds = time.perf_counter() - start
        self._keep(key, program)
        log.info("%s: compiled again in %.1f s: weight %s changed", self._name, seconds, name)
        return program

    def _made(self, key: Any, leaves: Sequence[Any], make: Make) -> SizedProgram:
        start = time.perf_counter()
        with garbage_collection_paused():
            program = make()
        seconds = time.perf_counter() - start
        met = hash(key)  # the key itself may hold tensors
        again = ""
        if met in self._met and key not in self._found:
            again = f", which had been dropped: {len(self._met)} {self._kept_for} so far"
        self._met.add(met)
        log.info("%s: compiled in %.1f s for %s%s", self._name, seconds, program.sizes, again)
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
    """The program used last, and what it was given: tensors, else it is found by its key."""

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
    """The arguments' types, for messages."""
    shown = (
        f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in leaves
    )
    return ", ".join(shown)


def key_of_leaf(leaf: Any, batch: bool = False) -> Any:
    """What a program has to know of an argument; with ``batch`` whatever its number of rows is."""
    if isinstance(leaf, torch.Tensor):
        return (leaf.shape[1:] if batch else leaf.shape, leaf.dtype, leaf.device)
    return (type(leaf), "" if batch else repr(leaf))
