"""The steps of the ladder of transposed matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..access import L2_CYCLES, SHARED_CYCLES, Access, Work, lanes, sample
from ..cuda_step import CudaStep, Sizes
from ..step import Block, Ladder, Parameters

_TILES = 8
"""Down and across, that are looked at."""


@dataclass(frozen=True)
class TransposeShape:
    """Rows and columns of what is transposed."""

    height: int = 8192
    width: int = 8192

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number < 1:
                raise UnsupportedError(f"{name}={number}; valid are 1 and more")

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.height * self.width, "y": self.height * self.width}

    @property
    def operations(self) -> int:
        """None."""
        return 0

    @property
    def terms(self) -> int:
        """Nothing is rounded."""
        return 0


def transposed(shape: TransposeShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The result in float64."""
    return operands["x"].reshape(shape.height, shape.width).T.astype(np.float64)


def _by_block(shape: TransposeShape, block: Block, parameters: Parameters) -> Sizes:
    return (-(-shape.width // block[0]), -(-shape.height // block[1]), 1), (*block, 1), 0


def _by_tile(shape: TransposeShape, block: Block, parameters: Parameters) -> Sizes:
    side = block[0]
    return (-(-shape.width // side), -(-shape.height // side), 1), (*block, 1), 0


def _work(
    shape: TransposeShape, block: Block, parameters: Parameters, *, row: int | None = None
) -> Work:
    """``row``: numbers of shared memory behind each row of a tile; None without a tile."""
    side = block[0] if row is not None else block[1]
    down, across = -(-shape.height // side), -(-shape.width // block[0])
    tops, lefts = sample(down, _TILES), sample(across, _TILES)
    share = down * across / (len(tops) * len(lefts))
    top, left = (part.reshape(-1, 1, 1, 1) for part in np.meshgrid(tops * side, lefts * block[0]))
    number = lanes(block[0] * block[1])
    turn = np.arange(-(-side // block[1])).reshape(1, -1, 1, 1)
    i, j = turn * block[1] + number // block[0], number % block[0]
    there = (number >= 0) & (i < side)

    def places(at: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return np.where(inside, at, -1).reshape(len(top), -1, 32)

    r, c = top + i, left + j
    inside = there & (r < shape.height) & (c < shape.width)
    x = Access("x", "global", places(r * shape.width + c, inside), share)
    if row is None:
        y = Access("y", "global", places(c * shape.height + r, inside), share, store=True)
        return Work((x, y), 0.0, 14 * x.requests, L2_CYCLES)
    r, c = left + i, top + j
    inside = there & (r < shape.width) & (c < shape.height)
    y = Access("y", "global", places(r * shape.height + c, inside), share, store=True)
    length, blocks = side + row, down * across
    kept = np.where(there, i * length + j, -1).reshape(1, -1, 32)
    read = np.where(there, j * length + i, -1).reshape(1, -1, 32)
    to_tile = Access("x", "shared", kept, blocks, store=True)
    of_tile = Access("x", "shared", read, blocks)
    wait = L2_CYCLES + 2 * SHARED_CYCLES
    return Work((x, to_tile, of_tile, y), 0.0, 20 * x.requests, wait)


def _step(name: str, **given: Any) -> CudaStep:
    return CudaStep(name=name, source=Path(__file__).parent / f"{name}.cu", **given)


TRANSPOSE = Ladder(
    "transpose",
    "a matrix transposed, float32",
    TransposeShape(),
    (
        _step("rows", sizes=_by_block, work=_work),
        _step(
            "shared", sizes=_by_tile, work=partial(_work, row=0), helps=("uncoalesced accesses",)
        ),
        _step("padded", sizes=_by_tile, work=partial(_work, row=1), helps=("bank conflicts",)),
    ),
    transposed,
    {str(size): TransposeShape(size, size) for size in (1024, 8192)},
)
