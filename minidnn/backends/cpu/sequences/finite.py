"""The bound on a kernel's inputs below which no maximum in it meets a NaN.

``a > b ? a : b`` is one instruction, but loses a NaN; a maximum that keeps it takes three.  A NaN
comes from the inputs, or arises where numbers overflow.  A bound on the inputs' magnitudes excludes
both; it follows from the kernel's parameters by interval arithmetic.  The kernel checks its inputs
against the bound, and computes a task again, exactly, where one is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ....fusion.plan import Binding, KernelPlan, PlanOperation
from ....graph.expression import Instruction
from ....graph.ir import Constant
from ....graph.scalar_ops import COMPARISONS
from ....graph.window import Window
from ...codegen.taps import is_looped

BOUNDS = (2.0**64, 2.0**32, 2.0**16, 2.0**8)
"""The bounds that are tried, the largest first: few, so that networks of one shape share
kernels."""

_LARGEST = 1e38
_INFINITY = math.inf


@dataclass(frozen=True)
class Interval:
    """All values that something can have: from ``low`` to ``high``, and NaN if ``nan``."""

    low: float
    high: float
    nan: bool = False

    @property
    def infinite(self) -> bool:
        return max(-self.low, self.high) == _INFINITY

    @property
    def has_zero(self) -> bool:
        return self.low <= 0.0 <= self.high


_ANYTHING = Interval(-_INFINITY, _INFINITY, True)


def input_bound(plan: KernelPlan, binding: Binding) -> float | None:
    """The largest of BOUNDS such that no max window reads a NaN if no input is larger in magnitude
    or NaN; None if even the smallest does not suffice."""
    with np.errstate(all="ignore"):
        for bound in BOUNDS:
            if all(_holds(plan, binding, i, bound) for i in range(len(binding.segments))):
                return bound
    return None


def _holds(plan: KernelPlan, binding: Binding, segment: int, bound: float) -> bool:
    """Whether no max window of a segment of channels reads a NaN under a bound on the inputs."""
    begin, end = binding.segments[segment]
    known: dict[int, Interval] = {}
    vectors = []
    for vector in binding.vectors:
        value = vector.value
        data = value.data if isinstance(value, Constant) else np.array([np.nan], np.float32)
        part = data[max(0, begin - vector.channel) : max(0, end - vector.channel)]
        vectors.append(_of(part) if part.size else _ANYTHING)
    for number, plane in enumerate(plan.planes):
        if plane.input is not None:
            known[number] = Interval(-bound, bound)
    for step in plan.steps:
        for operation in step.segments[segment]:
            window, number = operation.window, operation.result
            if window is None:
                result = _run(operation, known, vectors)
            elif is_looped(window):
                result = _ANYTHING
            else:
                source = known[operation.operands[0]]
                if window.reduction == "max" and source.nan:
                    return False
                result = _window(window, source, plan.planes[operation.operands[0]].extent)
            is_rounded = plan.planes[number].dtype == "bfloat16"
            known[number] = _rounded(result) if is_rounded else result
    return True


def _of(data: np.ndarray) -> Interval:
    """The interval of a constant's elements."""
    if not np.isfinite(data).all():
        return _ANYTHING
    return Interval(float(data.min()), float(data.max()))


def _window(window: Window, source: Interval, extent: tuple[int, int]) -> Interval:
    """The interval of a window's results over a plane of ``extent``."""
    if window.reduction == "max" and window.chooses:
        empty = window.reads_nothing(extent)
        return Interval(-_INFINITY, source.high) if empty else source
    if not window.averages:
        return _ANYTHING
    limit = max(-source.low, source.high) * window.taps  # divisors may be negative
    # The average of no elements is NaN where only elements inside the plane count.
    empty = window.divisor is None and not window.count_padding and window.reads_nothing(extent)
    return _bounded(-limit, limit, source.nan or source.infinite or empty)


def _run(operation: PlanOperation, known: dict[int, Interval], vectors: list[Interval]) -> Interval:
    """The interval of an operation's result."""
    arguments = [known[number] for number in operation.operands]
    arguments += [vectors[number] for number in operation.vectors]
    values: list[Interval] = []
    for line in operation.code:
        values.append(_line(line, arguments, values))
    return values[-1]


