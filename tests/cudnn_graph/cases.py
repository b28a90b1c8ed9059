"""Generated convolutions, their float64 references through PyTorch, and how they are compared."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

TOLERANCE = {"float16": 2e-3, "bfloat16": 1.5e-2, "float32": 2e-6, "tf32": 2e-3, "float64": 1e-12}
"""Largest norm of the error over the norm of the result; float32 allows for Winograd and FFT."""


@dataclass(frozen=True)
class Case:
    """One convolution; ``slices`` makes images and outputs channel slices of wider arrays."""

    n: int
    c: int
    size: tuple[int, int]
    k: int
    window: tuple[int, int]
    padding: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    dtype: str
    layout: str
    slices: bool

    @property
    def settings(self) -> dict[str, Any]:
        return {"padding": self.padding, "stride": self.stride, "dilation": self.dilation}

    @property
    def output(self) -> tuple[int, int, int, int]:
        spans = [d * (r - 1) + 1 for d, r in zip(self.dilation, self.window, strict=True)]
        size = [
            (length + 2 * pad - span) // step + 1
            for length, pad, span, step in zip(
                self.size, self.padding, spans, self.stride, strict=True
            )
        ]
        return (self.n, self.k, size[0], size[1])


def cases(count: int, seed: int, slices: bool = False) -> list[Case]:
    """That many convolutions whose windows fit."""
    rng = random.Random(seed)
    found: list[Case] = []
    while len(found) < count:
        groups = rng.choice([1, 1, 1, 1, 2, 4, 8])
        per_group = rng.choice([1, 2, 3, 4, 8, 16, 24])
        case = Case(
            n=rng.randint(1, 5),
            c=groups * per_group,
            size=(rng.randint(1, 30), rng.randint(1, 30)),
            k=groups * rng.choice([1, 2, 4, 5, 8, 16]),
            window=(rng.choice([1, 1, 2, 3, 3, 5, 7]), rng.choice([1, 1, 2, 3, 3, 5, 7])),
            padding=(rng.randint(0, 3), rng.randint(0, 3)),
            stride=(rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2, 3])),
            dilation=(rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 1, 2])),
            groups=groups,
            dtype=rng.choice(["float16", "float32", "float32", "bfloat16", "float64"]),
            layout=rng.choice(["NCHW", "NHWC"]),
            slices=slices,
        )
        if min(case.output) > 0:
            found.append(case)
    return found


def tensor(shape: tuple[int, ...], dtype: str, layout: str, sliced: bool, fill: str) -> Any:
    """A PyTorch tensor on the GPU: random or NaN; ``sliced`` leaves 8 channels before and after
    it in the same memory."""
    import torch

    wide = (shape[0], shape[1] + 16, *shape[2:]) if sliced else shape
    kind = getattr(torch, dtype)
    if fill == "nan":
        made = torch.full(wide, float("nan"), dtype=kind, device="cuda")
    else:
        made = torch.randn(wide, dtype=torch.float32, device="cuda").to(kind)
    if layout == "NHWC":
        made = made.to(memory_format=torch.channels_last)
    return made[:, 8 : 8 + shape[1]] if sliced else made


def error(got: Any, wanted: Any) -> float:
    """Norm of the difference over the norm of what is wanted (float64); NaN stays NaN."""
    difference = (got.double() - wanted.double()).norm()
    return float(difference / wanted.double().norm().clamp_min(1e-30))
