"""The operator that draws random numbers: dropout in training."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from minidnn.graph.operator import Reduction
from minidnn.graph.philox import random_words
from minidnn.graph.types import TensorType

__all__ = ["RandomDrop"]

#: The cost of one random number, in scalar operations; each counter gives four.
_OPERATIONS = 25


@dataclass(frozen=True)
class RandomDrop(Reduction):
    """Dropout: ``x / (1 - p)``, or 0 with the probability ``p``, for each element or each channel.

    Which of them are 0 is a function of ``seed``, ``step`` (integers) and ``stream`` alone, so that
    the gradient draws the same numbers again, and no mask is kept.
    """

    p: float
    stream: int = 0
    channels: bool = False

    operand_names = ("input", "seed", "step")

    def __post_init__(self) -> None:
        self.require_number("p", self.p)
        self.require(0 <= self.p <= 1, f"p={self.p!r}; valid is a number from 0 to 1")
        valid = type(self.stream) is int and 0 <= self.stream < 1 << 32
        self.require(valid, f"stream={self.stream!r}; valid is an int from 0 to 2**32 - 1")

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        x, *numbers = self.operands(inputs)
        self.require_float(x)
        for name, each in zip(("seed", "step"), numbers, strict=True):
            self.require(each == TensorType((), "int64"), f"{name} is {each}; valid is int64[]")
        self.require(
            not self.channels or x.rank >= 2, f"input has shape {x.shape}; valid is rank 2 or more"
        )
        return (x,)

    @property
    def threshold(self) -> int:
        """The bound of random words of 32 bits: an element is 0 if its word is less."""
        return ceil(self.p * 2.0**32)

    @property
    def scale(self) -> float:
        """The factor by which the other elements are multiplied."""
        return 1.0 / (1.0 - self.p) if self.p < 1 else 0.0

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, seed, step = inputs
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:])) if self.channels else x.shape
        words = random_words(int(np.prod(shape)), int(seed), int(step), self.stream)
        with np.errstate(all="ignore"):
            scaled = x * x.dtype.type(self.scale)
        return (np.where(words.reshape(shape) < self.threshold, x.dtype.type(0), scaled),)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return _OPERATIONS * outputs[0].size
