"""Folders of small pictures, some of them damaged in every way that a file can be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Pictures:
    """A folder, its readable pictures, and those that are not."""

    root: Path
    good: frozenset[str]
    bad: frozenset[str]


def make_pictures(root: Path, count: int, damaged: int, folders: int = 7) -> Pictures:
    """Pictures of several sizes in folders, of which some are cut off, empty, text or zeros."""
    random = np.random.default_rng(count)
    chosen = set(random.choice(count, damaged, replace=False).tolist())
    good: list[str] = []
    bad: list[str] = []
    for number in range(count):
        path = root / f"{number % folders:02d}" / f"{number:06d}.{('png', 'jpg')[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 256, (4, 5, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((32 + number % 23, 32 + number % 19))
        picture.save(path)
        if number in chosen:
            data = path.read_bytes()
            damage = [data[: len(data) // 2], b"", b"no picture", data[:20] + bytes(len(data))]
            path.write_bytes(damage[len(bad) % len(damage)])
            bad.append(str(path))
        else:
            good.append(str(path))
    return Pictures(root, frozenset(good), frozenset(bad))
