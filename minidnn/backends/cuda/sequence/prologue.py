"""Point-wise steps that a window can compute on what it reads.

Where the taps of neighbouring outputs do not overlap, each element is read once: then what comes
before the window is computed on the way to it, and the plane between them needs no buffer.  So it
is where each output has few taps, as those of windows that lead back.
"""

from __future__ import annotations

from dataclasses import replace

from ....fusion.plan import KernelPlan, PlanStep
from ...codegen.taps import is_looped

_MOST_AGAIN = 4
"""Taps of an output that each compute what comes before the window, for some elements again."""


def absorb_prologues(plan: KernelPlan) -> KernelPlan:
    """The plan with such steps joined to the window's: their operations stand before it."""
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
