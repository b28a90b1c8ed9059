"""The table of launches that a network becomes on a GPU; it knows no graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from ..._cached_property import cached_property
from ...runtime.operand import KernelArgument, Operand, resolved
from .block import Block
from .functions import Loaded, Run


@dataclass(frozen=True, eq=False, slots=True)
class KernelRow:
    """A kernel of ours and what it is given: 64 bits each."""

    loaded: Loaded
    arguments: tuple[KernelArgument, ...]

    @classmethod
    def of(cls, loaded: Loaded, pointers: Sequence[KernelArgument]) -> KernelRow:
        """With the numbers of its launch."""
        return cls(loaded, (*pointers, *loaded.launch.numbers))

    def bind(self, bases: Sequence[int]) -> Run:
        """Launches it on CuPy's current stream, where slots begin at these addresses."""
        return self.loaded.bind(resolved(self.arguments, bases))


class LibraryCall(Protocol):
    """What a library computes, wherever its tensors lie."""

    def bind(self, addresses: Sequence[int]) -> Run:
        """Starts it on CuPy's current stream."""


@dataclass(frozen=True, eq=False, slots=True)
class LibraryRow:
    """A library's call and the addresses that it takes; what is not there has 0."""

    call: LibraryCall
    arguments: tuple[KernelArgument, ...]

    def bind(self, bases: Sequence[int]) -> Run:
        """Starts it on CuPy's current stream, where slots begin at these addresses."""
        return self.call.bind(resolved(self.arguments, bases))


Row = KernelRow | LibraryRow


@dataclass(frozen=True)
class Site:
    """An argument that is an address in a slot: of which row, counted over all tasks, which one,
    and how many bytes behind where the slot begins."""

    row: int
    argument: int
    offset: int


@dataclass(frozen=True)
class CudaTable:
    """Rows whose slots are the memory of an instance, then inputs, outputs, states and constants.

    Attributes:
        tasks: what each task starts, in order.
        block: how the memory of an instance is laid out.
        inputs, outputs: bytes of each.
        copies: outputs that no row writes: to, from, bytes.
    """

    tasks: tuple[tuple[Row, ...], ...]
    block: Block
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    copies: tuple[tuple[Operand, Operand, int], ...]

    def sites(self, slot: int) -> tuple[Site, ...]:
        """Every argument that is an address in a slot.

        None where a library takes one, which may keep it where nobody sees it, and where what lies
        there is also copied to an output.
        """
        return self._sites.get(slot, ())

    @cached_property
    def _sites(self) -> Mapping[int, tuple[Site, ...]]:
        """Of each slot that has any: there may be hundreds of slots, and of rows."""
        hidden = {source.slot for _, source, _ in self.copies}
        found: defaultdict[int, list[Site]] = defaultdict(list)
        for number, row in enumerate(chain.from_iterable(self.tasks)):
            for place, one in enumerate(row.arguments):
                if isinstance(one, Operand):
                    found[one.slot].append(Site(number, place, one.offset))
                    if isinstance(row, LibraryRow):
                        hidden.add(one.slot)
        return {slot: tuple(sites) for slot, sites in found.items() if slot not in hidden}
