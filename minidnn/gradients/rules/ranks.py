"""The rule of sums over ranks: a value of one rank is in the sums of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from minidnn.gradients.table import Backward, rule
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.recorder import current_recorder


@rule(ops.SumOverRanks)
def sum_over_ranks(call: Backward) -> Sequence[Value | None]:
    """Of the loss that all ranks' losses add up to."""
    given = [each for each in call.gradients if each is not None]
    sums = iter(current_recorder().apply(replace(call.op, beside=False), *given))
    return [None if each is None else next(sums) for each in call.gradients]
