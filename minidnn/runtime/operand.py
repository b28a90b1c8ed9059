"""Operands: addresses that are known only when a network runs, as a slot and an offset in it.

A lowered program contains operands; each run supplies the base address of every slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Operand:
    """An address that a kernel receives: ``bases[slot] + offset`` bytes, for a run's ``bases``.

    Where several threads compute items (images) one by one, ``item * item_stride + thread *
    thread_stride`` bytes are added.
    """

    slot: int
    offset: int = 0
    item_stride: int = 0
    thread_stride: int = 0

    def __add__(self, bytes: int) -> Operand:
        return replace(self, offset=self.offset + bytes)


KernelArgument = int | Operand
"""An argument of a kernel launch: an integer, or an address."""


def resolved(arguments: Sequence[KernelArgument], bases: Sequence[int]) -> tuple[int, ...]:
    """The arguments as integers, for slots with these base addresses.

    Example:
        >>> resolved([7, Operand(1, 8)], [0x100, 0x200])
        (7, 520)
    """
    return tuple(a if isinstance(a, int) else bases[a.slot] + a.offset for a in arguments)
