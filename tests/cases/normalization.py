"""Cases of graph/operators/normalization.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from minidnn.layers import Layer, Parameter
from tests.cases.record import PLANES, Case, like_torch
from tests.oracles import formulas


class ScaleShift(Layer):
    """The operator that passes leave of a batch normalization, as a layer."""

    def __init__(self, channels: int) -> None:
        self.scale = Parameter((channels,), lambda random, shape: np.ones(shape, np.float32))
        self.shift = Parameter((channels,), lambda random, shape: np.zeros(shape, np.float32))

    def forward(self, x: Any) -> Any:
        return apply(ops.ScaleShift(), x, *self.constants("scale", "shift"))


def _batch_norm(suffix: str, eps: float, **arguments: Any) -> tuple[Case, ...]:
    return tuple(
        like_torch(
            f"batch_norm{suffix}-{shape[1]}",
            "BatchNorm2d",
            shape[1],
            arguments={"eps": eps, **arguments},
            shapes=(shape,),
            formula=lambda x, running_mean, running_var, weight=None, bias=None: (
                formulas.batch_norm(x, eps, weight, bias, running_mean, running_var)
            ),
            # x - mean and the sum with bias may cancel.
            of_largest=True,
        )
        for shape in PLANES
    )


CASES: tuple[Case, ...] = (
    *_batch_norm("", 1e-5),
    *_batch_norm("-eps", 0.1),
    *_batch_norm("-not-affine", 1e-5, affine=False),
    *(
        Case(
            name=f"scale_shift-{shape[1]}",
            layer=lambda channels=shape[1]: ScaleShift(channels),  # type: ignore[misc]
            torch=lambda: lambda x, scale, shift: x * scale[:, None, None] + shift[:, None, None],
            formula=lambda x, scale, shift: x * scale[:, None, None] + shift[:, None, None],
            shapes=((shape,),),
            sums=True,
        )
        for shape in PLANES
    ),
)
