"""The launch table of a compiled network: its kernels and library calls in order, whose arguments
are integers or addresses in slots of memory.  It knows no graph."""

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
    """A kernel of ours and its arguments, 64 bits each."""

    loaded: Loaded
    arguments: tuple[KernelArgument, ...]

    @classmethod
    def of(cls, loaded: Loaded, pointers: Sequence[KernelArgument]) -> KernelRow:
        """A row with these pointers, and then the numbers of the launch."""
        return cls(loaded, (*pointers, *loaded.launch.numbers))

    def bind(self, bases: Sequence[int]) -> Run:
        """Returns what launches it on CuPy's current stream; slots begin at these addresses."""
        return self.loaded.bind(resolved(self.arguments, bases))


class LibraryCall(Protocol):
    """A call of a library, on tensors at any addresses."""

    def bind(self, addresses: Sequence[int]) -> Run:
        """Returns what starts it on CuPy's current stream, on tensors at these addresses."""


@dataclass(frozen=True, eq=False, slots=True)
class LibraryRow:
    """A library's call and the addresses that it takes; a tensor that is absent has address 0."""

    call: LibraryCall
    arguments: tuple[KernelArgument, ...]

    def bind(self, bases: Sequence[int]) -> Run:
        """Returns what starts it on CuPy's current stream; slots begin at these addresses."""
        return self.call.bind(resolved(self.arguments, bases))


Row = KernelRow | LibraryRow


@dataclass(frozen=True)
class Site:
    """An argument that is an address in a slot.

    Attributes:
        row: the index of the row, counted through all tasks.
        argument: the index of the argument in the row.
        offset: bytes from where the slot begins.
    """

    row: int
    argument: int
    offset: int


@dataclass(frozen=True)
class CudaTable:
    """Rows over slots of memory: the block of an instance, then inputs, outputs, states, constants.

    Attributes:
        tasks: the rows of each task, in order.
        block: the memory layout of an instance.
        inputs, outputs: the size of each, in bytes.
        copies: for each output that no row writes, its address, the source, and its bytes.
    """

    tasks: tuple[tuple[Row, ...], ...]
    block: Block
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    copies: tuple[tuple[Operand, Operand, int], ...]

    def sites(self, slot: int) -> tuple[Site, ...]:
        """Every argument that is an address in a slot: what a captured graph changes to work on
        another array.

        There are none if a library takes such an address, as it may keep that out of sight, or if
        the slot is also copied to an output.
        """
        return self._sites.get(slot, ())

    @cached_property
    def _sites(self) -> Mapping[int, tuple[Site, ...]]:
        """The sites of each slot that has any.  There may be hundreds of slots, and of rows."""
        hidden = {source.slot for _, source, _ in self.copies}
        by_slot: defaultdict[int, list[Site]] = defaultdict(list)
        for number, row in enumerate(chain.from_iterable(self.tasks)):
            for position, argument in enumerate(row.arguments):
                if isinstance(argument, Operand):
                    by_slot[argument.slot].append(Site(number, position, argument.offset))
                    if isinstance(row, LibraryRow):
                        hidden.add(argument.slot)
        return {slot: tuple(sites) for slot, sites in by_slot.items() if slot not in hidden}
