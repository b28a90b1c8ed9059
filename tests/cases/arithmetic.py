"""Cases of graph/operators/arithmetic.py: broadcasting, and users' own expressions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn import scalar
from minidnn.graph import operators as ops
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import ANY_RANK, PLANES, Case

PAIRS = (
    ((1, 1, 1, 1), (1, 1, 1, 1)),
    ((2, 3, 5, 7), (2, 3, 5, 7)),
    ((3, 17, 1, 9), (3, 17, 1, 9)),
    ((2, 5), (2, 5)),
)
BROADCAST = (
    ((2, 3, 5, 7), (2, 3, 1, 1)),  # one number per channel, as in squeeze and excitation
    ((2, 1, 5, 1), (2, 3, 1, 7)),
    ((2, 3, 5, 7), (7,)),
    ((3, 1), (2, 4, 3, 5)),
)


def _two(name: str, layer: Any, function: Callable[..., Any], numpy: Any, shapes: Any) -> Case:
    return Case(
        name=name,
        layer=layer,
        torch=lambda: function,
        formula=numpy,
        shapes=shapes,
        ulps=0,
    )


def _prelu(channels: int) -> L.Layer:
    return L.Elementwise(
        lambda x, slope: scalar.where(x > 0, x, slope * x), slope=np.full(channels, 0.25)
    )


def _torch_prelu() -> Any:
    import torch

    return lambda x, slope: torch.nn.functional.prelu(x, slope)


def _torch_mish() -> Any:
    import torch

    return torch.nn.functional.mish


CASES: tuple[Case, ...] = (
    *(
        _two(f"{title}{suffix}", layer, function, numpy, shapes)
        for suffix, shapes in (("", PAIRS), ("-broadcast", BROADCAST))
        for title, layer, function, numpy in (
            ("add", L.Add, lambda a, b: a + b, np.add),
            ("sub", lambda: OperatorLayer(ops.Sub()), lambda a, b: a - b, np.subtract),
            ("mul", L.Mul, lambda a, b: a * b, np.multiply),
            ("div", lambda: OperatorLayer(ops.Div()), lambda a, b: a / b, np.divide),
        )
    ),
    Case(
        name="formula-mish",
        layer=lambda: L.Elementwise(lambda x: x * scalar.tanh(scalar.log1p(scalar.exp(x)))),
        torch=_torch_mish,
        formula=lambda x: x * np.tanh(np.logaddexp(0.0, x)),
        shapes=tuple((shape,) for shape in ANY_RANK),
        # exp overflows where PyTorch and logaddexp take another form; the result is the same.
        torch_differs="PyTorch's mish of -inf depends on the loop",
        dtypes=("float64", "float32"),
    ),
    *(
        Case(
            name=f"formula-prelu-{shape[1]}",
            layer=partial(_prelu, shape[1]),
            torch=_torch_prelu,
            formula=lambda x, slope: np.where(x > 0, x, x * slope[:, None, None]),
            shapes=((shape,),),
            ulps=1,
        )
        for shape in PLANES
    ),
    Case(
        name="formula-three-tensors",
        layer=lambda: L.Elementwise(lambda a, b, c: scalar.fma(a, b, c), name="muladd"),
        torch=lambda: lambda a, b, c: a * b + c,
        formula=lambda a, b, c: a * b + c,
        shapes=(((2, 3, 5, 7), (3, 1, 1), (2, 3, 5, 7)), ((1, 1), (1, 1), (1, 1))),
        # PyTorch rounds the product too.
        sums=True,
    ),
)
