"""The steps of the ladder of arrays that are reversed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..access import L2_CYCLES, SHARED_CYCLES, Access, Work, lanes, sample
from ..cuda_step import CudaStep, Sizes
from ..memory.ladder import SIZES, WordsShape
from ..step import Block, Ladder, Parameters

_BLOCKS = 16
"""That are looked at."""


def reversed_words(shape: WordsShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The last word first."""
    return operands["x"][::-1].astype(np.float64)


def _sizes(
    shape: WordsShape, block: Block, parameters: Parameters, *, sized: bool = False
) -> Sizes:
    threads = block[0] * block[1]
    return (-(-shape.count // threads), 1, 1), (*block, 1), 4 * threads * sized


def _work(shape: WordsShape, block: Block, parameters: Parameters, *, kept: bool) -> Work:
    """``kept``: in shared memory, and written in the order of lanes."""
    threads = block[0] * block[1]
    blocks = -(-shape.count // threads)
    chosen, number = sample(blocks, _BLOCKS).reshape(-1, 1, 1), lanes(threads)
    first, share = chosen * threads, blocks / chosen.size
    read = first + number
    there = (number >= 0) & (read < shape.count)
    x = Access("x", "global", np.where(there, read, -1), share)
    last = np.minimum(threads, shape.count - first) - 1
    written = shape.count - 1 - (first + (last - number if kept else number))
    y = Access("y", "global", np.where(there, written, -1), share, store=True)
    if not kept:
        return Work((x, y), 0.0, 12 * x.requests, L2_CYCLES)
    inside = np.where(there, number, -1)
    to_shared = Access("x", "shared", inside, share, store=True)
    of_shared = Access("x", "shared", np.where(there, last - number, -1), share)
    accesses = (x, to_shared, of_shared, y)
    return Work(accesses, 0.0, 20 * x.requests, L2_CYCLES + 2 * SHARED_CYCLES)


def _step(name: str, kept: bool, **given: Any) -> CudaStep:
    source = Path(__file__).parent / f"{name}.cu"
    return CudaStep(name=name, source=source, work=partial(_work, kept=kept), **given)


REVERSE = Ladder(
    "reverse",
    "an array reversed, float32",
    WordsShape(),
    (
        _step("direct", False, sizes=_sizes),
        _step("fixed", True, sizes=_sizes, helps=("uncoalesced accesses",)),
        _step("sized", True, sizes=partial(_sizes, sized=True)),
    ),
    reversed_words,
    {name: WordsShape(count) for name, count in SIZES.items()},
)
