"""The all-reduce of values over the ranks that run the same graph, and its process group.

``minidnn.distributed`` sets the process group by :func:`set_process_group`; the reference and the
devices find it by :func:`process_group_of` while a graph runs.
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


class ProcessGroup(Protocol):
    """A process group: the ranks that run the same graphs at the same time."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """All-reduces contiguous host arrays in place: each becomes the sum over the ranks."""

    def agree(self, text: str) -> None:
        """Raises an error, in some rank, unless all ranks pass the same text.

        Each text is compared only once.
        """


_now: list[ProcessGroup] = []


def set_process_group(meeting: ProcessGroup) -> None:
    """Makes ``meeting`` the process group of all graphs that sum over ranks, from now on."""
    _now[:] = [meeting]


def process_group_of(ranks: int) -> ProcessGroup:
    """The process group with ``ranks`` ranks; GraphError if this process is in no such group."""
    if not _now or _now[0].size != ranks:
        role = f"one of {_now[0].size}" if _now else "alone"
        raise GraphError(
            f"the graph sums over {ranks} ranks, and this process is {role}; valid is to run it "
            "where md.Trainer(..., distributed=True) made it"
        )
    return _now[0]


@dataclass(frozen=True)
class SumOverRanks(Reduction):
    """The all-reduce (sum) of each operand over all ranks, which all compute this node.

    All ranks must compute such nodes in the same order.  With ``beside`` it is asynchronous: it may
    still run while later nodes are computed, until one of them reads a result.
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
        sums = [np.array(x, order="C") for x in inputs]
        if self.ranks > 1:
            process_group_of(self.ranks).add(sums)
        return tuple(sums)

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return sum(x.size for x in inputs)
