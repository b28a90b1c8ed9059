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
#: Long axes, and short ones of many rows.
LONG_DIMS: tuple[tuple[int, tuple[Shape, ...]], ...] = (
    (1, ((1, 40003), (3, 1030), (300, 7), (1, 21, 40, 41), (2, 600, 40), (40, 5, 3))),
    (0, ((20000, 3), (1300, 70))),
)


#: Rows and columns that are cut into parts, and some that are just not.
LONG = (
    *(((1, 40003), (1,)), ((3, 11000), (1,)), ((70, 520), (1,)), ((1, 1, 4100, 9), (2, 3))),
    *(((40000, 3), (0,)), ((900, 70), (0,)), ((2, 130, 600), (1,)), ((1, 24, 40, 41), (1,))),
    *(((3000, 5), (1,)), ((90, 40, 3), (1,)), ((3, 5, 400, 7), (0, 2)), ((1, 300, 130), (0, 2))),
)


def around(mean: float) -> Any:
    """Draws numbers of deviation 1 whose mean is large beside it."""
    return lambda random, shape: mean + random.standard_normal(shape)


def _reduce(
    how: str, dims: tuple[int, ...], keepdim: bool, *shapes: Shape, name: str = "", **given: Any
) -> Case:
    names = {"max": "amax", "min": "amin"}

    def by_torch(x: Any) -> Any:
        return getattr(x, names.get(how, how))(dims[0] if how == "prod" else dims, keepdim)

    return Case(
        name=f"reduce_{how}-{'-'.join(map(str, dims))}{'-kept' * keepdim}{name}",
        layer=lambda: OperatorLayer(ops.Reduce(how, dims, keepdim)),  # type: ignore[arg-type]
        torch=lambda: by_torch,
        formula=lambda x: getattr(np, how)(x, axis=dims, keepdims=keepdim),
        shapes=tuple((shape,) for shape in shapes),
        ulps=given.pop("ulps", 0 if how in ("max", "min") else 8),
        sums=how in ("sum", "mean"),
        # A product of huge and tiny numbers depends on the order of its factors.
        special=given.pop("special", how != "prod"),
        **given,
    )


