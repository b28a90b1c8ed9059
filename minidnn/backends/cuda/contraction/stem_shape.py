"""How a block computes the gradient of a filter of few input channels: its tiles, its warps, and
where an image's rows lie in shared memory.

The rows of an image lie in shared memory so that what a window reads of one of them, S * C numbers
side by side, begins at a multiple of 16 bytes for every pixel: then ``ldmatrix`` reads windows
where they overlap, and nothing is copied for each pixel.  Pixels are ``step`` numbers apart.  Where
that is no multiple of eight, a row lies there in several copies, each shifted by ``step``: copy g
is for every pixel whose number leaves g.  Channels may be filled up, which makes the step even or
the copies few.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

from ..machine import Machine
from .problem import ContractionProblem

WARPS = 8
MOST_CHANNELS = 8
MOST_TAPS = 7
"""Rows and columns of a window."""
_PIXELS = 128
"""Of a step at most."""
_MOST_STAGES = 4
_LEAST_STAGES = 2
_MOST_SUMS = 88
_MOST_SUMS_BEFORE = 64
"""Of a thread on Hopper and on GPUs before it, for which more do not compile into the 128 registers
that a thread has where a multiprocessor has two blocks."""
_HOPPER = (9, 0)
_RESERVED = 1024
"""Bytes of shared memory that each block takes beside its own."""
_CHUNK = 8
"""Numbers in 16 bytes."""


@dataclass(frozen=True)
class Rows:
    """How a row of the image lies for windows of so many numbers, ``step`` apart.

    Attributes:
        channels: of a pixel, filled up.
        step: numbers from one pixel of the result to the next.
        chunks: of 16 bytes that a window takes of a row.
    """

    channels: int
    step: int
    chunks: int

    @property
    def copies(self) -> int:
        return _CHUNK // gcd(_CHUNK, self.step)

    def pitch(self, pixels: int) -> int:
        """Numbers from one copy to the next: windows of eight pixels share as few banks as may
        be.  There is room for one pixel more."""
        reached = (pixels - self.copies) * self.step + self.chunks * _CHUNK
        least = -(-(reached + self.channels) // _CHUNK)
        return _CHUNK * min(range(least, least + _CHUNK), key=self._crowd)

    def _crowd(self, pitch: int) -> int:
        """How many of eight windows share banks, where copies are so many chunks apart."""
        ahead = self.step * self.copies // _CHUNK
        banks = [
            (pixel % self.copies * pitch + pixel // self.copies * ahead) % _CHUNK
            for pixel in range(_CHUNK)
        ]
        return max(map(banks.count, banks))


def rows_of(channels: int, window: int, stride: int) -> Rows:
    """The way to lay rows out that makes fewest products, then fewest copies."""
    found = [
        Rows(wide, wide * stride, -(-window * wide // _CHUNK))
        for wide in range(channels, MOST_CHANNELS + 1)
    ]
    return min(found, key=lambda rows: (rows.chunks, rows.copies, rows.channels))


@dataclass(frozen=True)
class StemShape:
    """What a block does in a step: the products of ``down`` times ``across`` pixels of the result.

    Attributes:
        filters: of a block.
        filter_groups: of warps, which share the filters out.
        tap_groups: of warps, which share the chunks of the window out.
        down: rows of the result.
        across: pixels of a row of them.
        stages: steps whose gradients have room in shared memory.
        rows: how a row of the image lies.
        window: chunks of the whole window.
        kept: rows of the image in shared memory.
    """

    filters: int
    filter_groups: int
    tap_groups: int
    down: int
    across: int
    stages: int
    rows: Rows
    window: int
    kept: int

    @property
    def pixel_groups(self) -> int:
        """Of warps, which share the pixels out."""
        return WARPS // (self.filter_groups * self.tap_groups)

    @property
    def chunks(self) -> int:
        """Of the window, that a warp takes."""
        return -(-self.window // self.tap_groups)

    @property
    def row_bytes(self) -> int:
        """Of a row of the image, with its copies."""
        return self.rows.copies * self.rows.pitch(self.across) * 2

    @property
    def stage_bytes(self) -> int:
        return self.down * self.across * self.filters * 2

    @property
    def shared_bytes(self) -> int:
        """Zeros, rows of the image and gradients; in the end the block's sums."""
        running = 16 + self.kept * self.row_bytes + self.stages * self.stage_bytes
        return max(running, self.filters * self.window * _CHUNK * 4)

    def blocks(self, machine: Machine) -> int:
        """Side by side on a multiprocessor."""
        room = machine.shared_bytes + _RESERVED
        return min(2, room // (self.shared_bytes + _RESERVED))


def shape_of(problem: ContractionProblem, machine: Machine) -> StemShape | None:
    """The largest steps that leave room for two blocks, or for one; None if none has room."""
    sums = _MOST_SUMS if machine.capability >= _HOPPER else _MOST_SUMS_BEFORE
    found = list(_shapes(problem, sums))
    for blocks in (2, 1):
        for shape in found:
            if shape.blocks(machine) >= blocks:
                return shape
    return None


def _shapes(problem: ContractionProblem, sums: int) -> Iterator[StemShape]:
    """From large steps to small ones, each with many stages and with few."""
    _, channels, down, across = problem.w.shape
    y, stride = problem.y, problem.stride
    rows = rows_of(channels, across, stride[1])
    window = down * rows.chunks
    filters, filter_groups, tap_groups = _warps(problem.w.shape[0], window, sums)
    for most in range(_PIXELS, 0, -16):
        parts = -(-y.columns // most)
        wide = -(-y.columns // parts // 16) * 16
        high = max(1, min(y.rows, most // wide))
        kept = (high - 1) * stride[0] + down + high * stride[0]
        for stages in range(_MOST_STAGES, _LEAST_STAGES - 1, -1):
            yield StemShape(
                *(filters, filter_groups, tap_groups, high, wide, stages, rows, window, kept)
            )


def _warps(filters: int, window: int, sums: int) -> tuple[int, int, int]:
    """Filters of a block, and how its warps share filters and chunks out: so that a thread has
    no more than ``sums`` and tensor cores and shared memory have least to do."""
    most = min(64, -(-filters // 16) * 16)
    most = 64 if most == 48 else most
    for made in (most, 32, 16):
        priced = []
        for by_filter in (1, 2, 4):
            for by_tap in (1, 2, 4, 8):
                own = -(-window // by_tap)
                fits = made // 16 % by_filter == 0 and by_filter * by_tap <= WARPS
                if fits and own <= window and made // 16 // by_filter * own * 4 <= sums:
                    products = made * own * by_tap * 8 / 1024
                    read = (made * 2 * by_tap + own * by_tap * 16 * by_filter) / 128
                    priced.append((products + read, made, by_filter, by_tap))
        if priced:
            return min(priced)[1:]
    raise AssertionError(f"no warps for a window of {window} chunks")
