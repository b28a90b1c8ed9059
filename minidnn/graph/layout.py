"""Physical layouts: the order in memory of the elements of a value (N, C, H, W)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from minidnn.graph.types import ITEMSIZE, TensorType


@dataclass(frozen=True, slots=True)
class Layout:
    """A physical layout: ``block`` channels of a pixel are contiguous in memory.

    1 is NCHW, 0 is NHWC (all channels), and 16 is NCHW16c, whose last block is padded with zeros.
    """

    name: str
    block: int

    def bytes(self, type: TensorType) -> int:
        """The bytes of a value in this layout, padding included."""
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
    """The layout with blocks of channels, which are the SIMD lanes of one vector."""
    return Layout(f"NCHW{block}c", block)
