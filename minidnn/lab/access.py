"""What warps read and write: sectors, banks and bytes, counted from the addresses themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

WARP = 32
L1_CYCLES, L2_CYCLES, SHARED_CYCLES, FMA_CYCLES = 35, 260, 25, 4
"""From an instruction to what needs its result: round figures of the architectures since Ampere."""
_SECTOR, _LINE, _WORD, _BANKS = 32, 128, 4, 32  # bytes, bytes, bytes, words
PAIR = 64
"""Bytes of two sectors that follow each other: less is neither moved to memory or from it, nor
written to L2."""


@dataclass(frozen=True, eq=False)
class Access:
    """A memory instruction as warps of some blocks execute it.

    Attributes:
        operand: what is read or written.
        space: where it lies.
        at: the number that each lane wants first: (blocks, instructions, 32); below 0 of lanes
            that take no part.
        times: how often the whole grid does what stands here.
        store: whether it is written.
        width: neighbouring numbers a lane.
        bytes: of a number.
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
        """Warp instructions of which any lane takes part."""
        return float((self.at >= 0).any(-1).sum()) * self.times

    @property
    def wanted_bytes(self) -> float:
        """What requests asked for, each number once for all lanes that share it."""
        return float(self.bytes) * self.width * float(_distinct(self.at).sum()) * self.times

    @property
    def sectors(self) -> float:
        """Pieces of 32 bytes that requests touch."""
        return float(_distinct(_keys(self.at, _SECTOR // self.bytes)).sum()) * self.times

    @property
    def block_sectors(self) -> float:
        """The same, each counted once a block: what a cache that keeps all of it asks for."""
        keys = _keys(self.at, _SECTOR // self.bytes)
        return float(_distinct(keys.reshape(keys.shape[0], -1)).sum()) * self.times

    @property
    def pairs(self) -> float:
        """Pairs of sectors that requests touch."""
        return float(_distinct(_keys(self.at, PAIR // self.bytes)).sum()) * self.times

    @property
    def block_pairs(self) -> float:
        """The same, each counted once a block."""
        keys = _keys(self.at, PAIR // self.bytes)
        return float(_distinct(keys.reshape(keys.shape[0], -1)).sum()) * self.times

    @property
    def wavefronts(self) -> float:
        """Turns of the load units: of global memory one for each 128 bytes touched, of shared
        memory as many as the busiest bank gives different words; constant memory has its own."""
        if self.space == "constant":
            return 0.0
        if self.space == "global":
            return float(_distinct(_keys(self.at, _LINE // self.bytes)).sum()) * self.times
        return float(_bank_turns(self.at, self.width, self.bytes).sum()) * self.times

    @property
    def least_wavefronts(self) -> float:
        """The same of shared memory, were its words spread over the banks."""
        words = _distinct(_words(self.at, self.width, self.bytes))
        return float((-(-words // _BANKS)).sum()) * self.times


@dataclass(frozen=True, eq=False)
class Work:
    """What a launch does.

    Attributes:
        accesses: its memory instructions.
        multiply_adds: warp instructions of that kind.
        tensor_products: warp instructions of tensor cores, each 16 by 8 sums of 16 products.
        instructions: warp instructions in all, as estimated from the text.
        alone: cycles that a block takes if nothing but its own latencies delays it.
        streams: operands that each wave of blocks reads, or writes, from begin to end.
        repeats: how often a thread goes through the text in which registers that are spilled would
            be written and read.
    """

    accesses: tuple[Access, ...]
    multiply_adds: float
    instructions: float
    alone: float
    streams: tuple[str, ...] = ()
    tensor_products: float = 0.0
    repeats: float = 1.0


def least_work(sizes: Mapping[str, int], operations: int) -> Work:
    """What any kernel must do: read and write each operand once, a warp 32 floats side by side, and
    compute by multiply-adds alone.  The operand "y" is written."""
    at = np.arange(WARP).reshape(1, 1, WARP)
    accesses = tuple(
        Access(name, "global", at, count / WARP, store=name == "y") for name, count in sizes.items()
    )
    products = operations / 2 / WARP
    return Work(accesses, products, products, L2_CYCLES)


def lanes(threads: int) -> np.ndarray:
    """The threads of a block by warp and lane, -1 where there are none."""
    numbers = np.full(-(-threads // WARP) * WARP, -1)
    numbers[:threads] = np.arange(threads)
    return numbers.reshape(-1, WARP)


def turns(threads: int, count: int) -> np.ndarray:
    """What threads take of ``count`` things, one after the other all together, by warp and lane;
    -1 where nothing is left."""
    numbers = lanes(threads)
    starts = np.arange(0, count, threads).reshape(-1, 1, 1)
    taken = np.where(numbers >= 0, starts + numbers, -1)
    return np.where(taken < count, taken, -1).reshape(-1, WARP)


def sample(count: int, most: int) -> np.ndarray:
    """So many of the numbers below ``count``, evenly spread with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def uniform(values: Iterable[int], threads: int) -> np.ndarray:
    """Instructions of which all threads of a block want the same float, for each of some."""
    value = np.fromiter(values, int).reshape(-1, 1, 1)
    return np.where(lanes(threads) >= 0, value, -1).reshape(1, -1, WARP)


def _keys(at: np.ndarray, size: int) -> np.ndarray:
    return np.where(at >= 0, at // size, -1)


def _distinct(keys: np.ndarray) -> np.ndarray:
    """How many different keys there are along the last axis, none below 0."""
    ordered = np.sort(keys, axis=-1)
    new = ordered >= 0
    new[..., 1:] &= ordered[..., 1:] != ordered[..., :-1]
    return new.sum(-1)


def _words(at: np.ndarray, width: int, size: int) -> np.ndarray:
    """The words of shared memory that lanes want, of numbers of so many bytes."""
    count = max(1, width * size // _WORD)
    first = at[..., None] * size // _WORD
    words = np.where(at[..., None] >= 0, first + np.arange(count), -1)
    return words.reshape(-1, at.shape[-1] * count)


def _bank_turns(at: np.ndarray, width: int, size: int) -> np.ndarray:
    """The most different words that one bank gives, for each instruction."""
    words = np.sort(_words(at, width, size), axis=-1)
    new = words >= 0
    new[:, 1:] &= words[:, 1:] != words[:, :-1]
    rows = np.repeat(np.arange(len(words))[:, None], words.shape[1], axis=1)
    given = np.bincount((rows * _BANKS + words % _BANKS)[new], minlength=len(words) * _BANKS)
    return given.reshape(-1, _BANKS).max(-1)
