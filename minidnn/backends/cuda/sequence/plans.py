"""Analyses of kernel plans before they are printed: which planes have no sign bits, which steps can
be a window's prologue, and which barrier a block's threads need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minidnn.graph.expression import Instruction

from ....fusion.plan import KernelPlan, PlanOperation, PlanStep
from ...codegen.taps import is_looped
from ..expressions import may_diverge
from .grid import WARP


def positive_planes(plan: KernelPlan) -> frozenset[int]:
    """Returns the planes no element of which has its sign bit set, NaN included.

    These are the results of ReLU, and of what only chooses from them: on a GPU a maximum with 0
    gives neither -0 nor a negative NaN.  A plane that several operations compute, each for a
    segment of channels, is one of them if all operations say so.
    """
    known: dict[int, bool] = {}
    for step in plan.steps:
        for segment in step.segments:
            for operation in segment:
                result_is_positive = _is_positive(plan, operation, known)
                known[operation.result] = known.get(operation.result, True) and result_is_positive
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
        inputs = [known[i] for i in line.operands]
        match line.op:
            case "argument":
                index = int(line.value or 0)
                is_positive = index < len(operands) and operands[index]
            case "constant":
                number = 0.0 if line.value is None else float(line.value)
                is_positive = math.copysign(1.0, number) > 0 and not math.isnan(number)
            case "maximum":
                is_positive = any(inputs)
            case "minimum":
                is_positive = all(inputs)
            case "abs":
                is_positive = True
            case _:
                is_positive = False
        known.append(is_positive)
    return known[-1]


_MOST_AGAIN = 4
"""Taps of an output that each compute the window's prologue, for some elements again."""


def absorb_prologues(plan: KernelPlan) -> KernelPlan:
    """Returns the plan with each point-wise step that a window can compute on what it reads merged
    into the window's step, as a prologue: its operations stand before the window.

    Where the taps of neighbouring outputs do not overlap, each element is read once: then the
    prologue is computed once, too, and the plane between them needs no buffer.  A prologue is also
    absorbed where each output has few taps, as those of windows that lead back from outputs have.
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
    """Returns the plane that a step makes for the next one's window alone, if that can absorb the
    step; else None."""
    sources: set[int] = set()
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
        results = {o.result for o in first}
        for number in results:
            plane = plan.planes[number]
            if plane.output is not None or (plane.buffer is not None and number != source):
                return None
        for operation in first:
            for number in operation.operands:
                plane = plan.planes[number]
                if number not in results and (plane.extent != extent or plane.one_channel):
                    return None
        sources.add(source)
    readers = [
        (k, o) for k, step in enumerate(steps) for o in step.operations if sources & set(o.operands)
    ]
    if len(sources) != 1 or any(k != i + 1 or o.window is None for k, o in readers):
        return None
    return sources.pop()


def barrier_of(plan: KernelPlan, threads: int) -> str:
    """Returns the barrier statement for a block of so many threads.

    A block of one warp needs no hardware barrier; its threads may diverge in functions that are
    called, the divisions of averages included.
    """
    if threads > WARP:
        return "__syncthreads();"
    operations = plan.operations
    finishes = any(o.window is not None and not o.window.is_finished for o in operations)
    diverges = finishes or any(may_diverge(o.code) for o in operations)
    return "md_sync_warp();" if diverges else "__syncwarp();"
