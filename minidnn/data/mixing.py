"""Batches that are mixed with themselves, turned by one sample."""

from __future__ import annotations

from math import sqrt

import numpy as np

from minidnn.data.datasets import DataError

Batch = tuple[np.ndarray, np.ndarray]


def mixed(x: np.ndarray, target: np.ndarray, alpha: float, random: np.random.Generator) -> Batch:
    """mixup: Zhang et al., arXiv:1710.09412, by a share from Beta(alpha, alpha)."""
    share = np.float32(random.beta(alpha, alpha))
    x = share * x + (1 - share) * np.roll(x, 1, axis=0)
    return x, share * target + (1 - share) * np.roll(target, 1, axis=0)


def cut_mixed(
    x: np.ndarray, target: np.ndarray, alpha: float, random: np.random.Generator
) -> Batch:
    """CutMix: Yun et al., arXiv:1905.04899, with the box that torchvision takes."""
    if x.ndim != 4:
        raise DataError(f"cutmix: samples have shape {x.shape[1:]}; valid is (C, H, W)")
    height, width = x.shape[2:]
    share = float(random.beta(alpha, alpha))
    column, row = int(random.integers(width)), int(random.integers(height))
    half = 0.5 * sqrt(1.0 - share)
    wide, high = int(half * width), int(half * height)
    left, right = max(column - wide, 0), min(column + wide, width)
    top, bottom = max(row - high, 0), min(row + high, height)
    x = x.copy()
    x[:, :, top:bottom, left:right] = np.roll(x, 1, axis=0)[:, :, top:bottom, left:right]
    kept = np.float32(1.0 - (right - left) * (bottom - top) / (width * height))
    return x, kept * target + (1 - kept) * np.roll(target, 1, axis=0)
