"""Which results are rounded to their dtype as soon as they are computed.

All are rounded where they are stored.  Choosing the largest or the smallest, and changing signs,
give the same before rounding and after it, so what only such code reads is rounded behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minidnn.fusion.plan import Plane, PlanOperation
from minidnn.graph.expression import Instruction
from minidnn.graph.types import rounded_to

_CHOOSES = {"argument", "constant", "maximum", "minimum", "abs", "neg"}


def roundings(operations: Sequence[PlanOperation], planes: Sequence[Plane]) -> dict[int, str]:
    """For each result of a segment's operations the dtype that it is rounded to before others of
    them read it: float32, that is not at all, if it is a number of its dtype already, or if
    nobody reads it, or only what chooses for what is only stored."""
    strict: set[int] = set()
    for operation in reversed(operations):
        if operation.result in strict or not _chooses(operation, planes):
            strict.update(operation.operands)
    found: dict[int, str] = {}
    unrounded: set[int] = set()
    for operation in operations:
        number = operation.result
        window = operation.window
        exact = (window is not None and window.chooses) or (
            _chooses(operation, planes) and unrounded.isdisjoint(operation.operands)
        )
        found[number] = "float32"
        if not exact and number in strict:
            found[number] = planes[number].dtype
        elif not exact:
            unrounded.add(number)
    return found


def _chooses(operation: PlanOperation, planes: Sequence[Plane]) -> bool:
    """Whether an operation gives one of its operands, or a constant of their dtype, up to the
    sign."""
    dtype = planes[operation.result].dtype
    if operation.window is not None or operation.vectors:
        return False
    if any(planes[number].dtype != dtype for number in operation.operands):
        return False
    return chooses(operation.code, dtype)


def chooses(code: Sequence[Instruction], dtype: str) -> bool:
    """Whether straight-line code gives one of its arguments, or a number of a dtype, up to the
    sign."""
    constants = [float(line.value or 0.0) for line in code if line.op == "constant"]
    held = rounded_to(dtype, np.array(constants, np.float32)).astype(np.float64)
    return all(line.op in _CHOOSES for line in code) and held.tolist() == constants
