"""Reductions along axes, and what is computed from them: softmax, variances, vector norms."""

from __future__ import annotations

import math
from functools import partial
from math import inf
from typing import Any, Literal

import numpy as np

from minidnn.frontends.torch.aten.arithmetic import operands
from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant, equal, where
from minidnn.graph.ir import Value
from minidnn.graph.scalar_functions import at_least, root
from minidnn.graph.trace import apply
from minidnn.graph.types import FLOATS

How = Literal["sum", "mean", "max", "min", "prod"]

NO_DTYPE = "no other dtype is asked for"


@takes("softmax.int", "_softmax.default", when=NO_DTYPE)
def softmax(call: AtenCall) -> Any:
    return _along(call, ops.Softmax(call["dim"]))


@takes("log_softmax.int", "_log_softmax.default", when=NO_DTYPE)
def log_softmax(call: AtenCall) -> Any:
    return _along(call, ops.LogSoftmax(call["dim"]))


def _along(call: AtenCall, op: Any) -> Any:
    x = call.tensor("self")
    same_dtype(call)
    return apply(op, x)


def same_dtype(call: AtenCall) -> None:
    x = call.tensor("self")
    if call.result.dtype != x.dtype:
        raise Refused(f"it makes {call.result.dtype} of {x.dtype}")


@takes("mean.dim", "mean.default", when=NO_DTYPE)
def mean(call: AtenCall) -> Any:
    x = call.tensor("self")
    if x.type.rank == 4 and axes_of(call) == (2, 3):
        same_dtype(call)
        pooled = apply(ops.AdaptiveAvgPool2d((1, 1)), x)  # fuses with its producer
        return pooled if call["keepdim"] else apply(ops.Flatten(1), pooled)
    return _reduce(call, "mean")


def _reduce(call: AtenCall, how: How, first: bool = False) -> Any:
    """``first``: among equal extrema, the first one gets all of the gradient."""
    same_dtype(call)
    axes = axes_of(call)
    op = ops.Reduce(how, axes, keeps(call), first=first and call.trained and len(axes) == 1)
    return apply(op, call.tensor("self"))


def keeps(call: AtenCall) -> bool:
    return "keepdim" in call.names and bool(call["keepdim"])


def axes_of(call: AtenCall) -> tuple[int, ...]:
    """The axes to reduce: all of them if the call names none."""
    rank = call.tensor("self").type.rank
    axes = call["dim"] if "dim" in call.names else None
    if isinstance(axes, int):
        axes = [axes]
    return tuple(sorted({axis % max(rank, 1) for axis in axes})) if axes else tuple(range(rank))


takes("sum.dim_IntList", "sum.default", when=NO_DTYPE)(partial(_reduce, how="sum"))
takes("prod.default", "prod.dim_int", when=NO_DTYPE)(partial(_reduce, how="prod"))
takes("amax.default", "max.default")(partial(_reduce, how="max"))
takes("amin.default", "min.default")(partial(_reduce, how="min"))


@takes("max.dim")
def max_dim(call: AtenCall) -> Any:
    return (
        _reduce(call, "max", first=True),
        _extreme_index(call, smallest=False) if call.reads(1) else None,
    )


@takes("min.dim")
def min_dim(call: AtenCall) -> Any:
    return (
        _reduce(call, "min", first=True),
        _extreme_index(call, smallest=True) if call.reads(1) else None,
    )


def _extreme_index(call: AtenCall, smallest: bool) -> Value:
    """The index of the largest element; with ``smallest``, of the smallest, as that of the largest
    negated one.

    Among equal elements it is the first, as in PyTorch on the CPU.  NaN counts as the largest and
    as the smallest.
    """
    x = call.tensor("self")
    if smallest:
        # The smallest integer has no negative; -1 - x does not overflow.
        body = -argument(0) if x.dtype in FLOATS else -1.0 - argument(0)
        x = apply(ops.Formula(body, title="Turned"), x)
    if call["dim"] is not None:
        return apply(ops.ArgMax(call["dim"], bool(call["keepdim"])), x)
    index = apply(ops.ArgMax(0), apply(ops.View((x.type.size,)), x))
    return apply(ops.View(call.result.shape), index)


takes("argmax.default")(partial(_extreme_index, smallest=False))
takes("argmin.default")(partial(_extreme_index, smallest=True))


def _of_bools(call: AtenCall, how: How) -> Value:
    """Whether any element (``how="max"``) or all elements (``"min"``) are nonzero, as NaN is."""
    nonzero = apply(
        ops.Formula(1.0 - equal(argument(0), 0.0), title="Counts", dtype="int32"),
        call.tensor("self"),
    )
    reduced = apply(ops.Reduce(how, axes_of(call), keeps(call)), nonzero)
    return apply(ops.Formula(argument(0), title="Any", dtype="bool"), reduced)


