"""Images whose channels lie side by side, as kernels take them: in chunks of 16 bytes."""

from __future__ import annotations

from ..tensor import Tensor

LANES = 8
"""Elements of a chunk, of two bytes each."""


def is_aligned(t: Tensor, batch: int, lanes: int = LANES) -> bool:
    """Whether all pixels are whole chunks of so many elements."""
    steps = (t.channels, t.offset, t.pixel, *((t.image,) if batch > 1 else ()))
    return t.channel == 1 and all(step % lanes == 0 for step in steps)


def is_regular(t: Tensor) -> bool:
    """Whether all pixels of all images follow each other at one distance."""
    return t.rows * t.columns == 1 or (t.row == t.columns * t.pixel and t.image == t.rows * t.row)


def step_of(t: Tensor) -> int:
    """From one pixel to the next, through all images."""
    return t.image if t.rows * t.columns == 1 else t.pixel
