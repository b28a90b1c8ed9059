"""Activations and other element-wise operations of one tensor, and dropout."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, takes
from minidnn.frontends.torch.aten.movement import part
from minidnn.graph import expression as scalar
from minidnn.graph import operators as ops
from minidnn.graph import scalar_functions as formulas
from minidnn.graph.expression import Expression, argument
from minidnn.graph.trace import apply, current_trace


def formula(call: AtenCall, title: str, body: Expression) -> Any:
    """Applies a scalar expression to the operand ``self``."""
    return apply(ops.Formula(body, title=title), call.tensor("self"))


@takes("relu.default")
def relu(call: AtenCall) -> Any:
    return apply(ops.ReLU(), call.tensor("self"))


@takes("relu6.default")
def relu6(call: AtenCall) -> Any:
    return apply(ops.ReLU6(), call.tensor("self"))


@takes("hardtanh.default")
def hardtanh(call: AtenCall) -> Any:
    low, high = call.number("min_val"), call.number("max_val")
    if (low, high) == (0, 6):
        return relu6(call)
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


@takes("selu.default")
def selu(call: AtenCall) -> Any:
    return formula(call, "SELU", formulas.selu(argument(0)))


@takes("sigmoid.default")
def sigmoid(call: AtenCall) -> Any:
    return apply(ops.Sigmoid(), call.tensor("self"))


@takes("tanh.default")
def tanh(call: AtenCall) -> Any:
    return apply(ops.Tanh(), call.tensor("self"))


@takes("gelu.default")
def gelu(call: AtenCall) -> Any:
    return apply(ops.GELU(call["approximate"]), call.tensor("self"))


@takes("silu.default")
def silu(call: AtenCall) -> Any:
    return apply(ops.SiLU(), call.tensor("self"))


@takes("hardswish.default")
def hardswish(call: AtenCall) -> Any:
    return apply(ops.Hardswish(), call.tensor("self"))


@takes("hardsigmoid.default")
def hardsigmoid(call: AtenCall) -> Any:
    return apply(ops.Hardsigmoid(), call.tensor("self"))


@takes("softplus.default")
def softplus(call: AtenCall) -> Any:
    beta, threshold = float(call.number("beta")), float(call.number("threshold"))
    return formula(call, "Softplus", formulas.scaled_softplus(argument(0), beta, threshold))


@takes("mish.default")
def mish(call: AtenCall) -> Any:
    return formula(call, "Mish", formulas.mish(argument(0)))


@takes("prelu.default", when="the weight is known")
def prelu(call: AtenCall) -> Any:
    x, weight = call.tensor("self"), call.weight("weight")
    value, slope = argument(0), argument(1)
    body = scalar.where(value > 0.0, value, slope * value)
    if weight.type.size == 1:
        return apply(ops.Formula(body, tensors=2, title="PReLU"), x, weight)
    return apply(ops.Formula(body, channel_vectors=1, title="PReLU"), x, weight)


@takes("exp.default")
def exp(call: AtenCall) -> Any:
    return formula(call, "Exp", scalar.exp(argument(0)))


@takes("log.default")
def log(call: AtenCall) -> Any:
    return formula(call, "Log", scalar.log(argument(0)))


@takes("sqrt.default")
def sqrt(call: AtenCall) -> Any:
    return formula(call, "Sqrt", scalar.sqrt(argument(0)))


@takes("rsqrt.default")
def rsqrt(call: AtenCall) -> Any:
    return formula(call, "Rsqrt", 1.0 / scalar.sqrt(argument(0)))


@takes("reciprocal.default")
def reciprocal(call: AtenCall) -> Any:
    return formula(call, "Reciprocal", 1.0 / argument(0))


@takes("abs.default", "absolute.default")
def absolute(call: AtenCall) -> Any:
    return formula(call, "Abs", abs(argument(0)))


@takes("neg.default", "negative.default")
def neg(call: AtenCall) -> Any:
    return formula(call, "Neg", -argument(0))


@takes("square.default")
def square(call: AtenCall) -> Any:
    return formula(call, "Square", argument(0) * argument(0))


@takes("erf.default")
def erf(call: AtenCall) -> Any:
    return formula(call, "Erf", scalar.erf(argument(0)))


@takes("expm1.default")
def expm1(call: AtenCall) -> Any:
    return formula(call, "Expm1", scalar.expm1(argument(0)))


@takes("log1p.default")
def log1p(call: AtenCall) -> Any:
    return formula(call, "Log1p", scalar.log1p(argument(0)))


@takes("log_sigmoid.default")
def log_sigmoid(call: AtenCall) -> Any:
    return formula(call, "LogSigmoid", formulas.log_sigmoid(argument(0)))


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
    ones = scalar.where(argument(0) > 0.0, 1.0, 0.0)
    return apply(ops.Formula(ones, title="Bernoulli"), kept)


def _dropout(call: AtenCall, channels: bool) -> Any:
    if not call["train"]:
        return apply(ops.Dropout(float(call.number("p"))), call.tensor("input"))
    if not call.trained:
        raise Refused(f"{TRAINING}, and draws random numbers")
    seed, step, stream = current_trace().random_numbers()
    drop = ops.RandomDrop(float(call.number("p")), stream, channels)
    return apply(drop, call.tensor("input"), seed, step)
