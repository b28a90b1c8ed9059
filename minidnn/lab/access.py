"""Memory accesses of warps: sectors, wavefronts, bank conflicts and bytes, counted from addresses.

A step's work function computes the element index of every lane for a sample of its blocks, and the
properties of :class:`Access` count what the hardware does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

WARP = 32
L1_CYCLES, L2_CYCLES, SHARED_CYCLES, FMA_CYCLES = 35, 260, 25, 4
"""Latencies in cycles: round figures of the architectures since Ampere."""
_SECTOR, _LINE, _WORD, _BANKS = 32, 128, 4, 32  # bytes, bytes, bytes, words
PAIR = 64
"""Bytes of a pair of neighbouring sectors: the unit in which memory is read and written, and L2 is
written."""


@dataclass(frozen=True, eq=False)
class Access:
    """A memory instruction as warps of some blocks execute it.

    Attributes:
        operand: name of the operand that is loaded or stored.
        space: address space of the access.
        at: index of the first element of each lane: (blocks, instructions, 32); below 0 for lanes
            that are inactive.
        times: how often the whole grid executes these instructions of the sampled blocks.
        store: whether the operand is stored.
        width: neighbouring elements that a lane loads or stores at once.
        bytes: size of an element.
    """

    operand: str
    space: Literal["global", "shared", "constant"]
    at: np.ndarray
    times: float
    store: bool = False
    width: int = 1
    bytes: int = 4

    @property
    def requests(self) -> float:
        """Warp instructions in which any lane is active."""
        return float((self.at >= 0).any(-1).sum()) * self.times

    @property
    def wanted_bytes(self) -> float:
        """Bytes that requests ask for, each element once for all lanes that share it."""
        return float(self.bytes) * self.width * float(_distinct(self.at).sum()) * self.times

    @property
    def sectors(self) -> float:
        """Sectors, of 32 bytes, that requests touch."""
        return float(_distinct(_keys(self.at, _SECTOR // self.bytes)).sum()) * self.times

    @property
    def block_sectors(self) -> float:
        """Sectors that requests touch, each counted once a block: those that L1 asks L2 for, if it
        keeps all that a block has loaded."""
        keys = _keys(self.at, _SECTOR // self.bytes)
        return float(_distinct(keys.reshape(keys.shape[0], -1)).sum()) * self.times

    @property
    def pairs(self) -> float:
        """Pairs of sectors that requests touch."""
        return float(_distinct(_keys(self.at, PAIR // self.bytes)).sum()) * self.times

    @property
    def block_pairs(self) -> float:
        """Pairs of sectors that requests touch, each counted once a block."""
        keys = _keys(self.at, PAIR // self.bytes)
        return float(_distinct(keys.reshape(keys.shape[0], -1)).sum()) * self.times

    @property
    def wavefronts(self) -> float:
        """Cycles of the load units: for global memory one for each line of 128 bytes that is
        touched, for shared memory as many as the busiest bank has different words to serve.  0
        for constant memory, which has its own units."""
        if self.space == "constant":
            return 0.0
        if self.space == "global":
            return float(_distinct(_keys(self.at, _LINE // self.bytes)).sum()) * self.times
        return float(_bank_turns(self.at, self.width, self.bytes).sum()) * self.times

    @property
    def least_wavefronts(self) -> float:
        """Wavefronts of shared memory if its words were spread evenly over the banks."""
        words = _distinct(_words(self.at, self.width, self.bytes))
        return float((-(-words // _BANKS)).sum()) * self.times


@dataclass(frozen=True, eq=False)
class Work:
    """What a kernel launch executes, over its whole grid.

    Attributes:
        accesses: its memory instructions.
        multiply_adds: warp instructions that are multiply-adds.
        instructions: all warp instructions, as estimated from the text.
        alone: cycles that a block takes if only its own latencies delay it.
        streams: operands that each wave of blocks reads, or writes, from beginning to end.
        tensor_products: warp instructions of tensor cores, each 16 by 8 sums of 16 products.
        repeats: iterations of the loop in which a thread would write and read spilled registers.
    """

    accesses: tuple[Access, ...]
    multiply_adds: float
    instructions: float
    alone: float
    streams: tuple[str, ...] = ()
    tensor_products: float = 0.0
    repeats: float = 1.0


def least_work(sizes: Mapping[str, int], operations: int) -> Work:
    """The least that any kernel must do: load or store each operand once, with 32 neighbouring
    floats a warp, and compute by multiply-adds alone.  The operand "y" is stored."""
    at = np.arange(WARP).reshape(1, 1, WARP)
    accesses = tuple(
        Access(name, "global", at, count / WARP, store=name == "y") for name, count in sizes.items()
    )
    products = operations / 2 / WARP
    return Work(accesses, products, products, L2_CYCLES)


def lanes(threads: int) -> np.ndarray:
    """The thread indices of a block, (warps, 32); -1 for lanes without a thread."""
    numbers = np.full(-(-threads // WARP) * WARP, -1)
    numbers[:threads] = np.arange(threads)
    return numbers.reshape(-1, WARP)


def turns(threads: int, count: int) -> np.ndarray:
    """The indices that threads process of ``count`` elements in a block-strided loop, by warp
    instruction and lane; -1 where no element is left."""
    numbers = lanes(threads)
    starts = np.arange(0, count, threads).reshape(-1, 1, 1)
    elements = np.where(numbers >= 0, starts + numbers, -1)
    return np.where(elements < count, elements, -1).reshape(-1, WARP)


def sample(count: int, most: int) -> np.ndarray:
    """At most ``most`` integers below ``count``, evenly spread, the first and the last included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def uniform(values: Iterable[int], threads: int) -> np.ndarray:
    """The indices of a warp-uniform access: for each of ``values``, an instruction in which all
    threads of a block want the same element."""
    value = np.fromiter(values, int).reshape(-1, 1, 1)
    return np.where(lanes(threads) >= 0, value, -1).reshape(1, -1, WARP)


def _keys(at: np.ndarray, size: int) -> np.ndarray:
    return np.where(at >= 0, at // size, -1)


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Counts the different keys along the last axis; those below 0 do not count."""
    ordered = np.sort(keys, axis=-1)
    new = ordered >= 0
    new[..., 1:] &= ordered[..., 1:] != ordered[..., :-1]
    return new.sum(-1)


def _words(at: np.ndarray, width: int, size: int) -> np.ndarray:
    """The words of shared memory that lanes want, for elements of ``size`` bytes."""
    count = max(1, width * size // _WORD)
    first = at[..., None] * size // _WORD
    words = np.where(at[..., None] >= 0, first + np.arange(count), -1)
    return words.reshape(-1, at.shape[-1] * count)


def _bank_turns(at: np.ndarray, width: int, size: int) -> np.ndarray:
    """For each instruction, the most different words that one bank must serve."""
    words = np.sort(_words(at, width, size), axis=-1)
    new = words >= 0
    new[:, 1:] &= words[:, 1:] != words[:, :-1]
    rows = np.repeat(np.arange(len(words))[:, None], words.shape[1], axis=1)
    served = np.bincount((rows * _BANKS + words % _BANKS)[new], minlength=len(words) * _BANKS)
    return served.reshape(-1, _BANKS).max(-1)
