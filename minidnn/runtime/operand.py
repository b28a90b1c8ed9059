"""Addresses that are known once a network runs: an operand is so far behind where a slot begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Operand:
    """An address that a kernel receives: ``bases[slot] + offset`` bytes, for a run's ``bases``.

    Where items are computed one by one on several threads, ``item * item_stride + thread *
    thread_stride`` is added.
    """

    slot: int
    offset: int = 0
    item_stride: int = 0
    thread_stride: int = 0

    def __add__(self, bytes: int) -> Operand:
        return replace(self, offset=self.offset + bytes)


KernelArgument = int | Operand
"""What a kernel is given: a number, or an address."""


def resolved(arguments: Sequence[KernelArgument], bases: Sequence[int]) -> tuple[int, ...]:
    """Arguments as numbers, where slots begin at these addresses.

    Example:
        >>> resolved([7, Operand(1, 8)], [0x100, 0x200])
        (7, 520)
    """
    return tuple(one if isinstance(one, int) else bases[one.slot] + one.offset for one in arguments)
