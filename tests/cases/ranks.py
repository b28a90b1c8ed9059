"""Cases of graph/operators/ranks.py: of a rank that is alone, whose sums are its own values.

What several ranks add up is in tests/distributed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from minidnn.layers import Layer
from tests.cases.record import ANY_RANK, Case


class Summed(Layer):
    """The operator."""

    def __init__(self, beside: bool) -> None:
        self.op = ops.SumOverRanks(1, beside)

    def forward(self, x: Any) -> Any:
        return apply(self.op, x)


def _case(name: str, beside: bool) -> Case:
    return Case(
        name=name,
        layer=lambda: Summed(beside),
        torch=lambda: lambda x: x.clone(),
        formula=np.positive,
        shapes=tuple((shape,) for shape in ANY_RANK),
    )


CASES: tuple[Case, ...] = (
    _case("sum_over_ranks", False),
    _case("sum_over_ranks-beside", True),
)
