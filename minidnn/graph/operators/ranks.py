"""What joins values of several processes that run the same graph, and where these meet while it
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.operator import Reduction
from minidnn.graph.types import TensorType

__all__ = ["SumOverRanks"]


class Meeting(Protocol):
    """Processes that run the same graphs at the same time."""

    @property
    def size(self) -> int:
        """How many they are."""

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Each of these contiguous arrays of the host becomes the sum of all ranks' arrays."""

    def agree(self, text: str) -> None:
        """An error, in some rank, unless all ranks say the same; a text is asked about once."""


_now: list[Meeting] = []


def meet_in(meeting: Meeting) -> None:
    """From now on graphs that sum over ranks do so there."""
    _now[:] = [meeting]


def meeting_of(ranks: int) -> Meeting:
    """Where so many ranks meet; GraphError if this process is not one of them."""
    if not _now or _now[0].size != ranks:
        found = f"one of {_now[0].size}" if _now else "alone"
        raise GraphError(
            f"the graph sums over {ranks} ranks, and this process is {found}; valid is to run it "
            "where md.Trainer(..., distributed=True) made it"
        )
    return _now[0]


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
