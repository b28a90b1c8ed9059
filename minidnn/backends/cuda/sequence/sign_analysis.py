"""What is known of a plan's numbers without running it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from minidnn.graph.expression import Instruction

from ....fusion.plan import KernelPlan, PlanOperation


def positive_planes(plan: KernelPlan) -> frozenset[int]:
    """The planes no element of which has its sign bit set, NaN included.

    That is, what ReLU gives, and what is chosen from that alone: on a GPU a maximum with 0 gives
    neither -0 nor a negative NaN.  A plane that several operations compute, each for a segment of
    channels, is one if it is for all of them.
    """
    known: dict[int, bool] = {}
    for step in plan.steps:
        for segment in step.segments:
            for operation in segment:
                own = _is_positive(plan, operation, known)
                known[operation.result] = known.get(operation.result, True) and own
    return frozenset(number for number, is_positive in known.items() if is_positive)


def _is_positive(plan: KernelPlan, operation: PlanOperation, known: Mapping[int, bool]) -> bool:
    operands = [known.get(number, False) for number in operation.operands]
    if operation.window is None:
        return _code_is_positive(operation.code, operands)
    source = plan.planes[operation.operands[0]]
    window = operation.window
    if not window.chooses:
        return False
    return operands[0] and not window.reads_nothing(source.extent)


def _code_is_positive(code: Sequence[Instruction], operands: Sequence[bool]) -> bool:
    known: list[bool] = []
    for line in code:
        inner = [known[i] for i in line.operands]
        match line.op:
            case "argument":
                index = int(line.value or 0)
                own = index < len(operands) and operands[index]
            case "constant":
                number = 0.0 if line.value is None else float(line.value)
                own = math.copysign(1.0, number) > 0 and not math.isnan(number)
            case "maximum":
                own = any(inner)
            case "minimum":
                own = all(inner)
            case "abs":
                own = True
            case _:
                own = False
        known.append(own)
    return known[-1]
