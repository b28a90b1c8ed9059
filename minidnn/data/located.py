"""Pictures with masks or boxes, which steps move along."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.data.datasets import Arrays, DataError, Draws, Step, named
from minidnn.data.moves import moved

__all__ = ["Boxes", "Masks"]


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
