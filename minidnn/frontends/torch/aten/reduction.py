"""Operations that join elements along axes."""

from __future__ import annotations

from typing import Any, Literal

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply

_NO_DTYPE = "no other dtype is asked for"


@takes("softmax.int", "_softmax.default", when=_NO_DTYPE)
def softmax(call: Call) -> Any:
    return _along(call, ops.Softmax(call["dim"]))


@takes("log_softmax.int", "_log_softmax.default", when=_NO_DTYPE)
def log_softmax(call: Call) -> Any:
    return _along(call, ops.LogSoftmax(call["dim"]))


def _along(call: Call, op: Any) -> Any:
    x = call.tensor("self")
    _same_dtype(call)
    return apply(op, x)


def _same_dtype(call: Call) -> None:
    x = call.tensor("self")
    if call.result.dtype != x.dtype:
        raise Refused(f"it makes {call.result.dtype} of {x.dtype}")


@takes("mean.dim", "mean.default", when=_NO_DTYPE)
def mean(call: Call) -> Any:
    x = call.tensor("self")
    if x.type.rank == 4 and _axes(call) == (2, 3):
        _same_dtype(call)
        pooled = apply(ops.AdaptiveAvgPool2d((1, 1)), x)  # fuses with what is before it
        return pooled if call["keepdim"] else apply(ops.Flatten(1), pooled)
    return _reduce(call, "mean")


@takes("sum.dim_IntList", "sum.default", when=_NO_DTYPE)
def sum_(call: Call) -> Any:
    return _reduce(call, "sum")


@takes("amax.default", "max.default")
def amax(call: Call) -> Any:
    return _reduce(call, "max")


@takes("amin.default", "min.default")
def amin(call: Call) -> Any:
    return _reduce(call, "min")


def _reduce(call: Call, how: Literal["sum", "mean", "max", "min"]) -> Any:
    _same_dtype(call)
    keepdim = "keepdim" in call.names and bool(call["keepdim"])
    return apply(ops.Reduce(how, _axes(call), keepdim), call.tensor("self"))


def _axes(call: Call) -> tuple[int, ...]:
    """The axes joined: all of them if none is given."""
    rank = call.tensor("self").type.rank
    given = call["dim"] if "dim" in call.names else None
    return tuple(sorted({axis % rank for axis in given})) if given else tuple(range(rank))


@takes("argmax.default", when="an axis is given")
def argmax(call: Call) -> Any:
    if call["dim"] is None:
        raise Refused("dim=None: it counts over all axes")
    return apply(ops.ArgMax(call["dim"], bool(call["keepdim"])), call.tensor("self"))
