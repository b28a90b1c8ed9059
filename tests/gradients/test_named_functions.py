"""NumPy's functions, ONNX's operators, layers and losses at special points: values and gradients
are those of PyTorch's functions of the same names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import defs

from minidnn import layers as L
from minidnn.frontends.onnx.convert import load_onnx
from minidnn.frontends.onnx.operators import CONVERTERS
from minidnn.gradients.reverse import pullback, reached_values
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Graph
from minidnn.graph.numpy_functions import UFUNCS
from minidnn.graph.tensor_functions import FUNCTIONS
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType
from minidnn.training import losses
from tests.onnx.models import model, node
from tests.torch.special_points import points, rows
from tests.torch.test_exact_points import differ

Arrays = Sequence[np.ndarray]
Theirs = Callable[..., torch.Tensor]

ONE = [each(torch.float64).numpy() for each in points(1, [0.2, 0.5, 1.5, 3.0, 6.0])]
TWO = [each(torch.float64).numpy() for each in points(2)]
ROWS = rows(3)(torch.float64).numpy()


def compare(
    graph: Graph,
    theirs: Theirs,
    inputs: Arrays,
    values: np.ndarray | bool = True,
    slopes: np.ndarray | bool = True,
) -> None:
    """On the reference in float64, where ``values`` and ``slopes`` say."""
    leaves = [torch.from_numpy(each.copy()).requires_grad_() for each in inputs]
    wanted = theirs(*leaves)
    with np.errstate(all="ignore"):
        (found,) = evaluate(graph, inputs, "float64")
        expected = wanted.detach().numpy()
        wrong = differ(np.asarray(found, expected.dtype), expected, loose=True) & values
        assert not wrong.any(), _shown(wrong, inputs, found, expected)
        if not wanted.requires_grad:
            return
        every = torch.autograd.grad(wanted.sum(), leaves, allow_unused=True)
        of = [each for each in graph.inputs if each in reached_values(graph)]
        ones = np.ones(graph.outputs[0].shape)
        back = evaluate(pullback(graph, of), [*inputs, ones], "float64") if of else ()
        for value, own in zip(of, back, strict=True):
            gradient = every[graph.inputs.index(value)]
            there = np.zeros_like(own) if gradient is None else gradient.numpy()
            wrong = differ(own, there, loose=True) & slopes
            assert not wrong.any(), _shown(wrong, inputs, own, there)


def _shown(wrong: np.ndarray, inputs: Arrays, found: Any, wanted: np.ndarray) -> str:
    return "; ".join(
        f"at {[x[i[: x.ndim]] for x in inputs]}: {found[i]}, not {wanted[i]}"
        for i in map(tuple, np.argwhere(wrong)[:8].tolist())
    )


def traced(function: Callable[..., Any], inputs: Arrays) -> Graph:
    with tracing("function") as trace:
        given = [trace.input(TensorType(x.shape, "float64"), f"x{i}") for i, x in enumerate(inputs)]
        return trace.graph([function(*given)])


# NumPy's functions

#: PyTorch's names, where they are others than NumPy's, and its functions.
NAMES: dict[str, Any] = {
    **{"fabs": torch.abs, "rint": torch.round, "power": torch.pow, "equal": torch.eq},
    **{"max": torch.amax, "min": torch.amin},
}
#: Their operands are no floating-point numbers, or several axes at once.
OTHERS = ("matmul", "invert", "bitwise_and", "bitwise_or", "bitwise_xor")
#: Beyond its domain PyTorch has slopes of what is NaN; its sign of NaN is 0.
DOMAINS = {"arccosh": ONE[0] >= 1.0}
VALUES = {"sign": ~np.isnan(ONE[0])}
#: As of the ATen operation: -0 and minus infinity to a power.
_SLOPES = {"power": ~((TWO[0] == 0) & np.signbit(TWO[0]) | (TWO[0] == -np.inf))}


def theirs_of(name: str) -> Any:
    return NAMES.get(name) or getattr(torch, name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda each: each.__name__)
def test_universal_functions(ufunc: Any) -> None:
    name = ufunc.__name__
    if name in OTHERS:
        pytest.skip("not of floating-point numbers, element by element")
    inputs = ONE if ufunc.nin == 1 else TWO
    there = DOMAINS.get(name, _SLOPES.get(name, True))
    compare(traced(ufunc, inputs), theirs_of(name), inputs, VALUES.get(name, True), there)


FINITE = np.isfinite(ROWS).all(1) & ~((ROWS != 0) & (np.abs(ROWS) < 1e-300)).any(1)
#: Of rows; variances divide by as many numbers as there are.
REDUCTIONS: dict[str, Theirs] = {
    **{
        name: partial(theirs_of(name), dim=1)
        for name in ("sum", "mean", "prod", "max", "amax", "min", "amin")
    },
    **{name: partial(theirs_of(name), dim=1, correction=0) for name in ("var", "std")},
}
MOVES = (
    *("where", "around", "argmax", "argmin", "reshape", "ravel", "transpose", "permute_dims"),
    *("swapaxes", "squeeze", "expand_dims", "broadcast_to", "concatenate", "concat", "stack"),
    *("split", "flip", "take", "zeros_like", "ones_like", "full_like", "ndim", "shape"),
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_functions_of_arrays(function: Any) -> None:
    name = function.__name__
    if name in REDUCTIONS:
        x = ROWS[FINITE] if name in ("var", "std", "prod") else ROWS
        compare(traced(lambda x: function(x, axis=1), [x]), REDUCTIONS[name], [x])
    elif name == "round":
        compare(traced(function, ONE), torch.round, ONE)
    elif name == "clip":
        for low, high in ((-0.5, 1.5), (0.0, None), (None, 3.0), (0.2, 6.0)):
            compare(
                traced(lambda x, a=low, b=high: np.clip(x, a, b), ONE),
                lambda x, a=low, b=high: torch.clip(x, a, b),
                ONE,
            )
    else:
        assert name in MOVES, "say what PyTorch's function is, or that it only moves elements"


# ONNX's operators


def _shrink(x: Any) -> Any:
    return F.softshrink(x, 0.5)


#: PyTorch's functions, and the attributes with which an operator is the same.
OPERATORS: dict[str, tuple[Theirs, dict[str, Any]]] = {
    **{
        name: (getattr(torch, name.lower()), {})
        for name in (
            *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh"),
            *("Erf", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid"),
            *("Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"),
        )
    },
    **{name: (getattr(F, name.lower()), {}) for name in ("Mish", "Softplus", "Softsign", "Gelu")},
    **{"HardSwish": (F.hardswish, {}), "Swish": (F.silu, {}), "Shrink": (_shrink, {"bias": 0.5})},
    "LeakyRelu": (lambda x: F.leaky_relu(x, 0.2), {"alpha": 0.2}),
    "Elu": (lambda x: F.elu(x, 0.5), {"alpha": 0.5}),
    "Celu": (lambda x: F.celu(x, 0.5), {"alpha": 0.5}),
    "Selu": (F.selu, {}),
    "HardSigmoid": (F.hardsigmoid, {"alpha": 1 / 6}),
    "ThresholdedRelu": (lambda x: F.threshold(x, 1.5, 0.0), {"alpha": 1.5}),
}
#: These have other operands besides, give bools, or give their operand.
ELSEWHERE = ("Clip", "IsNaN", "IsInf", "Identity", "Dropout")
_NEAR = np.isclose(np.abs(ONE[0]), 3, rtol=1e-12) & (np.abs(ONE[0]) != 3)
#: As of NumPy's and ATen's functions: domains, NaN, and what is rounded to a kink.
NOT_SLOPES: dict[str, np.ndarray] = {
    "Acosh": ONE[0] < 1.0,
    **dict.fromkeys(("HardSigmoid", "HardSwish"), _NEAR | np.isnan(ONE[0])),
    **dict.fromkeys(("Shrink", "ThresholdedRelu"), np.isnan(ONE[0])),
}
#: ONNX gives 0 where a comparison with NaN decides; NumPy's sign of NaN is NaN.
NOT_VALUES: dict[str, np.ndarray] = {
    **dict.fromkeys(("Sign", "ThresholdedRelu"), np.isnan(ONE[0])),
    "Shrink": ~(np.abs(ONE[0]) < 1e38),  # it is cast to float32
}


@pytest.mark.parametrize("name", OPERATORS)
def test_onnx_operators(name: str) -> None:
    theirs, attributes = OPERATORS[name]
    (x,) = ONE
    made = model([node(name, "x", **attributes)], [("x", x.shape)], opset=24)
    none = np.zeros(x.shape, bool)
    values, slopes = (~table.get(name, none) for table in (NOT_VALUES, NOT_SLOPES))
    compare(load_onnx(made), theirs, ONE, values, slopes)


def test_every_element_wise_operator_of_onnx_is_compared() -> None:
    every = {
        name
        for name, each in CONVERTERS.items()
        if each.family == "element-wise" and len(defs.get_schema(name).inputs) >= 1
    }
    assert every - set(OPERATORS) == set(ELSEWHERE) & every


@pytest.mark.parametrize("bounds", ["low high", "low", "_ high"])
def test_onnx_clip(bounds: str) -> None:
    low, high = (name if name in bounds else None for name in ("low", "high"))
    arrays = {name: np.float32(n) for name, n in (("low", -0.5), ("high", 1.5)) if name in bounds}
    made = model([node("Clip", f"x {bounds}")], [("x", ONE[0].shape)], arrays=arrays)
    limits = (-0.5 if low else None, 1.5 if high else None)
    compare(load_onnx(made), lambda x: torch.clamp(x, *limits), ONE)


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMin"])
def test_onnx_reductions(kind: str) -> None:
    theirs: dict[str, Theirs] = {
        "ReduceL1": lambda x: torch.linalg.vector_norm(x, 1, 1),
        "ReduceL2": lambda x: torch.linalg.vector_norm(x, 2, 1),
        "ReduceMax": lambda x: x.amax(1),
        "ReduceMin": lambda x: x.amin(1),
    }
    x = ROWS[FINITE]
    made = model([node(kind, "x axes", keepdims=0)], [("x", x.shape)], arrays={"axes": [1]})
    compare(load_onnx(made), theirs[kind], [x])


# Layers and losses

ACTIVATIONS = [
    name for name in L.activations.__all__ if name != "PReLU" and hasattr(torch.nn, name)
]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    (x,) = ONE
    # Of NaN PyTorch's vectors and single numbers give different slopes.
    slopes = ~(np.isnan(x) | (_NEAR if name.startswith("Hard") else False))
    compare(traced(getattr(L, name)(), ONE), getattr(torch.nn, name)(), ONE, True, slopes)


#: Where both operands are finite and of sizes whose squares are.
_MODEST = np.all([np.abs(each) < 1e6 for each in TWO], 0)
LOSSES: dict[str, Theirs] = {
    "MSE": F.mse_loss,
    "L1": F.l1_loss,
    "Huber": F.huber_loss,
    "BinaryCrossEntropy": F.binary_cross_entropy_with_logits,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    inputs = [each[_MODEST] for each in TWO]
    compare(traced(getattr(losses, name)(), inputs), LOSSES[name], inputs)
