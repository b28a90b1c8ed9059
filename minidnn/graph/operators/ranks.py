"""What joins values of several processes that run the same graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minidnn.graph.meeting import meeting_of
from minidnn.graph.operator import Reduction
from minidnn.graph.types import TensorType

__all__ = ["SumOverRanks"]


@dataclass(frozen=True)
class SumOverRanks(Reduction):
    """The sum of each operand over all ranks, which all compute this node.

    All ranks must compute such nodes in the same order.  One ``beside`` others may still be on its
    way while the nodes behind it are computed, until one of them reads a result.
    """

    ranks: int
    beside: bool = False

    operand_names = ("inputs*",)

    def __post_init__(self) -> None:
        valid = type(self.ranks) is int and self.ranks >= 1
        self.require(valid, f"ranks={self.ranks!r}; valid is an int of at least 1")

    @property
    def lasts(self) -> bool:
        return self.beside

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.require(len(inputs) > 0, "no inputs; valid is one or more")
        for each in inputs:
            self.require_float(each)
        return inputs

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        found = [np.array(x, order="C") for x in inputs]
        if self.ranks > 1:
            meeting_of(self.ranks).add(found)
        return tuple(found)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return sum(x.size for x in inputs)
