"""Variances, and norms of vectors."""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from minidnn.frontends.torch.aten.arithmetic import operands
from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.frontends.torch.aten.reduction import NO_DTYPE, axes_of, keeps, same_dtype
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant, where
from minidnn.graph.ir import Value
from minidnn.graph.scalar_functions import at_least, root
from minidnn.graph.trace import apply


@takes("var.default", "var.dim", "var.correction")
def var(call: AtenCall) -> Any:
    return _variance(call, _mean_of(call))


@takes("std.default", "std.dim", "std.correction")
def std(call: AtenCall) -> Any:
    return _root(_variance(call, _mean_of(call)))


@takes("var_mean.default", "var_mean.dim", "var_mean.correction")
def var_mean(call: AtenCall) -> Any:
    mean = _mean_of(call)
    return (_variance(call, mean), apply(ops.View(call.result.shape), mean))


@takes("std_mean.default", "std_mean.dim", "std_mean.correction")
def std_mean(call: AtenCall) -> Any:
    mean = _mean_of(call)
    return (_root(_variance(call, mean)), apply(ops.View(call.result.shape), mean))


def _mean_of(call: AtenCall) -> Value:
    _no_half(call.tensor("self"))
    return apply(ops.Reduce("mean", axes_of(call), keepdim=True), call.tensor("self"))


def _variance(call: AtenCall, mean: Value) -> Value:
    """What lies how far from the mean, by so many less as the correction says: 0 / 0, which is
    NaN, if none are left."""
    x, axes = call.tensor("self"), axes_of(call)
    if "unbiased" in call.names:
        correction = 1.0 if call["unbiased"] else 0.0
    else:
        correction = 1.0 if call["correction"] is None else float(call.number("correction"))
    count = prod(x.shape[axis] for axis in axes)
    apart = argument(0) - argument(1)
    squares = apply(ops.Formula(apart * apart, tensors=2, title="Squares"), x, mean)
    found = apply(ops.Reduce("mean", axes, keeps(call)), squares)
    if not correction:
        return found
    left = constant(max(count - correction, 0.0))
    return apply(ops.Formula(argument(0) * float(count) / left, title="Variance"), found)


def _root(x: Value, factor: float = 1.0) -> Value:
    body = argument(0) if factor == 1.0 else argument(0) * factor
    return apply(ops.Formula(root(body), title="Sqrt"), x)


def _no_half(x: Value) -> None:
    if x.dtype in ("float16", "bfloat16"):
        raise Refused(f"it is of {x.dtype}, for which PyTorch has sums of more digits")


@takes("linalg_vector_norm.default", when=NO_DTYPE)
def linalg_vector_norm(call: AtenCall) -> Any:
    return _norm(call, float(call.number("ord")))


@takes("linalg_norm.default", when="of vectors, or Frobenius's of matrices; " + NO_DTYPE)
def linalg_norm(call: AtenCall) -> Any:
    """Without an order it is that of all elements."""
    if call["ord"] is None:
        return _norm(call, 2.0)
    rank = call.tensor("self").type.rank
    if (rank if call["dim"] is None else len(call["dim"])) != 1:
        raise Refused(f"ord={call['ord']} of matrices")
    return _norm(call, float(call.number("ord")))


@takes("norm.Scalar", "norm.ScalarOpt_dim", when=NO_DTYPE)
def norm(call: AtenCall) -> Any:
    return _norm(call, 2.0 if call["p"] is None else float(call.number("p")))


def _norm(call: AtenCall, order: float) -> Value:
    x, axes, keep = call.tensor("self"), axes_of(call), keeps(call)
    same_dtype(call)
    size = abs(argument(0))
    count = prod(x.shape[axis] for axis in axes)
    if count == 1 and order != 0.0:
        return apply(ops.View(call.result.shape), apply(ops.Formula(size, title="Abs"), x))
    if abs(order) == inf:
        found = apply(ops.Formula(size, title="Abs"), x)
        return apply(ops.Reduce("max" if order > 0 else "min", axes, keep), found)
    _no_half(x)
    if order == 2.0:
        # The mean, as at less than 32 bits the sum may be too large for its type.
        squares = apply(ops.Formula(argument(0) * argument(0), title="Squares"), x)
        mean = apply(ops.Reduce("mean", axes, keep), squares)
        return _root(mean, float(count))
    if order == 0.0:
        each = where(size > 0.0, constant(1.0), where(size <= 0.0, constant(0.0), 1.0))
    elif order == 1.0:
        each = size
    else:
        each = scalar.apply("pow", size, order)
    if order < 1.0 and order != 0.0:  # infinite is the derivative at 0 alone, which counts as 0
        each = where(size <= 0.0, 0.0 if order > 0.0 else inf, each)
    total = apply(ops.Reduce("sum", axes, keep), apply(ops.Formula(each, title="Power"), x))
    if order in (0.0, 1.0):
        return total
    length = scalar.apply("pow", argument(0), 1 / order)
    if order > 0.0:
        length = where(argument(0) <= 0.0, 0.0, length)
    return apply(ops.Formula(length, title="Root"), total)


@takes("cosine_similarity.default", when="both operands have one dtype")
def cosine_similarity(call: AtenCall) -> Any:
    """Each vector by its length, which is eps at least, then their product."""
    first, second = operands(call, "x1", "x2")
    _no_half(first)
    shape = np.broadcast_shapes(first.shape, second.shape)
    axis = call["dim"] % len(shape)
    least = float(call.number("eps"))
    units = []
    for value in (first, second):
        spread = value if value.shape == shape else apply(ops.Expand(shape), value)
        squares = apply(ops.Formula(argument(0) * argument(0), title="Square"), spread)
        total = apply(ops.Reduce("sum", (axis,), keepdim=True), squares)
        length = at_least(root(argument(1)), constant(least))
        units.append(
            apply(ops.Formula(argument(0) / length, tensors=2, title="Unit"), spread, total)
        )
    return apply(ops.Reduce("sum", (axis,)), apply(ops.Mul(), *units))
