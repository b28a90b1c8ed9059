"""Cases of graph/operators/convolution_gradients.py.

A convolution is linear, so its gradients are its values for inputs, or weights, of a single 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.operators.contraction import Pair
from minidnn.graph.types import TensorType
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import Case, Shape
from tests.oracles import formulas


def _of_ones(shape: Shape) -> np.ndarray:
    """All arrays of that shape with a single 1, side by side."""
    count = int(np.prod(shape))
    return np.eye(count).reshape(count, *shape)


def _cases(name: str, op: ops.Conv2d, x: Shape, weight: Shape) -> tuple[Case, Case]:
    (output,) = op.infer(TensorType(x), TensorType(weight))
    out, size, kernel = output.shape, x[2:], weight[2:]
    given = (op.stride, op.padding, op.dilation, op.groups)

    def by_input(gradient: np.ndarray, weight: np.ndarray) -> np.ndarray:
        each = formulas.conv2d(_of_ones(x[1:]), weight, None, *given)
        return np.tensordot(gradient, each, ((1, 2, 3), (1, 2, 3))).reshape(x)

    def by_weight(x: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        each = [formulas.conv2d(x, one, None, *given) for one in _of_ones(weight)]
        return np.tensordot(np.stack(each), gradient, 4).reshape(weight)

    # PyTorch pads both sides alike, so it is given what is padded already.
    (top, bottom), (left, right) = op.padding
    rows, columns = size
    wide = (*x[:2], rows + top + bottom, columns + left + right)
    options = (op.stride, 0, op.dilation, op.groups)

    def input_by_torch(gradient: Any, weight: Any) -> Any:
        import torch

        found = torch.nn.grad.conv2d_input(wide, weight, gradient, *options)
        return found[:, :, top : top + rows, left : left + columns]

    def weight_by_torch(x: Any, gradient: Any) -> Any:
        import torch

        padded = torch.nn.functional.pad(x, (left, right, top, bottom))
        return torch.nn.grad.conv2d_weight(padded, weight, gradient, *options)

    common: dict[str, Any] = {"ulps": 8.0, "sums": True, "special": False}
    return (
        Case(
            name=f"conv2d_input_gradient-{name}",
            layer=lambda: OperatorLayer(ops.Conv2dInputGradient(op, _pair(size))),
            torch=lambda: input_by_torch,
            formula=by_input,
            shapes=((out, weight),),
            **common,
        ),
        Case(
            name=f"conv2d_weight_gradient-{name}",
            layer=lambda: OperatorLayer(ops.Conv2dWeightGradient(op, _pair(kernel))),
            torch=lambda: weight_by_torch,
            formula=by_weight,
            shapes=((x, out),),
            **common,
        ),
    )


def _pair(sizes: Shape) -> Pair:
    return (sizes[0], sizes[1])


#: Name, convolution, shapes of input and weight.
CONVOLUTIONS: tuple[tuple[str, ops.Conv2d, Shape, Shape], ...] = (
    ("1x1", ops.Conv2d(), (2, 3, 4, 5), (4, 3, 1, 1)),
    ("3x3", ops.Conv2d((1, 1), ((1, 1), (1, 1))), (2, 3, 4, 5), (2, 3, 3, 3)),
    ("stride", ops.Conv2d((2, 3), ((1, 1), (0, 0))), (1, 2, 7, 9), (3, 2, 3, 2)),
    ("stride-over-kernel", ops.Conv2d((3, 2)), (2, 2, 8, 5), (2, 2, 2, 1)),
    ("dilation", ops.Conv2d((1, 2), ((2, 2), (1, 1)), (2, 3)), (1, 2, 6, 9), (2, 2, 3, 2)),
    ("asymmetric", ops.Conv2d((2, 1), ((3, 0), (0, 2))), (2, 2, 5, 4), (2, 2, 2, 3)),
    ("groups", ops.Conv2d((2, 2), ((1, 1), (1, 1)), (1, 1), 2), (2, 4, 5, 6), (6, 2, 3, 3)),
    ("depthwise", ops.Conv2d((1, 1), ((1, 1), (1, 1)), (1, 1), 4), (2, 4, 4, 5), (4, 1, 3, 3)),
    ("depthwise-double", ops.Conv2d((1, 2), groups=3), (1, 3, 4, 7), (6, 1, 2, 3)),
    ("row", ops.Conv2d((1, 2), ((0, 0), (3, 2))), (3, 2, 1, 11), (2, 2, 1, 5)),
    ("padding-beyond-kernel", ops.Conv2d((2, 2), ((4, 4), (3, 5))), (1, 2, 3, 2), (2, 2, 2, 2)),
)
CASES: tuple[Case, ...] = tuple(case for each in CONVOLUTIONS for case in _cases(*each))
