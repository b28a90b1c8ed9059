"""Kernel plans before they are printed: which planes have no sign bits, what is computed on the way
to a window, and the barrier between a block's threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minidnn.graph.expression import Instruction

from ....fusion.plan import KernelPlan, PlanOperation, PlanStep
from ...codegen.taps import is_looped
from ..expressions import may_part
from .grid import WARP


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


_MOST_AGAIN = 4
"""Taps of an output that each compute what comes before the window, for some elements again."""


def absorb_prologues(plan: KernelPlan) -> KernelPlan:
    """The plan with point-wise steps that a window can compute on what it reads joined to the
    window's: their operations stand before it.

    Where the taps of neighbouring outputs do not overlap, each element is read once: then what
    comes before the window is computed on the way to it, and the plane between them needs no
    buffer.  So it is where each output has few taps, as those of windows that lead back.
    """
    if plan.schedule.strips > 1:
        return plan
    planes, steps = list(plan.planes), list(plan.steps)
    i = 0
    while i + 1 < len(steps):
        middle = _between(plan, steps, i)
        if middle is None:
            i += 1
            continue
        planes[middle] = replace(planes[middle], buffer=None)
        both = tuple(
            (*a, *b) for a, b in zip(steps[i].segments, steps[i + 1].segments, strict=True)
        )
        steps[i : i + 2] = [replace(steps[i + 1], segments=both)]
    return replace(plan, planes=tuple(planes), steps=tuple(steps))


def _between(plan: KernelPlan, steps: list[PlanStep], i: int) -> int | None:
    """The plane that a step makes for the next one's window alone, if each element is read once."""
    found: set[int] = set()
    for first, second in zip(steps[i].segments, steps[i + 1].segments, strict=True):
        if not first or not second:
            return None
        window, source = second[0].window, first[-1].result
        if window is None or source not in second[0].operands[: window.under]:
            return None
        few = is_looped(window) and window.taps <= _MOST_AGAIN
        if not few and (is_looped(window) or any(a.stride < a.reach for a in window.axes)):
            return None
        if any(o.window is not None for o in first):
            return None
        extent = plan.planes[source].extent
        own = {o.result for o in first}
        for number in own:
            plane = plan.planes[number]
            if plane.output is not None or (plane.buffer is not None and number != source):
                return None
        for operation in first:
            for number in operation.operands:
                plane = plan.planes[number]
                if number not in own and (plane.extent != extent or plane.one_channel):
                    return None
        found.add(source)
    readers = [
        (k, o) for k, step in enumerate(steps) for o in step.operations if found & set(o.operands)
    ]
    if len(found) != 1 or any(k != i + 1 or o.window is None for k, o in readers):
        return None
    return found.pop()


def barrier_of(plan: KernelPlan, threads: int) -> str:
    """The statement for a block of so many threads.

    A block of one warp needs none of hardware's barriers.  Averages divide, too.
    """
    if threads > WARP:
        return "__syncthreads();"
    operations = plan.operations
    finishes = any(o.window is not None and not o.window.is_finished for o in operations)
    parts = finishes or any(may_part(o.code) for o in operations)
    return "md_sync_warp();" if parts else "__syncwarp();"
