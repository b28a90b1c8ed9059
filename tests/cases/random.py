"""Cases of graph/operators/random.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import TensorType
from minidnn.layers import Layer
from tests.cases.record import ANY_RANK, Case

SEED, STEP = (7 << 32) + 5, (1 << 33) + 2
_MASK = 0xFFFFFFFF


class Drops(Layer):
    """The operator, of a seed and a step that are known."""

    def __init__(self, p: float, stream: int = 0, channels: bool = False) -> None:
        self.op = ops.RandomDrop(p, stream, channels)

    def forward(self, x: Any) -> Any:
        type = TensorType((), "int64")
        trace = current_trace()
        seed = trace.constant("seed", "seed", type, lambda: np.array(SEED))
        step = trace.constant("step", "step", type, lambda: np.array(STEP))
        return apply(self.op, x, seed, step)


def philox_4x32(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """The generator as the paper writes it, on Python's numbers."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = (right >> 32) ^ b ^ k, right & _MASK
        c, d = (left >> 32) ^ d ^ m, left & _MASK
        k, m = (k + 0x9E3779B9) & _MASK, (m + 0xBB67AE85) & _MASK
    return a, b, c, d


def is_kept(shape: tuple[int, ...], p: float, stream: int) -> np.ndarray:
    """Where the operator drops nothing of a tensor of that shape."""
    words: list[int] = []
    for block in range(-(-int(np.prod(shape)) // 4)):
        counter = (block, stream, STEP & _MASK, STEP >> 32)
        words += philox_4x32(counter, (SEED & _MASK, SEED >> 32))
    return np.array(words[: int(np.prod(shape))]).reshape(shape) >= p * 2**32


def _case(name: str, p: float, stream: int = 0, channels: bool = False) -> Case:
    def mask(shape: tuple[int, ...]) -> np.ndarray:
        drawn = (*shape[:2], *(1 for _ in shape[2:])) if channels else shape
        return is_kept(drawn, p, stream)

    def by_torch(x: Any) -> Any:
        import torch

        return torch.where(torch.from_numpy(mask(tuple(x.shape))), x / (1 - p), 0.0)

    return Case(
        name=name,
        layer=lambda: Drops(p, stream, channels),
        torch=lambda: by_torch,
        formula=lambda x: np.where(mask(x.shape), x / (1 - p), 0.0),
        shapes=tuple((shape,) for shape in ANY_RANK),
    )


CASES: tuple[Case, ...] = (
    _case("random_drop", 0.25),
    _case("random_drop-channels", 0.5, stream=3, channels=True),
    _case("random_drop-none", 0.0),
)
