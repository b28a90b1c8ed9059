"""Geometric augmentation: pictures, and the masks and boxes that must move with them.

A step that moves pixels has ``move(shape, draws)``, which draws the random numbers of a batch and
returns a :class:`BatchMove`.  A step that leaves pixels where they are says ``places = False``.

An affine map is a matrix (2, 3) from output to input coordinates: columns and rows in pixels, with
the origin at the centre of the picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, radians, sin, tan
from typing import Any

import numpy as np

from minidnn.data.datasets import Arrays, DataError, Draws, Step, named
from minidnn.graph.types import plain

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
        """Returns pictures (N, C, H, W) after the move, which may write to ``x``."""
        raise NotImplementedError

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        """Returns integer masks (N, H, W); pixels from outside of a picture are ``fill``."""
        raise NotImplementedError

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        """Returns boxes (N, M, 4) of left, top, right and bottom in pixels, not clipped to the
        picture; ``sizes`` are the rows and columns of the pictures before the move."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flipped(BatchMove):
    """Flips the samples that a boolean mask (N,) selects, left to right or top to bottom."""

    samples: np.ndarray
    vertical: bool = False

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        x[self.samples] = np.flip(x[self.samples], -2 if self.vertical else -1)
        return x

    def pictures(self, x: np.ndarray) -> np.ndarray:
        return self._rotated(x)

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        return self._rotated(masks.copy())

    def boxes(self, boxes: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
        flipped = boxes.copy()
        low, size = (1, sizes[0]) if self.vertical else (0, sizes[1])
        flipped[self.samples, :, low] = size - boxes[self.samples, :, low + 2]
        flipped[self.samples, :, low + 2] = size - boxes[self.samples, :, low]
        return flipped


@dataclass(frozen=True)
class Cropped(BatchMove):
    """Crops a square of ``size`` pixels from each picture, after padding on all sides.

    ``tops`` and ``lefts`` (N,) are the squares' corners in the padded pictures.
    """

    tops: np.ndarray
    lefts: np.ndarray
    size: int
    padding: int

    def _cut(self, x: np.ndarray, fill: int) -> np.ndarray:
        border, size = self.padding, self.size
        widths = [(0, 0)] * (x.ndim - 2) + [(border, border)] * 2
        padded = np.pad(x, widths, constant_values=fill)
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
    """Crops a rectangle from each picture and resizes it to ``size`` rows and columns.

    ``cuts`` (N, 4) are the rectangles' top, left, height and width.  ``resize`` takes a picture
    (C, H, W) and returns it in that size.
    """

    cuts: np.ndarray
    size: int
    resize: Any

    def pictures(self, x: np.ndarray) -> np.ndarray:
        out = np.empty((*x.shape[:2], self.size, self.size), np.float32)
        for i, (top, left, rows, columns) in enumerate(self.cuts.tolist()):
            out[i] = self.resize(x[i, :, top : top + rows, left : left + columns])
        return out

    def masks(self, masks: np.ndarray, fill: int) -> np.ndarray:
        """Takes the nearest pixel, as torchvision's "nearest" does."""
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
    """Warps each picture by an affine map (N, 2, 3), see :mod:`minidnn.data.moves`."""

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
        steps: augmentation steps; one of your own has ``move(shape, draws)``, which returns a
            :class:`BatchMove`, or ``places = False`` if it leaves pixels where they are.
        x: (N, C, H, W), float32.
        draws: the random numbers of the batch.
        masks: (N, H, W), integers, or None.
        boxes: (N, M, 4) of left, top, right and bottom, in pixels, or None.
        fill: the value of masks where a picture has no pixels.
        cut: whether boxes are clipped to the picture, so that one outside has no area.

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
        batch_move: BatchMove = move(x.shape, draws)
        sizes = (x.shape[2], x.shape[3])
        if masks is not None:
            masks = batch_move.masks(masks, fill)
        if boxes is not None:
            boxes = batch_move.boxes(boxes, sizes)
        x = batch_move.pictures(x)
        if boxes is not None and cut:
            limits = np.array([x.shape[3], x.shape[2]] * 2)
            boxes = np.clip(boxes, 0, limits)
    return x, masks, boxes


def inverse_matrix(
    angle: float = 0.0,
    translate: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    center: tuple[float, float] = (0.0, 0.0),
) -> np.ndarray:
    """Returns the matrix (2, 3) from output to input coordinates, see the module's docstring.

    The arguments are those of torchvision's ``affine``, with angles in degrees, except that
    ``center`` is relative to the centre of the picture.
    """
    turn, across, down = radians(angle), radians(shear[0]), radians(shear[1])
    a = cos(turn - down) / cos(down)
    b = -cos(turn - down) * tan(across) / cos(down) - sin(turn)
    c = sin(turn - down) / cos(down)
    d = -sin(turn - down) * tan(across) / cos(down) + cos(turn)
    linear = np.array([[d, -b], [-c, a]]) / scale
    origin, offset = np.array(center), np.array(translate)
    return np.column_stack([linear, origin - linear @ (origin + offset)])


def warped(
    x: np.ndarray,
    matrices: np.ndarray,
    bilinear: bool = False,
    fill: float | tuple[float, ...] | None = None,
) -> np.ndarray:
    """Returns each picture (N, C, H, W) resampled by its affine map, as torchvision does.

    Args:
        x: pictures, or masks as one channel of integers.
        matrices: maps (N, 2, 3) from output to input coordinates, see :func:`inverse_matrix`.
        bilinear: whether a pixel is interpolated between four inputs; else it is the nearest one.
        fill: the value of inputs outside of the picture, one number or one for each channel.  With
            it, a pixel interpolated between inputs inside and outside weights the sum of those
            inside by their share once more, as torchvision does.  None is 0, without that.
    """
    n, channels, height, width = x.shape
    u = np.arange(width) - (width - 1) / 2
    v = (np.arange(height) - (height - 1) / 2)[:, None]
    m = matrices[:, :, :, None, None]
    columns = m[:, 0, 0] * u + m[:, 0, 1] * v + m[:, 0, 2] + (width - 1) / 2
    rows = m[:, 1, 0] * u + m[:, 1, 1] * v + m[:, 1, 2] + (height - 1) / 2
    outside = np.broadcast_to(np.array(fill or 0.0, np.float64).reshape(-1, 1, 1), (channels, 1, 1))
    samples = np.arange(n)[:, None, None, None]
    channel_index = np.arange(channels)[:, None, None]

    def at(row: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        r = np.clip(row, 0, height - 1).astype(np.int64)[:, None]
        c = np.clip(column, 0, width - 1).astype(np.int64)[:, None]
        return x[samples, channel_index, r, c], inside[:, None]

    if not bilinear:
        pixels, inside = at(np.rint(rows), np.rint(columns))
        return np.where(inside, pixels, outside.astype(x.dtype))
    tops, lefts = np.floor(rows), np.floor(columns)
    total, inside_share = np.zeros(x.shape), np.zeros((n, 1, height, width))
    for down in (0, 1):
        for right in (0, 1):
            row, column = tops + down, lefts + right
            share = ((1 - abs(rows - row)) * (1 - abs(columns - column)))[:, None]
            pixels, inside = at(row, column)
            total += np.where(inside, share * pixels, 0)
            inside_share += np.where(inside, share, 0)
    if fill is not None:
        total = total * inside_share + (1 - inside_share) * outside
    return total.astype(x.dtype)


def _moved_boxes(boxes: np.ndarray, matrices: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns the bounding boxes (N, M, 4) of each box's corners after the pixels moved.

    Boxes are left, top, right and bottom.  Corners move by the inverse of the matrices (N, 2, 3),
    which map output to input coordinates.
    """
    inverse = np.linalg.inv(matrices[:, :, :2])
    left, top, right, bottom = np.moveaxis(boxes.astype(np.float64), -1, 0)
    corners = np.stack(
        [np.stack([a, b], -1) for a in (left, right) for b in (top, bottom)], axis=2
    ) - np.array([width / 2, height / 2])
    corners_after = np.einsum("nij,nmkj->nmki", inverse, corners - matrices[:, None, None, :, 2])
    corners_after += np.array([width / 2, height / 2])
    return np.concatenate([corners_after.min(2), corners_after.max(2)], -1)


class Masks(Arrays):
    """Pictures whose targets are classes of pixels, int64 (N, H, W), which go where steps move the
    pixels.

    Args:
        x: (N, C, H, W), as of :class:`Arrays`.
        y: (N, H, W), integers.
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
        if not fits or self.y.dtype.kind == "f":
            raise DataError(
                f"x has shape {self.x.shape}, and y {self.y.dtype} {self.y.shape}; valid are (N, "
                "C, H, W), and integers (N, H, W)"
            )
        if type(plain(fill)) is not int:
            raise DataError(f"fill={fill!r:.80}; valid is an int, the class of a pixel")
        self.fill = fill

    def stepped(
        self, x: np.ndarray, target: np.ndarray, draws: Draws, samples: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        for step in self.augment:
            with named(step, samples):
                x, moved_masks, _ = moved([step], x, draws, masks=target, fill=self.fill)
                assert moved_masks is not None
                target = moved_masks
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
        least: boxes that keep less than this share of their area are dropped.

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
        count = max((len(each) for each in rows), default=0)
        packed = np.full((len(rows), max(count, 1), 5), -1, np.float32)
        for i, each in enumerate(rows):
            packed[i, : len(each)] = each
        is_box = packed[..., 4] >= 0
        if classes is None:
            classes = int(packed[..., 4].max(initial=-1)) + 1
        super().__init__(x, packed, augment, classes)
        is_wrong = is_box & (
            (packed[..., :2] > packed[..., 2:4]).any(-1) | (packed[..., 4] % 1 != 0)
        )
        if self.x.ndim != 4 or is_wrong.any() or not np.isfinite(packed).all():
            case = f", such as {packed[is_wrong][0].tolist()}" if is_wrong.any() else ""
            raise DataError(
                f"x has shape {self.x.shape}, and boxes are not valid{case}; valid are (N, C, H, "
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
        remaining = np.ones(boxes.shape[:2])  # the share of each box's area that remains
        for step in self.augment:
            with named(step, samples):
                x, _, uncut = moved([step], x, draws, boxes=boxes, cut=False)
            assert uncut is not None
            boxes = np.clip(uncut, 0, np.array([x.shape[3], x.shape[2]] * 2))
            before, after = _areas(uncut), _areas(boxes)
            remaining *= np.divide(after, before, out=np.zeros_like(after), where=before > 0)
        is_kept = (target[..., 4] >= 0) & (_areas(boxes) > 0) & (remaining >= self.least)
        kept_boxes = np.full_like(target, -1)
        for target_rows, box_rows, kept, given_rows in zip(
            kept_boxes, boxes, is_kept, target, strict=True
        ):
            target_rows[: kept.sum()] = np.column_stack([box_rows[kept], given_rows[kept, 4]])
        return x, kept_boxes


def _areas(boxes: np.ndarray) -> np.ndarray:
    return np.clip(boxes[..., 2:] - boxes[..., :2], 0, None).prod(-1)
