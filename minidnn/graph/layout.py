"""Physical layouts: how a value of logical shape (N, C, H, W) lies in memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from minidnn.graph.types import ITEMSIZE, TensorType


@dataclass(frozen=True, slots=True)
class Layout:
    """``block`` channels lie side by side for each pixel: 1 is NCHW, 0 is NHWC (all of them),
    16 is NCHW16c, whose last block is filled up with zeros."""

    name: str
    block: int

    def bytes(self, type: TensorType) -> int:
        """Bytes that a value takes in this layout."""
        if self.block <= 1 or type.rank != 4:
            return type.bytes
        batch, channels, *plane = type.shape
        padded = -(-channels // self.block) * self.block
        return batch * padded * prod(plane) * ITEMSIZE[type.dtype]

    def __str__(self) -> str:
        return self.name


PLANAR = Layout("NCHW", 1)
CHANNELS_LAST = Layout("NHWC", 0)


def blocked(block: int) -> Layout:
    """Channels in blocks: the SIMD lanes of one vector."""
    return Layout(f"NCHW{block}c", block)
