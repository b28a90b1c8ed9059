"""The layout of a value in device memory, as kernels address it: by strides in elements."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.layout import Layout
from ...graph.types import ITEMSIZE, TensorType
from ...kernels.ops.planes import PlaneStrides


@dataclass(frozen=True, slots=True)
class Tensor(PlaneStrides):
    """Strides of a value of floats or bytes, to which a kernel's pointer is aligned to 16 bytes."""

    @property
    def is_planar(self) -> bool:
        """Whether the pixels of a channel are contiguous: NCHW."""
        return self.pixel == 1 and (self.channel != 1 or self.channels == 1)

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def is_wide(self) -> bool:
        """Whether 32 bits may not suffice for an offset in an image, also of what windows read past
        its last element."""
        extents = (self.channels, self.channel), (self.rows, self.row), (self.columns, self.pixel)
        return sum(count * step for count, step in extents) >= 1 << 30


def tensor_of(
    type: TensorType, layout: Layout, buffer: TensorType | None = None, channel: int = 0
) -> Tensor:
    """The strides of a value in NCHW or NHWC.

    ``buffer`` is the wider value of which it is a slice, from ``channel`` on; kernels take a
    pointer to the buffer.
    """
    _, channels, rows, columns = type.plane
    wide = (buffer or type).plane[1]
    size = rows * columns
    if layout.block == 1 or type.rank != 4:
        return Tensor(
            type.dtype, channels, rows, columns, wide * size, size, columns, 1, channel * size
        )
    assert layout.block == 0, f"no CUDA kernel reads {layout}"
    return Tensor(
        type.dtype, channels, rows, columns, wide * size, 1, columns * wide, wide, channel
    )


LANES = 8
"""Elements of a chunk: 16 bytes in half precision."""


def is_aligned(t: Tensor, batch: int, lanes: int = LANES) -> bool:
    """Whether channels are contiguous, and each pixel is whole chunks of ``lanes`` elements."""
    steps = (t.channels, t.offset, t.pixel, *((t.image,) if batch > 1 else ()))
    return t.channel == 1 and all(step % lanes == 0 for step in steps)


def is_regular(t: Tensor) -> bool:
    """Whether there is a single stride from pixel to pixel, through all images."""
    return t.rows * t.columns == 1 or (t.row == t.columns * t.pixel and t.image == t.rows * t.row)


def step_of(t: Tensor) -> int:
    """The stride from one pixel to the next, through all images (see :func:`is_regular`)."""
    return t.image if t.rows * t.columns == 1 else t.pixel


def has_contiguous_channels(t: Tensor) -> bool:
    """Whether the pixels of a channel are contiguous in each image."""
    return t.pixel == 1 and t.row == t.columns