def _line(line: Instruction, arguments: Sequence[Interval], values: list[Interval]) -> Interval:
    """The interval of an instruction's result, where ``values`` are those of earlier ones."""
    if line.op == "argument":
        return arguments[int(line.value or 0)]
    if line.op == "constant":
        number = float(np.float32(line.value or 0.0))
        return Interval(number, number) if math.isfinite(number) else _ANYTHING
    operands = [values[i] for i in line.operands]
    if line.op == "where":
        _, first, second = operands
        return Interval(
            min(first.low, second.low), max(first.high, second.high), first.nan or second.nan
        )
    if line.op not in _RULES:
        return _ANYTHING
    result = _RULES[line.op](*operands)
    return Interval(result.low, result.high, result.nan or any(v.nan for v in operands))


def _rounded(interval: Interval) -> Interval:
    """Widens an interval by the error of rounding to bfloat16."""
    low, high = interval.low - abs(interval.low) / 256, interval.high + abs(interval.high) / 256
    return _bounded(low, high, interval.nan)


def _bounded(low: float, high: float, nan: bool = False) -> Interval:
    """Widens bounds by rounding errors, and to infinity where they may overflow."""
    if math.isnan(low) or math.isnan(high):
        return _ANYTHING
    low, high = min(low, _LARGEST), max(high, -_LARGEST)
    low = low - abs(low) * 1e-6 if low > -_LARGEST else -_INFINITY
    high = high + abs(high) * 1e-6 if high < _LARGEST else _INFINITY
    return Interval(low, high, nan)


def _add(a: Interval, b: Interval) -> Interval:
    opposite = (a.high == _INFINITY and b.low == -_INFINITY) or (
        a.low == -_INFINITY and b.high == _INFINITY
    )
    if opposite:
        return _ANYTHING
    return _bounded(a.low + b.low, a.high + b.high, a.nan or b.nan)


def _mul(a: Interval, b: Interval) -> Interval:
    if (a.infinite and b.has_zero) or (b.infinite and a.has_zero):
        return _ANYTHING
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _bounded(min(products), max(products))


def _div(a: Interval, b: Interval) -> Interval:
    if b.low <= 0.0 or (a.infinite and b.infinite):
        return _ANYTHING  # the rule below is for positive divisors alone
    quotients = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
    return _bounded(min(quotients), max(quotients))


def _neg(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _monotone(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def rule(a: Interval) -> Interval:
        return _bounded(float(function(a.low)), float(function(a.high)))

    return rule


def _from_zero(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    def rule(a: Interval) -> Interval:
        return _ANYTHING if a.low < 0.0 else _monotone(function)(a)

    return rule


#: By scalar operation, the interval of the result for those of the operands; the result may also be
#: NaN where an operand may.
_RULES: dict[str, Callable[..., Interval]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "mul": _mul,
    "fma": lambda a, b, c: _add(_mul(a, b), c),
    "div": _div,
    "neg": _neg,
    "abs": lambda a: Interval(0.0, max(-a.low, a.high)),
    "maximum": lambda a, b: Interval(max(a.low, b.low), max(a.high, b.high)),
    "minimum": lambda a, b: Interval(min(a.low, b.low), min(a.high, b.high)),
    "floor": _monotone(np.floor),
    "round": _monotone(np.rint),
    "exp": _monotone(np.exp),
    "expm1": _monotone(np.expm1),
    "tanh": lambda a: Interval(-1.001, 1.001),
    "erf": lambda a: Interval(-1.001, 1.001),
    "sin": lambda a: _ANYTHING if a.infinite else Interval(-1.001, 1.001),
    "cos": lambda a: _ANYTHING if a.infinite else Interval(-1.001, 1.001),
    "atan": lambda a: Interval(-1.572, 1.572),
    "sqrt": _from_zero(math.sqrt),
    "log1p": _from_zero(np.log1p),
    **{op: lambda a, b: Interval(0.0, 1.0) for op in COMPARISONS},
}
