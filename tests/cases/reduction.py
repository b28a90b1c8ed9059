"""Cases of graph/operators/reduction.py."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument
from minidnn.graph.trace import apply
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import ANY_RANK, Case, Shape, like_torch
from tests.oracles import formulas

DIMS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (-1, ANY_RANK),
    (1, ANY_RANK),
    (0, ((2, 3), (3, 1, 4))),
    (2, ((2, 3, 5, 7), (1, 2, 1, 3))),
    (-3, ((2, 3, 5, 7),)),
)


def _reduce(how: str, dims: tuple[int, ...], keepdim: bool, *shapes: Shape) -> Case:
    names = {"max": "amax", "min": "amin"}

    def by_torch(x: Any) -> Any:
        return getattr(x, names.get(how, how))(dims[0] if how == "prod" else dims, keepdim)

    return Case(
        name=f"reduce_{how}-{'-'.join(map(str, dims))}{'-kept' * keepdim}",
        layer=lambda: OperatorLayer(ops.Reduce(how, dims, keepdim)),  # type: ignore[arg-type]
        torch=lambda: by_torch,
        formula=lambda x: getattr(np, how)(x, axis=dims, keepdims=keepdim),
        shapes=tuple((shape,) for shape in shapes),
        ulps=0 if how in ("max", "min") else 8,
        sums=how in ("sum", "mean"),
        # A product of huge and tiny numbers depends on the order of its factors.
        special=how != "prod",
    )


class _Place(L.Layer):
    """The place of a maximum as a floating-point number."""

    def __init__(self, dim: int, last: bool) -> None:
        self.op = ops.ArgMax(dim, last=last)

    def forward(self, x: Any) -> Any:
        return apply(ops.Formula(argument(0), dtype="float32"), apply(self.op, x))


def _argmax(dim: int, last: bool, *shapes: Shape) -> Case:
    def by_torch(x: Any) -> Any:
        place = x.flip(dim).argmax(dim) if last else x.argmax(dim)
        return (x.shape[dim] - 1 - place if last else place).to(x.dtype)

    def formula(x: np.ndarray) -> np.ndarray:
        place = np.argmax(np.flip(x, dim), dim) if last else np.argmax(x, dim)
        return (x.shape[dim] - 1 - place if last else place).astype(float)

    return Case(
        name=f"argmax-{dim}{'-last' * last}",
        layer=lambda: _Place(dim, last),
        torch=lambda: by_torch,
        formula=formula,
        shapes=tuple((shape,) for shape in shapes),
        dtypes=("float32",),
        ulps=0,
        draw=lambda random, shape: random.integers(-4, 4, shape).astype(float),
    )


class _Normalized(L.Layer):
    """Layer normalization whose weight and bias are inputs."""

    def __init__(self, axes: int) -> None:
        self.op = ops.LayerNorm(axes, 0.25)

    def forward(self, *inputs: Any) -> Any:
        return apply(self.op, *inputs)


def _layer_norm(axes: int, *shapes: tuple[Shape, ...]) -> Case:
    def by_torch(x: Any, *rest: Any) -> Any:
        import torch

        given = torch.nn.functional.layer_norm
        if len(rest) == 1:
            return given(x, x.shape[-axes:], rest[0], None, 0.25)
        return given(x, x.shape[-axes:], *rest, eps=0.25)

    def formula(x: np.ndarray, weight: Any = 1.0, bias: Any = 0.0) -> np.ndarray:
        over = tuple(range(-axes, 0))
        apart = x - x.mean(over, keepdims=True)
        return apart / np.sqrt((apart**2).mean(over, keepdims=True) + 0.25) * weight + bias

    return Case(
        name=f"layer_norm-{axes}-{len(shapes[0])}",
        layer=lambda: _Normalized(axes),
        torch=lambda: by_torch,
        formula=formula,
        shapes=shapes,
        ulps=8,
        of_largest=True,
        special=False,  # the squares of huge numbers are infinite in float32, not in float64
    )


CASES: tuple[Case, ...] = (
    _reduce("sum", (1,), False, (2, 3, 5, 7), (3, 300)),
    _reduce("sum", (0, 2), True, (2, 3, 5, 7)),
    _reduce("mean", (2, 3), True, (2, 3, 5, 7), (1, 2, 1, 1)),
    _reduce("mean", (0, 1, 2), False, (2, 3, 5)),
    _reduce("max", (1,), True, (2, 33, 5, 7)),
    _reduce("max", (1, 3), False, (2, 3, 5, 7)),
    _reduce("min", (0,), False, (3, 40)),
    _reduce("prod", (2,), False, (2, 3, 5)),
    _argmax(1, False, (2, 3, 5, 7), (3, 100)),
    _argmax(-1, True, (2, 3, 5, 7)),
    _argmax(0, False, (3, 5)),
    _layer_norm(1, ((2, 3, 7),), ((3, 100),), ((33, 8),), ((3, 1032),)),
    _layer_norm(2, ((2, 3, 5, 7), (5, 7))),
    _layer_norm(1, ((2, 3, 5, 7), (7,), (7,)), ((2, 3, 5, 96), (96,), (96,))),
    *(
        like_torch(
            f"softmax-dim{dim}",
            "Softmax",
            dim,
            shapes=shapes,
            formula=partial(formulas.softmax, dim=dim),
            ulps=8,
        )
        for dim, shapes in DIMS
    ),
    *(
        like_torch(
            f"log_softmax-dim{dim}",
            "LogSoftmax",
            dim,
            shapes=shapes,
            formula=partial(formulas.log_softmax, dim=dim),
            of_largest=True,
        )
        for dim, shapes in DIMS
    ),
)
