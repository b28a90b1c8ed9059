"""Pictures, masks and boxes under affine maps, about the middle of a picture."""

from __future__ import annotations

from math import cos, radians, sin, tan

import numpy as np

__all__ = ["inverse_matrix", "moved_boxes", "warped"]


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


def moved_boxes(boxes: np.ndarray, matrices: np.ndarray, height: int, width: int) -> np.ndarray:
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
