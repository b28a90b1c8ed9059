"""Element-wise operators of one operand: activations, math functions, Clip, Dropout."""

from __future__ import annotations

import math
from functools import partial

from minidnn.frontends.onnx.build import Body, is_integer
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.graph import operators as ops
from minidnn.graph.expression import (
    atan,
    clip,
    cos,
    erf,
    exp,
    expm1,
    floor,
    log,
    maximum,
    minimum,
    rint,
    sigmoid,
    sin,
    sqrt,
    tanh,
    where,
)
from minidnn.graph.ir import Constant, Value
from minidnn.graph.operator import Operator
from minidnn.graph.scalar_functions import (
    acos,
    acosh,
    asin,
    asinh,
    at_least,
    at_most,
    atanh,
    ceil,
    cosh,
    sign,
    sinh,
    softplus,
    tan,
)
from minidnn.graph.types import FLOATS, INTEGERS

_family = Family("element-wise")
CONVERTERS = _family.converters

#: The default bounds of Clip before opset 11: the largest float32, so infinities are clipped.
_LARGEST = 3.4028234663852886e38


def _formula(call: OnnxCall, body: Body, op: Operator | None = None) -> Value:
    """The formula of the operand, or the named operator of the same meaning."""
    return call.build.pointwise(call.kind, body, call.operand(0), op=op)


#: Operators without attributes: the formula, and the graph's operator of the same meaning.
_PLAIN: dict[str, tuple[Body, Operator | None]] = {
    "Abs": (abs, None),
    "Acos": (acos, None),
    "Acosh": (acosh, None),
    "Asin": (asin, None),
    "Asinh": (asinh, None),
    "Atan": (atan, None),
    "Atanh": (atanh, None),
    "Ceil": (ceil, None),
    "Cos": (cos, None),
    "Cosh": (cosh, None),
    "Erf": (erf, None),
    "Exp": (exp, None),
    "Floor": (floor, None),
    "HardSwish": (lambda x: x * clip(x + 3.0, 0.0, 6.0) / 6.0, ops.Hardswish()),
    "Log": (log, None),
    "Mish": (lambda x: x * tanh(softplus(x)), None),
    "Neg": (lambda x: -x, None),
    "Reciprocal": (lambda x: 1.0 / x, None),
    "Relu": (lambda x: maximum(x, 0.0), ops.ReLU()),
    "Round": (rint, None),
    "Sigmoid": (sigmoid, ops.Sigmoid()),
    "Sign": (sign, None),
    "Sin": (sin, None),
    "Sinh": (sinh, None),
    "Softplus": (softplus, None),
    "Softsign": (lambda x: x / (1.0 + abs(x)), None),
    "Sqrt": (sqrt, None),
    "Tan": (tan, None),
    "Tanh": (tanh, ops.Tanh()),
}
for _name, (_body, _op) in _PLAIN.items():
    _family.add(_name, partial(_formula, body=_body, op=_op))


@_family("LeakyRelu")
def _leaky_relu(call: OnnxCall) -> Value:
    slope = call.number("alpha", 0.01)
    return _formula(call, lambda x: where(x > 0.0, x, x * slope), ops.LeakyReLU(slope))


@_family("Elu")
def _elu(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 1.0)
    return _formula(call, lambda x: where(x > 0.0, x, alpha * expm1(x)), ops.ELU(alpha))


@_family("Selu")
def _selu(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 1.67326319217681884765625)
    gamma = call.number("gamma", 1.05070102214813232421875)
    return _formula(call, lambda x: gamma * where(x > 0.0, x, alpha * expm1(x)))


@_family("Celu")
def _celu(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 1.0)
    return _formula(call, lambda x: where(x > 0.0, x, alpha * expm1(x / alpha)))


@_family("HardSigmoid")
def _hard_sigmoid(call: OnnxCall) -> Value:
    alpha, beta = call.number("alpha", 0.2), call.number("beta", 0.5)
    op = ops.Hardsigmoid() if beta == 0.5 and abs(alpha - 1 / 6) < 1e-8 else None
    return _formula(call, lambda x: clip(alpha * x + beta, 0.0, 1.0), op)


@_family("ThresholdedRelu")
def _thresholded_relu(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 1.0)
    return _formula(call, lambda x: where(x > alpha, x, 0.0))