takes("any.default", "any.dim", "any.dims")(partial(_of_bools, how="max"))
takes("all.default", "all.dim", "all.dims")(partial(_of_bools, how="min"))


@takes("logsumexp.default")
def logsumexp(call: AtenCall) -> Any:
    x, axes = call.tensor("self"), axes_of(call)
    largest = apply(ops.Reduce("max", axes, keepdim=True), x)
    # An infinite maximum minus itself would be NaN.
    finite = where(abs(argument(0)) < inf, argument(0), 0.0)
    largest = apply(ops.Formula(finite, title="Finite"), largest)
    shifted = ops.Formula(scalar.exp(argument(0) - argument(1)), tensors=2, title="Exp")
    total = apply(ops.Reduce("sum", axes, keepdim=True), apply(shifted, x, largest))
    body = scalar.log(argument(0)) + argument(1)
    out = apply(ops.Formula(body, tensors=2, title="LogSumExp"), total, largest)
    return out if keeps(call) else apply(ops.View(call.result.shape), out)


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
    """The sum of squared differences from the mean, divided by the count less the correction.  If
    that is not positive, the divisor is 0."""
    x, axes = call.tensor("self"), axes_of(call)
    if "unbiased" in call.names:
        correction = 1.0 if call["unbiased"] else 0.0
    else:
        correction = 1.0 if call["correction"] is None else float(call.number("correction"))
    count = math.prod(x.shape[axis] for axis in axes)
    difference = argument(0) - argument(1)
    squares = apply(ops.Formula(difference * difference, tensors=2, title="Squares"), x, mean)
    mean_square = apply(ops.Reduce("mean", axes, keeps(call)), squares)
    if not correction:
        return mean_square
    divisor = constant(max(count - correction, 0.0))
    return apply(ops.Formula(argument(0) * float(count) / divisor, title="Variance"), mean_square)


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
    """Without an order it is the 2-norm of the elements as a vector."""
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
    count = math.prod(x.shape[axis] for axis in axes)
    if count == 1 and order != 0.0:
        return apply(ops.View(call.result.shape), apply(ops.Formula(size, title="Abs"), x))
    if abs(order) == inf:
        sizes = apply(ops.Formula(size, title="Abs"), x)
        return apply(ops.Reduce("max" if order > 0 else "min", axes, keep), sizes)
    _no_half(x)
    if order == 2.0:
        # By the mean, as the sum may overflow a dtype of less than 32 bits.
        squares = apply(ops.Formula(argument(0) * argument(0), title="Squares"), x)
        mean = apply(ops.Reduce("mean", axes, keep), squares)
        return _root(mean, float(count))
    if order == 0.0:
        term = where(size > 0.0, constant(1.0), where(size <= 0.0, constant(0.0), 1.0))
    elif order == 1.0:
        term = size
    else:
        term = scalar.apply("pow", size, order)
    if order < 1.0 and order != 0.0:  # the derivative at 0 is infinite, and is taken as 0
        term = where(size <= 0.0, 0.0 if order > 0.0 else inf, term)
    total = apply(ops.Reduce("sum", axes, keep), apply(ops.Formula(term, title="Power"), x))
    if order in (0.0, 1.0):
        return total
    length = scalar.apply("pow", argument(0), 1 / order)
    if order > 0.0:
        length = where(argument(0) <= 0.0, 0.0, length)
    return apply(ops.Formula(length, title="Root"), total)


@takes("cosine_similarity.default", when="both operands have one dtype")
def cosine_similarity(call: AtenCall) -> Any:
    """Divides each vector by its length, or by eps if that is larger, and multiplies both."""
    first, second = operands(call, "x1", "x2")
    _no_half(first)
    shape = np.broadcast_shapes(first.shape, second.shape)
    axis = call["dim"] % len(shape)
    eps = float(call.number("eps"))
    units = []
    for value in (first, second):
        expanded = value if value.shape == shape else apply(ops.Expand(shape), value)
        squares = apply(ops.Formula(argument(0) * argument(0), title="Square"), expanded)
        total = apply(ops.Reduce("sum", (axis,), keepdim=True), squares)
        length = at_least(root(argument(1)), constant(eps))
        units.append(
            apply(ops.Formula(argument(0) / length, tensors=2, title="Unit"), expanded, total)
        )
    return apply(ops.Reduce("sum", (axis,)), apply(ops.Mul(), *units))
