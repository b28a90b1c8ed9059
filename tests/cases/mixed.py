"""Cases of formulas with a dtype: comparisons, choices, casts, and arithmetic on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.expression import Expression, argument, floor, number, rint, where
from minidnn.graph.operator import Operator
from minidnn.graph.trace import apply
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import Case, Shape

A, B, C = map(argument, range(3))
SHAPES = (((2, 3, 5, 7), (2, 3, 5, 7)), ((2, 3, 5, 7), (3, 1, 1)), ((3, 4), (1, 4)))


class _Chosen(L.Layer):
    """The first input where a comparison holds, else the second."""

    def __init__(self, comparison: Expression) -> None:
        self.op = ops.Formula(number(comparison), 2, dtype="bool")

    def forward(self, a: Any, b: Any) -> Any:
        holds = apply(self.op, a, b)
        return apply(ops.Formula(where(A > 0, B, C), 3, title="Where"), holds, a, b)


class _Whole(L.Layer):
    """An operator on its inputs as integers."""

    def __init__(self, op: Operator, dtype: str) -> None:
        self.op = op
        self.dtype = dtype

    def forward(self, *inputs: Any) -> Any:
        cast = ops.Formula(A, title="Cast", dtype=self.dtype)
        result = apply(self.op, *(apply(cast, value) for value in inputs))
        return apply(ops.Formula(A, title="Cast", dtype="float32"), result)


def _choice(name: str, comparison: Expression, numpy: Callable[..., Any]) -> Case:
    def by_torch(a: Any, b: Any) -> Any:
        import torch

        return torch.where(numpy(a, b), a, b)

    return Case(
        name=f"where-{name}",
        layer=lambda: _Chosen(comparison),
        torch=lambda: by_torch,
        formula=lambda a, b: np.asarray(np.where(numpy(a, b), a, b)),
        shapes=SHAPES,
        ulps=0,
        draw=lambda random, shape: random.integers(-3, 3, shape).astype(float),
    )


def _whole(name: str, op: Operator, numpy: Any, torch: Any, *shapes: tuple[Shape, ...]) -> Case:
    return Case(
        name=name,
        layer=lambda: _Whole(op, name.rpartition("-")[2]),
        torch=lambda: lambda *inputs: torch(*(x.long() for x in inputs)).to(inputs[0].dtype),
        formula=lambda *inputs: numpy(*(x.astype(np.int64) for x in inputs)).astype(float),
        shapes=shapes,
        dtypes=("float32",),
        ulps=0,
        special=False,
        draw=lambda random, shape: random.integers(-9, 9, shape) + 0.25,
    )


def _truncated(a: Any, b: Any) -> Any:
    return np.trunc(a / np.where(b == 0, np.inf, b)).astype(np.int64)


def _torch_truncated(a: Any, b: Any) -> Any:
    import torch

    quotient = torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc")
    return torch.where(b == 0, 0, quotient)


def _torch_rounded(x: Any) -> Any:
    return x.round() - x.floor()


MEAN, STD = (100.0, -3.5, 7.0), (50.0, 2.0, -0.5)


def _prepared(x: Any, mean: Any, std: Any) -> Any:
    """``x`` with channels first, less the mean, divided by the deviation."""
    return (x / 2 - mean) / std


def _prepared_by_torch(x: Any) -> Any:
    import torch

    mean, std = (torch.tensor(n, dtype=x.dtype)[:, None, None] for n in (MEAN, STD))
    return _prepared(x.permute(0, 3, 1, 2), mean, std)


CASES: tuple[Case, ...] = (
    Case(
        name="preprocess",  # of bytes: tests/layers/test_preprocess.py
        layer=lambda: L.Preprocess(MEAN, STD, 2, dtype="float32"),
        torch=lambda: _prepared_by_torch,
        formula=lambda x: _prepared(
            x.transpose(0, 3, 1, 2), *(np.array(n)[:, None, None] for n in (MEAN, STD))
        ),
        shapes=(((1, 1, 1, 3),), ((2, 5, 7, 3),), ((3, 17, 4, 3),)),
        dtypes=("float32",),
        of_largest=True,
    ),
    _choice("less", A < B, lambda a, b: a < b),
    _choice("greater_or_equal", A >= B, lambda a, b: a >= b),
    _choice("equal", (A <= B) * (A >= B), lambda a, b: a == b),
    *(
        _whole(f"{name}-{dtype}", op, numpy, torch, *SHAPES)
        for dtype in ("int64", "int32")
        for name, op, numpy, torch in (
            ("add", ops.Add(), np.add, lambda a, b: a + b),
            ("mul", ops.Mul(), np.multiply, lambda a, b: a * b),
            ("div", ops.Div(), _truncated, _torch_truncated),
        )
    ),
    _whole(
        "reduce_sum-int64",
        ops.Reduce("sum", (1,)),
        lambda x: x.sum(1),
        lambda x: x.sum(1),
        ((2, 3, 5),),
        ((3, 70, 2),),
        ((2, 9001),),
    ),
    _whole(
        "reduce_min-int64",
        ops.Reduce("min", (0, 2)),
        lambda x: x.min((0, 2)),
        lambda x: x.amin((0, 2)),
        ((2, 3, 5),),
        ((5, 2, 33),),
    ),
    _whole(
        "reduce_max-int32",
        ops.Reduce("max", (2,)),
        lambda x: x.max(2),
        lambda x: x.amax(2),
        ((2, 3, 5),),
        ((2, 1, 77),),
        ((1, 2, 8200),),
    ),
    Case(
        name="round-floor",
        layer=lambda: OperatorLayer(ops.Formula(rint(A) - floor(A))),
        torch=lambda: _torch_rounded,
        formula=lambda x: np.rint(x) - np.floor(x),
        shapes=(((2, 3, 5, 7),), ((3, 4),)),
        ulps=0,
    ),
)