@_family("Shrink")
def _shrink(call: OnnxCall) -> Value:
    x = call.operand(0)
    bound, bias = call.number("lambd", 0.5), call.number("bias", 0.0)
    dtype = x.dtype
    if dtype in INTEGERS and not (is_integer(bound) and is_integer(bias)):
        # Integers are compared with fractions, and results truncated.
        x = call.build.cast(x, "float32")
    return call.build.pointwise(
        "Shrink",
        lambda x: where(x < -bound, x + bias, where(x > bound, x - bias, 0.0)),
        x,
        dtype=dtype,
    )


@_family("Swish")
def _swish(call: OnnxCall) -> Value:
    alpha = call.number("alpha", 1.0)
    op = ops.SiLU() if alpha == 1.0 else None
    return _formula(call, lambda x: x / (1.0 + exp(-alpha * x)), op)


@_family("Gelu")
def _gelu(call: OnnxCall) -> Value:
    approximate = call.choice("approximate", "none", "none", "tanh")
    if approximate == "tanh":
        factor = math.sqrt(2.0 / math.pi)
        return _formula(
            call,
            lambda x: 0.5 * x * (1.0 + tanh(factor * (x + 0.044715 * (x * x * x)))),
            ops.GELU("tanh"),
        )
    return _formula(call, lambda x: 0.5 * x * (1.0 + erf(x * math.sqrt(0.5))), ops.GELU())


@_family("Clip")
def _clip(call: OnnxCall) -> Value:
    build, x = call.build, call.operand(0)
    if call.opset < 11:
        low, high = call.number("min", -_LARGEST), call.number("max", _LARGEST)
        if (low, high) == (0.0, 6.0):
            return build.apply(ops.ReLU6(), x)
        return build.pointwise("Clip", lambda x: clip(x, low, high), x)
    low_bound, high_bound = call.optional(1), call.optional(2)
    bounds = [value for value in (low_bound, high_bound) if value is not None]
    if any(value.type.size != 1 for value in bounds):
        raise call.refuse("its bounds are no single numbers")
    bounds = [build.view(value, ()) for value in bounds]
    if low_bound is None and high_bound is None:
        return x
    is_float = x.dtype in FLOATS
    if is_float and [_known(value) for value in bounds] == [0.0, 6.0]:
        return build.apply(ops.ReLU6(), x)
    # At a bound, the derivative is that of PyTorch's clamp.
    above, below = (at_least, at_most) if is_float else (maximum, minimum)
    if low_bound is None:
        return build.pointwise("Clip", below, x, *bounds)
    if high_bound is None:
        return build.pointwise("Clip", above, x, *bounds)
    return build.pointwise("Clip", lambda x, a, b: below(above(x, a), b), x, *bounds)


def _known(bound: Value) -> float | None:
    """The number of a constant bound, else None."""
    return float(bound.data.reshape(-1)[0]) if isinstance(bound, Constant) else None


@_family("Identity")
def _identity(call: OnnxCall) -> Value:
    return call.operand(0)


@_family("Dropout")
def _dropout(call: OnnxCall) -> tuple[Value, ...]:
    """At inference alone: not with training_mode, unless nothing is dropped."""
    x = call.operand(0)
    if call.opset < 12:
        call.number("ratio", 0.5)
    call.integer("seed", 0)
    if call.opset < 7:
        call.integer("is_test", 0)
    training, ratio = call.maybe_known(2, "training_mode"), call.optional(1)
    trains = training is not None and training.any()
    if trains and (ratio is None or call.data(ratio, "ratio").any()):
        raise call.refuse("training_mode is set; dropout is known at inference alone")
    if not call.wants(1):
        return (x,)
    # Before opset 10 the mask has the dtype of what it masks.
    return (x, call.build.filled(x.shape, True, "bool" if call.opset >= 10 else x.dtype))


@_family("IsNaN")
def _is_nan(call: OnnxCall) -> Value:
    x = _float(call)
    return call.build.pointwise("IsNaN", lambda x: 1.0 - (x <= x), x, dtype="bool")


@_family("IsInf")
def _is_inf(call: OnnxCall) -> Value:
    x = _float(call)
    up, down = call.integer("detect_positive", 1), call.integer("detect_negative", 1)

    return call.build.pointwise(
        "IsInf",
        lambda x: float(bool(up)) * (x >= math.inf) + float(bool(down)) * (x <= -math.inf),
        x,
        dtype="bool",
    )


def _float(call: OnnxCall) -> Value:
    """The operand, which must be floating-point."""
    x = call.operand(0)
    if x.dtype not in FLOATS:
        raise call.refuse(f"its operand is {x.dtype}")
    return x
