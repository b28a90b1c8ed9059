"""A convolution small enough to be worked out by hand, with padding, stride and dilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from .shape import ConvolutionShape, convolve

SHAPE = ConvolutionShape(1, 4, 4, 4, 1, 2, 2)
"""Four channels of 4 x 4, and a filter of 2 x 2 for each."""
IMAGE = """1 2 0 1; 0 1 3 2; 1 2 1 0; 2 1 0 1 | 1 0 1 2; 2 1 0 1; 0 1 2 1; 1 0 1 0
    | 0 1 2 1; 1 2 0 1; 1 1 0 2; 2 0 1 0 | 1 2 1 0; 2 0 1 1; 0 1 2 2; 1 0 1 1"""
FILTER = "1 0; 0 1 | 0 1; 1 0 | 1 0; 0 1 | 0 1; 1 0"
CHANGES: tuple[Mapping[str, int], ...] = (
    {},
    {"padding": 1},
    {"stride": 2},
    {"dilation": 2},
    {"stride": 2, "padding": 1, "dilation": 2},
)


def planes(text: str) -> np.ndarray:
    """The numbers of planes between bars, with rows between semicolons."""
    return np.array([row.split() for row in text.replace("|", ";").split(";")], np.float32).ravel()


def worked(changes: Mapping[str, int]) -> np.ndarray:
    """The result with this padding, stride and dilation."""
    shape = replace(SHAPE, **changes)
    return convolve(shape, {"x": planes(IMAGE), "w": planes(FILTER)})[0, 0]


def worked_examples() -> str:
    """Image, filter, and the results, as text."""
    image, filters = (
        planes(text).reshape(4, size, size) for text, size in ((IMAGE, 4), (FILTER, 2))
    )
    lines = ["image, channel after channel", *_beside(image), "", "filter", *_beside(filters)]
    for changes in CHANGES:
        told = ", ".join(f"{name} {number}" for name, number in changes.items())
        lines += ["", told or "stride 1, padding 0, dilation 1", *_beside([worked(changes)])]
    lines += [
        "",
        "The first number of the first result: 1*1 + 1*1 of the first channel, 0*1 + 2*1 of the",
        "second, 0*1 + 2*1 of the third, 2*1 + 2*1 of the fourth.",
    ]
    return "\n".join(lines)


def _beside(every: np.ndarray | list[np.ndarray]) -> list[str]:
    rows = zip(*every, strict=True)
    return ["   " + "     ".join(" ".join(f"{n:2.0f}" for n in row) for row in one) for one in rows]
