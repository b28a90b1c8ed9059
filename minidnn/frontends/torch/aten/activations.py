"""Activations and other element-wise operations of one tensor, and dropout."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, takes
from minidnn.frontends.torch.aten.movement import part
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph import scalar_functions as formulas
from minidnn.graph.expression import Expression, argument, constant, where
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply, current_trace

_X = argument(0)

#: Operations of one tensor without other arguments, and the operator of each.
_PLAIN: dict[str, Operator] = {
    "relu": ops.ReLU(),
    "relu6": ops.ReLU6(),
    "sigmoid": ops.Sigmoid(),
    "tanh": ops.Tanh(),
    "silu": ops.SiLU(),
    "hardswish": ops.Hardswish(),
    "hardsigmoid": ops.Hardsigmoid(),
    "selu": ops.Formula(formulas.selu(_X), title="SELU"),
    "mish": ops.Formula(formulas.mish(_X), title="Mish"),
    "log_sigmoid": ops.Formula(formulas.log_sigmoid(_X), title="LogSigmoid"),
    "exp": ops.Formula(scalar.exp(_X), title="Exp"),
    "exp2": ops.Formula(scalar.apply("pow", constant(2.0), _X), title="Exp2"),
    "expm1": ops.Formula(scalar.expm1(_X), title="Expm1"),
    "log": ops.Formula(scalar.log(_X), title="Log"),
    "log1p": ops.Formula(scalar.log1p(_X), title="Log1p"),
    "log2": ops.Formula(scalar.log(_X) * (1 / math.log(2)), title="Log2"),
    "log10": ops.Formula(scalar.log(_X) * (1 / math.log(10)), title="Log10"),
    "sqrt": ops.Formula(scalar.sqrt(_X), title="Sqrt"),
    "rsqrt": ops.Formula(1.0 / scalar.sqrt(_X), title="Rsqrt"),
    "reciprocal": ops.Formula(1.0 / _X, title="Reciprocal"),
    **dict.fromkeys(("abs", "absolute"), ops.Formula(abs(_X), title="Abs")),
    **dict.fromkeys(("neg", "negative"), ops.Formula(-_X, title="Neg")),
    "square": ops.Formula(_X * _X, title="Square"),
    "erf": ops.Formula(scalar.erf(_X), title="Erf"),
    "sin": ops.Formula(scalar.sin(_X), title="Sin"),
    "cos": ops.Formula(scalar.cos(_X), title="Cos"),
    "atan": ops.Formula(scalar.atan(_X), title="Atan"),
    "floor": ops.Formula(scalar.floor(_X), title="Floor"),
    "ceil": ops.Formula(-scalar.floor(-_X), title="Ceil"),
    "round": ops.Formula(scalar.rint(_X), title="Round"),
    "trunc": ops.Formula(where(_X < 0.0, -scalar.floor(-_X), scalar.floor(_X)), title="Trunc"),
    # The sign of NaN is 0, as in PyTorch.
    "sign": ops.Formula(where(_X > 0.0, constant(1.0), where(_X < 0.0, -1.0, 0.0)), title="Sign"),
}


def plain(call: AtenCall, op: Operator) -> Any:
    """Applies an operator to the operand ``self``."""
    return apply(op, call.tensor("self"))


def formula(call: AtenCall, title: str, body: Expression) -> Any:
    """Applies a scalar expression to the operand ``self``."""
    return plain(call, ops.Formula(body, title=title))


for _name, _op in _PLAIN.items():
    takes(f"{_name}.default")(partial(plain, op=_op))


@takes("hardtanh.default")
def hardtanh(call: AtenCall) -> Any:
    low, high = call.number("min_val"), call.number("max_val")
    if (low, high) == (0, 6):
        return plain(call, ops.ReLU6())
    return formula(call, "Hardtanh", scalar.clip(argument(0), float(low), float(high)))


@takes("leaky_relu.default")
def leaky_relu(call: AtenCall) -> Any:
    return apply(ops.LeakyReLU(float(call.number("negative_slope"))), call.tensor("self"))


@takes("elu.default", when="scale and input_scale are 1")
def elu(call: AtenCall) -> Any:
    if (call.number("scale"), call.number("input_scale")) != (1, 1):
        raise Refused(f"scale={call['scale']}, input_scale={call['input_scale']}; known is 1")
    return apply(ops.ELU(float(call.number("alpha"))), call.tensor("self"))


@takes("celu.default")
def celu(call: AtenCall) -> Any:
    return formula(call, "CELU", formulas.celu(argument(0), float(call.number("alpha"))))


@takes("gelu.default")
def gelu(call: AtenCall) -> Any:
    return apply(ops.GELU(call["approximate"]), call.tensor("self"))


@takes("softplus.default")
def softplus(call: AtenCall) -> Any:
    beta, threshold = float(call.number("beta")), float(call.number("threshold"))
    return formula(call, "Softplus", formulas.scaled_softplus(argument(0), beta, threshold))


@takes("prelu.default", when="the weight is known")
def prelu(call: AtenCall) -> Any:
    x, weight = call.tensor("self"), call.weight("weight")
    value, slope = argument(0), argument(1)
    body = where(value > 0.0, value, slope * value)
    if weight.type.size == 1:
        return apply(ops.Formula(body, tensors=2, title="PReLU"), x, weight)
    return apply(ops.Formula(body, channel_vectors=1, title="PReLU"), x, weight)


@takes("hardshrink.default")
def hardshrink(call: AtenCall) -> Any:
    return formula(
        call, "Hardshrink", formulas.hardshrink(argument(0), float(call.number("lambd")))
    )


@takes("softshrink.default")
def softshrink(call: AtenCall) -> Any:
    return formula(
        call, "Softshrink", formulas.softshrink(argument(0), float(call.number("lambd")))
    )


@takes("threshold.default")
def threshold(call: AtenCall) -> Any:
    limit, value = float(call.number("threshold")), float(call.number("value"))
    return formula(call, "Threshold", formulas.threshold(argument(0), limit, value))


@takes("rrelu.default", when="not training")
def rrelu(call: AtenCall) -> Any:
    if call["training"]:
        raise Refused(f"{TRAINING}, and draws random numbers")
    slope = (float(call.number("lower")) + float(call.number("upper"))) / 2
    return apply(ops.LeakyReLU(slope), call.tensor("self"))


@takes("glu.default")
def glu(call: AtenCall) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    size = x.shape[axis] // 2
    halves = part(x, axis, 0, size), part(x, axis, size, size)
    gated = formulas.glu(argument(0), argument(1))
    return apply(ops.Formula(gated, tensors=2, title="GLU"), *halves)


@takes("dropout.default")
def dropout(call: AtenCall) -> Any:
    return _dropout(call, channels=False)


@takes("feature_dropout.default")
def feature_dropout(call: AtenCall) -> Any:
    return _dropout(call, channels=True)


@takes("alpha_dropout.default", "feature_alpha_dropout.default", when="not training")
def alpha_dropout(call: AtenCall) -> Any:
    if call["train"]:
        raise Refused(f"{TRAINING}, and draws random numbers")
    return apply(ops.Dropout(float(call.number("p"))), call.tensor("input"))


@takes("bernoulli.p", when="training, of a tensor that is not computed")
def bernoulli(call: AtenCall) -> Any:
    """Draws ones with probability ``p``, and zeros: a dropout with probability ``1 - p`` of ones,
    without its scale."""
    if not call.trained:
        raise Refused("it draws random numbers, and is not trained")
    if call["generator"] is not None:
        raise Refused("it has a generator of its own")
    shape = call.constant("self").type  # PyTorch refuses gradients by others
    seed, step, stream = current_trace().random_numbers()
    drop = ops.RandomDrop(1.0 - float(call.number("p")), stream)
    kept = apply(drop, call.filled("self", shape, 1.0), seed, step)
    ones = where(argument(0) > 0.0, 1.0, 0.0)
    return apply(ops.Formula(ones, title="Bernoulli"), kept)


def _dropout(call: AtenCall, channels: bool) -> Any:
    if not call["train"]:
        return apply(ops.Dropout(float(call.number("p"))), call.tensor("input"))
    if not call.trained:
        raise Refused(f"{TRAINING}, and draws random numbers")
    seed, step, stream = current_trace().random_numbers()
    drop = ops.RandomDrop(float(call.number("p")), stream, channels)
    return apply(drop, call.tensor("input"), seed, step)
