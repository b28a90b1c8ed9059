"""Where steps move pixels to: pictures, and the masks and boxes that belong to them.

A step that moves pixels has ``move(shape, draws)``, which draws for a batch and gives a
:class:`BatchMove`.  One that leaves them where they are says ``places = False``.  Affine maps are
about the middle of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, radians, sin, tan
from typing import Any

import numpy as np

from minidnn.data.datasets import Arrays, DataError, Draws, Step, named

__all__ = ["BatchMove", "Boxes", "Masks", "inverse_matrix", "moved", "warped"]


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
    """Affine maps (N, 2, 3), see :mod:`minidnn.data.moves`."""

    matrices: np.ndarray
    bilinear: bool = False
    fill: float | tuple[float, ...] | None = None

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return warped(x, self.matrices, self.bilinear, self.fill)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return warped(masks[:, None], self.matrices, fill=fill)[:, 0]

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        return _moved_boxes(boxes, self.matrices, *sizes)


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


def inverse_matrix(
    angle: float = 0.0,
    translate: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    center: tuple[float, float] = (0.0, 0.0),
) -> np.ndarray:
    """Where pixels come from, (2, 3): to columns and rows from the middle, and 1, those of the
    source. The arguments are those of torchvision's ``affine``, but the centre counts from the
    middle, too; angles are degrees."""
    turn, across, down = radians(angle), radians(shear[0]), radians(shear[1])
    a = cos(turn - down) / cos(down)
    b = -cos(turn - down) * tan(across) / cos(down) - sin(turn)
    c = sin(turn - down) / cos(down)
    d = -sin(turn - down) * tan(across) / cos(down) + cos(turn)
    whole = np.array([[d, -b], [-c, a]]) / scale
    middle, shift = np.array(center), np.array(translate)
    return np.column_stack([whole, middle - whole @ (middle + shift)])


def warped(
    x: np.ndarray,
    matrices: np.ndarray,
    bilinear: bool = False,
    fill: float | tuple[float, ...] | None = None,
) -> np.ndarray:
    """Each picture (N, C, H, W) by its matrix (N, 2, 3), as torchvision has it.

    Args:
        x: pictures, or masks as one channel of whole numbers.
        matrices: see :func:`inverse_matrix`.
        bilinear: whether pixels are mixed of four, or the nearest one.
        fill: what comes from outside, one number or one for each channel; with it a pixel that is
            mixed of some within and some outside counts by its share of the former once more, as
            in torchvision.  None is 0, without that.
    """
    n, channels, height, width = x.shape
    u = np.arange(width) - (width - 1) / 2
    v = (np.arange(height) - (height - 1) / 2)[:, None]
    m = matrices[:, :, :, None, None]
    columns = m[:, 0, 0] * u + m[:, 0, 1] * v + m[:, 0, 2] + (width - 1) / 2
    rows = m[:, 1, 0] * u + m[:, 1, 1] * v + m[:, 1, 2] + (height - 1) / 2
    outside = np.broadcast_to(np.array(fill or 0.0, np.float64).reshape(-1, 1, 1), (channels, 1, 1))
    samples = np.arange(n)[:, None, None, None]
    planes = np.arange(channels)[:, None, None]

    def at(row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        r = np.clip(row, 0, height - 1).astype(np.int64)[:, None]
        c = np.clip(column, 0, width - 1).astype(np.int64)[:, None]
        return x[samples, planes, r, c], inside[:, None]

    if not bilinear:
        found, inside = at(np.rint(rows), np.rint(columns))
        return np.where(inside, found, outside.astype(x.dtype))
    tops, lefts = np.floor(rows), np.floor(columns)
    total, seen = np.zeros(x.shape), np.zeros((n, 1, height, width))
    for down in (0, 1):
        for right in (0, 1):
            row, column = tops + down, lefts + right
            share = ((1 - abs(rows - row)) * (1 - abs(columns - column)))[:, None]
            found, inside = at(row, column)
            total += np.where(inside, share * found, 0)
            seen += np.where(inside, share, 0)
    if fill is not None:
        total = total * seen + (1 - seen) * outside
    return total.astype(x.dtype)


def _moved_boxes(boxes: np.ndarray, matrices: np.ndarray, height: int, width: int) -> np.ndarray:
    """Boxes (N, M, 4) of left, top, right and bottom: what encloses the corners of each where the
    inverse of the matrices (N, 2, 3) moves them."""
    inverse = np.linalg.inv(matrices[:, :, :2])
    left, top, right, bottom = np.moveaxis(boxes.astype(np.float64), -1, 0)
    corners = np.stack(
        [np.stack([a, b], -1) for a in (left, right) for b in (top, bottom)], axis=2
    ) - np.array([width / 2, height / 2])
    found = np.einsum("nij,nmkj->nmki", inverse, corners - matrices[:, None, None, :, 2])
    found += np.array([width / 2, height / 2])
    return np.concatenate([found.min(2), found.max(2)], -1)


class Masks(Arrays):
    """Pictures whose targets are classes of pixels, int64 (N, H, W), which go where steps move the
    pixels.

    Args:
        x: (N, C, H, W), as of :class:`Arrays`.
        y: (N, H, W), whole numbers.
        augment: steps of this module; one of your own has ``move(shape, draws)``, or says ``places
            = False``.
        classes: as of :class:`Arrays`.
        fill: the class of pixels that come from outside of pictures, such as the loss's
            ``ignore_index``.

    Raises:
        DataError: arrays do not fit together; when a batch is read, a step does not say where it
            moves pixels.

    >>> pictures, masks = np.zeros((8, 3, 32, 32)), np.zeros((8, 32, 32), np.int64)
    >>> train = md.data.Masks(pictures, masks, [md.data.Flip(), md.data.Rotation(10)], fill=255)
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        augment: Sequence[Step] = (),
        classes: int | Sequence[str] | None = None,
        *,
        fill: int = 0,
    ) -> None:
        super().__init__(x, y, augment, classes)
        fits = self.x.ndim == 4 and self.y.shape == (len(self.x), *self.x.shape[2:])
        if not fits or self.y.dtype.kind not in "buif" or self.y.dtype.kind == "f":
            raise DataError(
                f"x has shape {self.x.shape}, and y {self.y.dtype} {self.y.shape}; valid are (N, "
                "C, H, W), and whole numbers (N, H, W)"
            )
        self.fill = fill

    def stepped(
        self, x: np.ndarray, target: np.ndarray, draws: Draws, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        for step in self.augment:
            with named(step, samples):
                x, found, _ = moved([step], x, draws, masks=target, fill=self.fill)
                assert found is not None
                target = found
        return x, np.ascontiguousarray(target)


class Boxes(Arrays):
    """Pictures whose targets are boxes, float32 (N, M, 5): left, top, right and bottom in pixels,
    and the class. They go where steps move the pixels, and are cut at the picture; a row of -1
    stands for no box.

    Args:
        x: (N, C, H, W), as of :class:`Arrays`.
        y: (N, M, 5), or for each picture an array (boxes, 5).
        augment: steps of this module; one of your own has ``move(shape, draws)``, or says ``places
            = False``.
        classes: as of :class:`Arrays`; by default as many as targets name.
        least: boxes of which less than this share of their area is left are dropped.

    Raises:
        DataError: arrays do not fit together; when a batch is read, a step does not say where it
            moves pixels.

    >>> pictures = np.zeros((2, 3, 32, 32))
    >>> boxes = [np.array([[0, 0, 9, 9, 1]]), np.array([[0, 0, 9, 9, 1], [5, 4, 30, 20, 0]])]
    >>> train = md.data.Boxes(pictures, boxes, [md.data.Flip()])
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray | Sequence[np.ndarray],
        augment: Sequence[Step] = (),
        classes: int | Sequence[str] | None = None,
        *,
        least: float = 0.0,
    ) -> None:
        rows = [
            np.asarray(each, np.float32).reshape(-1, 5)
            if np.size(each)
            else np.zeros((0, 5), np.float32)
            for each in y
        ]
        most = max((len(each) for each in rows), default=0)
        packed = np.full((len(rows), max(most, 1), 5), -1, np.float32)
        for i, each in enumerate(rows):
            packed[i, : len(each)] = each
        there = packed[..., 4] >= 0
        if classes is None:
            classes = int(packed[..., 4].max(initial=-1)) + 1
        super().__init__(x, packed, augment, classes)
        wrong = there & ((packed[..., :2] > packed[..., 2:4]).any(-1) | (packed[..., 4] % 1 != 0))
        if self.x.ndim != 4 or wrong.any() or not np.isfinite(packed).all():
            such = f", such as {packed[wrong][0].tolist()}" if wrong.any() else ""
            raise DataError(
                f"x has shape {self.x.shape}, and boxes are not valid{such}; valid are (N, C, H, "
                "W), and left, top, right and bottom in order, with a class"
            )
        if not 0 <= least <= 1:
            raise DataError(f"least={least!r:.80}; valid is a number from 0 to 1")
        self.least = least

    def read(self, samples: np.ndarray, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        x, target = super().read(samples, draws)
        return x, target.copy()

    def stepped(
        self, x: np.ndarray, target: np.ndarray, draws: Draws, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        boxes: np.ndarray = target[..., :4].astype(np.float64)
        left = np.ones(boxes.shape[:2])  # what is left of each box's area
        for step in self.augment:
            with named(step, samples):
                x, _, uncut = moved([step], x, draws, boxes=boxes, cut=False)
            assert uncut is not None
            boxes = np.clip(uncut, 0, np.array([x.shape[3], x.shape[2]] * 2))
            before, after = _areas(uncut), _areas(boxes)
            left *= np.divide(after, before, out=np.zeros_like(after), where=before > 0)
        there = (target[..., 4] >= 0) & (_areas(boxes) > 0) & (left >= self.least)
        found = np.full_like(target, -1)
        for place, own, kept, given in zip(found, boxes, there, target, strict=True):
            place[: kept.sum()] = np.column_stack([own[kept], given[kept, 4]])
        return x, found


def _areas(boxes: np.ndarray) -> np.ndarray:
    return np.clip(boxes[..., 2:] - boxes[..., :2], 0, None).prod(-1)
