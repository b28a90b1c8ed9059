"""Operations that join elements along axes."""

from __future__ import annotations

from math import inf
from typing import Any, Literal

from minidnn.frontends.torch.aten.call import AtenCall, Refused, takes
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, equal, where
from minidnn.graph.ir import Value
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
        pooled = apply(ops.AdaptiveAvgPool2d((1, 1)), x)  # fuses with what is before it
        return pooled if call["keepdim"] else apply(ops.Flatten(1), pooled)
    return _reduce(call, "mean")


@takes("sum.dim_IntList", "sum.default", when=NO_DTYPE)
def sum_(call: AtenCall) -> Any:
    return _reduce(call, "sum")


@takes("amax.default", "max.default")
def amax(call: AtenCall) -> Any:
    return _reduce(call, "max")


@takes("amin.default", "min.default")
def amin(call: AtenCall) -> Any:
    return _reduce(call, "min")


def _reduce(call: AtenCall, how: How, first: bool = False) -> Any:
    """``first`` says that the first of equal extremes has all of the gradient."""
    same_dtype(call)
    axes = axes_of(call)
    op = ops.Reduce(how, axes, keeps(call), first=first and call.trained and len(axes) == 1)
    return apply(op, call.tensor("self"))


def keeps(call: AtenCall) -> bool:
    return "keepdim" in call.names and bool(call["keepdim"])


def axes_of(call: AtenCall) -> tuple[int, ...]:
    """The axes joined: all of them if none is given."""
    rank = call.tensor("self").type.rank
    given = call["dim"] if "dim" in call.names else None
    if isinstance(given, int):
        given = [given]
    return tuple(sorted({axis % max(rank, 1) for axis in given})) if given else tuple(range(rank))


@takes("prod.default", "prod.dim_int", when=NO_DTYPE)
def prod(call: AtenCall) -> Any:
    return _reduce(call, "prod")


@takes("max.dim")
def max_dim(call: AtenCall) -> Any:
    return (_reduce(call, "max", first=True), _place(call, turned=False) if call.reads(1) else None)


@takes("min.dim")
def min_dim(call: AtenCall) -> Any:
    return (_reduce(call, "min", first=True), _place(call, turned=True) if call.reads(1) else None)


@takes("argmax.default")
def argmax(call: AtenCall) -> Any:
    return _place(call, turned=False)


@takes("argmin.default")
def argmin(call: AtenCall) -> Any:
    return _place(call, turned=True)


def _place(call: AtenCall, turned: bool) -> Value:
    """The index of the largest element, or of the smallest, which is the largest when turned: of
    several the first, as PyTorch's on the CPU is; NaN counts as either."""
    x = call.tensor("self")
    if turned:
        # Of whole numbers the smallest has no opposite.
        body = -argument(0) if x.dtype in FLOATS else -1.0 - argument(0)
        x = apply(ops.Formula(body, title="Turned"), x)
    if call["dim"] is not None:
        return apply(ops.ArgMax(call["dim"], bool(call["keepdim"])), x)
    place = apply(ops.ArgMax(0), apply(ops.View((x.type.size,)), x))
    return apply(ops.View(call.result.shape), place)


@takes("any.default", "any.dim", "any.dims")
def any_(call: AtenCall) -> Any:
    return _of_bools(call, "max")


@takes("all.default", "all.dim", "all.dims")
def all_(call: AtenCall) -> Any:
    return _of_bools(call, "min")


def _of_bools(call: AtenCall, how: How) -> Value:
    """Whether any, or all, are other than zero, as NaN is."""
    counted = apply(
        ops.Formula(1.0 - equal(argument(0), 0.0), title="Counts", dtype="int32"),
        call.tensor("self"),
    )
    found = apply(ops.Reduce(how, axes_of(call), keeps(call)), counted)
    return apply(ops.Formula(argument(0), title="Any", dtype="bool"), found)


@takes("logsumexp.default")
def logsumexp(call: AtenCall) -> Any:
    x, axes = call.tensor("self"), axes_of(call)
    top = apply(ops.Reduce("max", axes, keepdim=True), x)
    # An infinite one would be taken from itself, which is NaN.
    finite = where(abs(argument(0)) < inf, argument(0), 0.0)
    top = apply(ops.Formula(finite, title="Finite"), top)
    apart = ops.Formula(scalar.exp(argument(0) - argument(1)), tensors=2, title="Exp")
    total = apply(ops.Reduce("sum", axes, keepdim=True), apply(apart, x, top))
    body = scalar.log(argument(0)) + argument(1)
    out = apply(ops.Formula(body, tensors=2, title="LogSumExp"), total, top)
    return out if keeps(call) else apply(ops.View(call.result.shape), out)
