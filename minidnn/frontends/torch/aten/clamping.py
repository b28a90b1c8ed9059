"""Values between bounds.

PyTorch 2.14 changed whose the gradient is where a value is a bound: before it is the value's; since
then it is nobody's where the bound is a number, and half of it is the value's and half the bound's
where the bound is a tensor.  The installed version's rule is followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minidnn._torch_internals import VERSION
from minidnn.frontends.torch.aten.arithmetic import operands
from minidnn.frontends.torch.aten.call import AtenCall, takes
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, constant, equal, maximum, minimum, where
from minidnn.graph.scalar_functions import at_least, at_most
from minidnn.graph.trace import apply

#: Limits an expression by another one.
Limit = Callable[[Expression, Expression], Expression]

IS_SHARED = VERSION >= (2, 14)

#: Extrema are cheaper where there are no gradients.
_EXTREMA: dict[str, Limit] = {"min": maximum, "max": minimum}
_THE_VALUES: dict[str, Limit] = {"min": at_least, "max": at_most}


@takes("clamp.default", "clamp_min.default", "clamp_max.default", when="the bounds are numbers")
def clamp(call: AtenCall) -> Any:
    limits = _EXTREMA
    if call.trained:
        limits = {"min": _above, "max": _below} if IS_SHARED else _THE_VALUES
    body = argument(0)
    for name, limited in limits.items():
        if name in call.names and call[name] is not None:
            body = limited(body, constant(float(call.number(name))))
    return apply(ops.Formula(body, title="Clamp"), call.tensor("self"))


@takes("clamp.Tensor")
def clamp_between(call: AtenCall) -> Any:
    """The upper bound counts where it is below the lower one."""
    names = [name for name in _EXTREMA if call.is_tensor(name)]
    limits = _THE_VALUES if call.trained and not IS_SHARED else _EXTREMA
    body = argument(0)
    if call.trained and IS_SHARED and len(names) == 2:
        body = _between(argument(0), argument(1), argument(2))
    else:
        for place, name in enumerate(names, 1):
            body = limits[name](body, argument(place))
    tensors = 1 + len(names)
    return apply(ops.Formula(body, tensors=tensors, title="Clamp"), *operands(call, "self", *names))


def _above(x: Expression, low: Expression) -> Expression:
    """The larger one of ``x`` and a number, without a gradient where both are equal or NaN."""
    return where(x > low, x, where(x <= low, low, 0.0 * (x + low)))


def _below(x: Expression, high: Expression) -> Expression:
    """The smaller one of ``x`` and a number, as :func:`_above` has the larger one."""
    return where(x < high, x, where(x >= high, high, 0.0 * (x + high)))


def _between(x: Expression, low: Expression, high: Expression) -> Expression:
    """``x`` between two tensors: where it is one of them, and they differ, half of the gradient is
    that bound's.  Of bounds that are NaN, or the wrong way round, each has what PyTorch gives it.
    """
    of_low = where(low <= high, low, 0.0 * (x + high))  # NaN, of which nobody has a gradient
    of_high = where(low <= high, high, 0.0 * (x + low))
    at_a_bound = where(
        equal(x, low),
        0.5 * x + 0.5 * low,
        where(equal(x, high), 0.5 * x + 0.5 * high, x),
    )
    one = where(equal(low, high), x, x + 0.0 * (low + high))
    inside = where(low < high, at_a_bound, one)
    apart = where(x < low, of_low, where(x > high, of_high, inside))
    return where(low > high, where(equal(x, x), high, x + high), apart)
