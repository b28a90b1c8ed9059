"""Where steps move pixels to: pictures, and the masks and boxes that belong to them.

A step that moves pixels has ``move(shape, draws)``, which draws for a batch and gives a
:class:`BatchMove`.  One that leaves them where they are says ``places = False``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.data.datasets import DataError, Step
from minidnn.data.draws import Draws
from minidnn.data.warp import moved_boxes, warped

__all__ = ["BatchMove", "moved"]


class BatchMove:
    """What was drawn for a batch, and what it does to all that belongs to the pictures.

    >>> class Still(md.data.BatchMove):
    ...     def pictures(self, x):
    ...         return x
    ...     def masks(self, masks, fill):
    ...         return masks
    ...     def boxes(self, boxes, sizes):
    ...         return boxes
    """

    def pictures(self, x: np.ndarray) -> np.ndarray:
        """Pictures (N, C, H, W), which are the move's to write to."""
        raise NotImplementedError

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        """Masks (N, H, W) of whole numbers; what comes from outside is ``fill``."""
        raise NotImplementedError

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        """Boxes (N, M, 4) of left, top, right and bottom in pictures of these rows and columns,
        which may lie partly outside afterwards."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flipped(BatchMove):
    """Some samples (N,), of which left and right, or top and bottom, are exchanged."""

    samples: np.ndarray
    vertical: bool = False

    def _turned(self, x: np.ndarray) -> np.ndarray:
        x[self.samples] = np.flip(x[self.samples], -2 if self.vertical else -1)
        return x

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return self._turned(x)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return self._turned(masks.copy())

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        found = boxes.copy()
        low, size = (1, sizes[0]) if self.vertical else (0, sizes[1])
        found[self.samples, :, low] = size - boxes[self.samples, :, low + 2]
        found[self.samples, :, low + 2] = size - boxes[self.samples, :, low]
        return found


@dataclass(frozen=True)
class Cropped(BatchMove):
    """Squares that are cut out at rows and columns (N,) each, after padding on all sides."""

    tops: np.ndarray
    lefts: np.ndarray
    size: int
    padding: int

    def _cut(self, x: np.ndarray, fill: int) -> np.ndarray:
        wide, size = self.padding, self.size
        around = [(0, 0)] * (x.ndim - 2) + [(wide, wide)] * 2
        padded = np.pad(x, around, constant_values=fill)
        out = np.empty((*x.shape[:-2], size, size), x.dtype)
        for i, (top, left) in enumerate(zip(self.tops, self.lefts, strict=True)):
            out[i] = padded[i, ..., top : top + size, left : left + size]
        return out

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return self._cut(x, 0)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return self._cut(masks, fill)

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        shift = np.stack([self.padding - self.lefts, self.padding - self.tops] * 2, -1)
        return boxes + shift[:, None]


@dataclass(frozen=True)
class Resized(BatchMove):
    """Boxes (N, 4) of top, left, height and width, which become ``size`` rows and columns.
    ``resize`` makes a picture (C, H, W) of that size."""

    cuts: np.ndarray
    size: int
    resize: Any

    def pictures(self, x: np.ndarray) -> np.ndarray:
        out = np.empty((*x.shape[:2], self.size, self.size), np.float32)
        for i, (top, left, rows, columns) in enumerate(self.cuts.tolist()):
            out[i] = self.resize(x[i, :, top : top + rows, left : left + columns])
        return out

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        """The nearest pixel, as torchvision's "nearest" has it."""
        out = np.empty((len(masks), self.size, self.size), masks.dtype)
        for i, (top, left, rows, columns) in enumerate(self.cuts.tolist()):
            down, across = (np.arange(self.size) * n // self.size for n in (rows, columns))
            out[i] = masks[i][top + down[:, None], left + across]
        return out

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        top, left, rows, columns = self.cuts.T[:, :, None].astype(np.float64)
        begin = np.stack([left, top] * 2, -1)
        return (boxes - begin) * (self.size / np.stack([columns, rows] * 2, -1))


@dataclass(frozen=True)
class Matrices(BatchMove):
    """Affine maps (N, 2, 3), see :mod:`minidnn.data.warp`."""

    matrices: np.ndarray
    bilinear: bool = False
    fill: float | tuple[float, ...] | None = None

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return warped(x, self.matrices, self.bilinear, self.fill)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return warped(masks[:, None], self.matrices, fill=fill)[:, 0]

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        return moved_boxes(boxes, self.matrices, *sizes)


def moved(
    steps: Sequence[Step],
    x: np.ndarray,
    draws: Draws,
    masks: np.ndarray | None = None,
    boxes: np.ndarray | None = None,
    fill: int = 0,
    cut: bool = True,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Pictures after steps, with the masks and boxes that belong to them.

    Args:
        steps: steps of this module; one of your own has ``move(shape, draws)``, which gives a
            :class:`BatchMove`, or says ``places = False`` if it leaves pixels where they are.
        x: (N, C, H, W), float32.
        draws: the batch's.
        masks: (N, H, W), whole numbers, or None.
        boxes: (N, M, 4) of left, top, right and bottom, in pixels, or None.
        fill: what masks are where a picture has no pixels.
        cut: whether boxes are cut at the picture, so that what is outside has no area.

    Returns:
        All three.

    Raises:
        DataError: a step does not say where it moves pixels.

    >>> draws = md.data.Draws(seed=0, epoch=0, samples=np.arange(2))
    >>> pictures, masks = np.zeros((2, 3, 8, 8), np.float32), np.zeros((2, 8, 8), np.int64)
    >>> x, masks, _ = md.data.moved([md.data.Flip()], pictures, draws, masks)
    """
    for step in steps:
        move = getattr(step, "move", None)
        if move is None:
            if getattr(step, "places", None) is not False:
                raise DataError(
                    f"step {step!r:.80} does not say where it moves masks and boxes; valid is one "
                    "with move(shape, draws), which gives a minidnn.data.BatchMove, or with "
                    "places = False"
                )
            x = step(x, draws)
            continue
        found: BatchMove = move(x.shape, draws)
        sizes = (x.shape[2], x.shape[3])
        if masks is not None:
            masks = found.masks(masks, fill)
        if boxes is not None:
            boxes = found.boxes(boxes, sizes)
        x = found.pictures(x)
        if boxes is not None and cut:
            most = np.array([x.shape[3], x.shape[2]] * 2)
            boxes = np.clip(boxes, 0, most)
    return x, masks, boxes
