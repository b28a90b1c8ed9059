"""Reductions over axes, and ArgMax and ArgMin."""

from __future__ import annotations

from math import inf, prod
from typing import Literal

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Body
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.graph import operators as ops
from minidnn.graph.expression import exp, log, where
from minidnn.graph.ir import Value
from minidnn.graph.scalar_functions import root
from minidnn.graph.types import FLOATS

_family = Family("reductions")
CONVERTERS = _family.converters

How = Literal["sum", "mean", "max", "min", "prod"]
#: The first opset in which the axes are an operand and not an attribute; 18 for all others.
_OPERAND_SINCE = {"ReduceSum": 13}
_OF_FLOATS = "Of floating-point numbers."


def _axes(call: OnnxCall, x: Value) -> tuple[tuple[int, ...], bool]:
    """Returns the axes, and whether they are kept with size 1.

    Without axes all are reduced, or none with ``noop_with_empty_axes``.
    """
    if call.opset < _OPERAND_SINCE.get(call.kind, 18):
        listed = call.ints("axes")
    else:
        listed = call.known_ints(1, "axes")
    keep = call.flag("keepdims", True)
    if not listed:
        nothing = call.flag("noop_with_empty_axes")
        return (() if nothing else tuple(range(x.type.rank)), keep)
    call.flag("noop_with_empty_axes")
    return tuple(sorted(call.axes(listed, x.type.rank))), keep


def _reduced(call: OnnxCall, x: Value, how: How, axes: tuple[int, ...], keep: bool) -> Value:
    """The reduction of a value over axes: of any dtype, and of empty values to the identity."""
    build = call.build
    if x.dtype == "bool" and how in ("max", "min"):
        reduced = _reduced(call, build.cast(x, "int32"), how, axes, keep)
        return build.pointwise("Any", lambda a: a > 0, reduced, dtype="bool")
    if x.dtype == "bool":
        raise call.refuse(f"its operand is {x.dtype}")
    if not axes:
        return x
    if x.dtype not in FLOATS and how == "mean":
        count = prod(x.shape[axis] for axis in axes)
        if not count:
            raise GraphError(f"the mean of an input {x.shape}, of integers, is none")
        reduced = _reduced(call, x, "sum", axes, keep)
        # Rounds toward zero, as casting the quotient does.
        return build.pointwise("Mean", lambda a: a / count, reduced)
    if not x.type.size:
        limits = np.iinfo(np.dtype(x.dtype)) if x.dtype not in FLOATS else None
        bounds = (inf, -inf) if limits is None else (int(limits.max), int(limits.min))
        identity = {"sum": 0, "prod": 1, "mean": np.nan, "min": bounds[0], "max": bounds[1]}[how]
        shape = [1 if d in axes else n for d, n in enumerate(x.shape) if keep or d not in axes]
        return build.filled(shape, identity, x.dtype)
    if how == "mean" and axes == (2, 3) and keep and x.type.rank == 4:
        # As pooling: its kernels read the layout in which convolutions write.
        return build.apply(ops.AdaptiveAvgPool2d((1, 1)), x)
    return build.apply(ops.Reduce(how, axes, keep), x)


def _reduction(
    name: str,
    how: How,
    before: Body | None = None,
    after: Body | None = None,
    note: str = "",
) -> None:
    """Registers a reduction, with element-wise formulas before and after it.

    With a ``note`` it takes floating-point operands alone.
    """

    def convert(call: OnnxCall) -> Value:
        x = call.operand(0)
        if note and x.dtype not in FLOATS:
            raise call.refuse(f"its operand is {x.dtype}")
        axes, keep = _axes(call, x)
        if before is not None:
            x = call.build.pointwise(call.kind, before, x)
        out = _reduced(call, x, how, axes, keep)
        return out if after is None else call.build.pointwise(call.kind, after, out)

    _family.add(name, convert, note)


_reduction("ReduceSum", "sum")
_reduction("ReduceMean", "mean")
_reduction("ReduceMax", "max")
_reduction("ReduceMin", "min")
_reduction("ReduceProd", "prod")
_reduction("ReduceL1", "sum", abs)
_reduction("ReduceL2", "sum", lambda a: a * a, root, _OF_FLOATS)
_reduction("ReduceSumSquare", "sum", lambda a: a * a)
_reduction("ReduceLogSum", "sum", None, log, _OF_FLOATS)


@_family("ReduceLogSumExp")
def _log_sum_exp(call: OnnxCall) -> Value:
    """Of floating-point numbers."""
    build, x = call.build, call.operand(0)
    if x.dtype not in FLOATS:
        raise call.refuse(f"its operand is {x.dtype}")
    axes, keep = _axes(call, x)
    if not x.type.size or not axes:
        out = _reduced(call, build.pointwise("Exp", exp, x), "sum", axes, keep)
        return build.pointwise("Log", log, out)
    top = _reduced(call, x, "max", axes, True)
    # An infinite maximum less itself would be NaN.
    top = build.pointwise("Finite", lambda m: where(abs(m) < inf, m, 0.0), top)
    powers = build.pointwise("Exp", lambda a, m: exp(a - m), x, top)
    total = _reduced(call, powers, "sum", axes, True)
    out = build.pointwise("LogSumExp", lambda s, m: log(s) + m, total, top)
    if keep:
        return out
    return build.view(out, [n for d, n in enumerate(x.shape) if d not in axes])


@_family("ArgMax", "ArgMin")
def _extreme_index(call: OnnxCall) -> Value:
    x = call.operand(0)
    axis = call.axis(call.integer("axis", 0), x.type.rank)
    keep, last = call.flag("keepdims", True), call.flag("select_last_index")
    if x.dtype == "bool":
        raise call.refuse("its operand is bool")
    if call.kind == "ArgMin":  # the ArgMax of the operand with its order reversed
        # The smallest integer has no negative, so integers become their complement.
        is_integer = x.dtype not in FLOATS
        x = call.build.pointwise("Turned", lambda a: -1 - a if is_integer else -a, x)
    return call.build.apply(ops.ArgMax(axis, keep, last), x)