def _long_reductions() -> tuple[Case, ...]:
    cases = []
    for shape, dims in LONG:
        name = f"-{'x'.join(map(str, shape))}"
        # Of many equal numbers each addition may round to the same side.
        draws = {"far": around(1e5), "equal": lambda _, shape: np.full(shape, 0.7)}
        for kind, draw in draws.items():
            given = {"draw": draw, "ulps": 4, "special": False, "dtypes": ("float32",)}
            cases.append(_reduce("mean", dims, False, shape, name=f"{name}-{kind}", **given))
        cases.append(_reduce("max", dims, False, shape, name=name))
    (shape, _), *_ = LONG
    cases.append(_reduce("sum", (1,), True, shape, name="-long", ulps=4))
    return (
        *cases,
        _argmax(1, False, (1, 40003)),
        _argmax(0, True, (40000, 3), (900, 70), (900, 66)),
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
        name=f"argmax-{dim}{'-last' * last}-{'x'.join(map(str, shapes[0]))}",
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


def _layer_norm(axes: int, *shapes: tuple[Shape, ...], mean: float = 0.0) -> Case:
    def by_torch(x: Any, *rest: Any) -> Any:
        import torch

        given = torch.nn.functional.layer_norm
        if mean:  # its float32 loses the digits that are asked for
            wide = (x.double(), x.shape[-axes:], *(value.double() for value in rest))
            return given(*wide, eps=0.25).to(x.dtype)
        if len(rest) == 1:
            return given(x, x.shape[-axes:], rest[0], None, 0.25)
        return given(x, x.shape[-axes:], *rest, eps=0.25)

    def formula(x: np.ndarray, weight: Any = 1.0, bias: Any = 0.0) -> np.ndarray:
        over = tuple(range(-axes, 0))
        apart = x - x.mean(over, keepdims=True)
        return apart / np.sqrt((apart**2).mean(over, keepdims=True) + 0.25) * weight + bias

    return Case(
        name=f"layer_norm-{axes}-{len(shapes[0])}{f'-far{mean:g}' if mean else ''}",
        layer=lambda: _Normalized(axes),
        torch=lambda: by_torch,
        formula=formula,
        shapes=shapes,
        ulps=8,
        of_largest=True,
        special=False,  # the squares of huge numbers are infinite in float32, not in float64
        # In float64 the formula is no more accurate than what it is compared with.
        **({"draw": around(mean), "dtypes": ("float32",)} if mean else {}),
    )


class _Variance(L.Layer):
    """The variance of each channel."""

    def forward(self, x: Any) -> Any:
        mean = apply(ops.Reduce("mean", (0, *range(2, x.type.rank))), x)
        return apply(ops.Variance(), x, mean)


def _variance(*shapes: Shape, mean: float = 0.0) -> Case:
    def by_torch(x: Any) -> Any:
        return x.double().var((0, *range(2, x.dim())), correction=0).to(x.dtype)

    return Case(
        name=f"variance{f'-far{mean:g}' if mean else ''}",
        layer=_Variance,
        torch=lambda: by_torch,
        formula=lambda x: x.var((0, *range(2, x.ndim))),
        shapes=tuple((shape,) for shape in shapes),
        ulps=8,
        special=False,  # the squares of huge numbers are infinite in float32, not in float64
        **({"draw": around(mean), "dtypes": ("float32",)} if mean else {}),
    )


def _long_softmax(dim: int, log: int, shape: Shape) -> Case:
    name, kind = (("log_softmax", "LogSoftmax") if log else ("softmax", "Softmax"))[:2]

    def by_torch(x: Any) -> Any:
        import torch

        # Its float32 adds one power after another.
        return getattr(torch, name)(x.double(), dim).to(x.dtype)

    return Case(
        name=f"{name}-dim{dim}-{'x'.join(map(str, shape))}",
        layer=lambda: getattr(L, kind)(dim),
        torch=lambda: by_torch,
        formula=partial(getattr(formulas, name), dim=dim),
        shapes=((shape,),),
        dtypes=("float32",),
        # What is far below the maximum has lost digits where that was taken from it.
        ulps=4 if log else 16,
        of_largest=bool(log),
    )


class _Grouped(L.Layer):
    """Group normalization whose weight and bias are inputs."""

    def __init__(self, groups: int) -> None:
        self.op = ops.GroupNorm(groups, 0.25)

    def forward(self, *inputs: Any) -> Any:
        return apply(self.op, *inputs)


def _group_norm(groups: int, shape: Shape, affine: bool, mean: float = 1e3) -> Case:
    def by_torch(x: Any, *rest: Any) -> Any:
        import torch

        # Its float32 loses digits where the mean is large.
        given = (value.double() for value in rest)
        return torch.nn.functional.group_norm(x.double(), groups, *given, eps=0.25).to(x.dtype)

    def formula(x: np.ndarray, weight: Any = None, bias: Any = None) -> np.ndarray:
        rows = np.ascontiguousarray(x).reshape(x.shape[0], groups, -1)
        apart = rows - rows.mean(-1, keepdims=True)
        out = (apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 0.25)).reshape(x.shape)
        if weight is None:
            return out
        vector = (-1, *(1 for _ in x.shape[2:]))
        scaled: np.ndarray = out * weight.reshape(vector) + bias.reshape(vector)
        return scaled

    vectors: tuple[Shape, ...] = ((shape[1],), (shape[1],)) if affine else ()
    kind = "-affine" * affine + "-far" * (mean > 0)
    return Case(
        name=f"group_norm-{groups}-{'x'.join(map(str, shape))}{kind}",
        layer=lambda: _Grouped(groups),
        torch=lambda: by_torch,
        formula=formula,
        shapes=((shape, *vectors),),
        dtypes=("float32",),
        ulps=8,
        of_largest=True,
        special=False,  # the squares of huge numbers are infinite in float32, not in float64
        draw=around(mean),
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
    *(
        _layer_norm(1, ((1, 40003),), ((3, 20000),), ((66, 1100),), ((33, 8),), mean=mean)
        for mean in (1e3, 1e5)
    ),
    _layer_norm(2, ((2, 3, 130, 140), (130, 140), (130, 140)), mean=10.0),
    _group_norm(1, (2, 3, 5, 7), False),
    _group_norm(2, (3, 6, 2, 3), True, 0.0),
    _group_norm(1, (1, 3, 130, 140), True, 1e5),
    _group_norm(4, (2, 8, 90, 70), True),
    _group_norm(3, (1, 30000, 2), True),
    _group_norm(5, (2, 5, 3, 37), True),
    _group_norm(3, (4, 12), True),
    _variance((2, 3, 5, 7), (3, 17, 1, 9), (40, 5), (3, 2, 3)),
    _variance((5, 3, 130, 140), (5, 24, 40, 41), (3000, 5), mean=1e3),
    *_long_reductions(),
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
    *(_long_softmax(dim, log, shape) for dim, ss in LONG_DIMS for shape in ss for log in (0, 1)),
)
