"""Cases of graph/operators/contraction.py."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from minidnn import layers as L
from minidnn.graph import operators as ops
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import Case, Shape, like_torch
from tests.oracles import formulas

#: Sums of products are rounded in another order than the oracle's, more than once.
SUMS = {"ulps": 8.0, "sums": True}


def conv_case(
    name: str,
    in_channels: int,
    out_channels: int,
    kernel: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    bias: bool = True,
    shapes: tuple[Shape, ...] = (),
) -> Case:
    """A convolution.  ``padding`` may be all that Conv2d takes; for PyTorch, which has no
    asymmetric padding, the input is padded first."""
    pads = explicit_padding(padding, formulas.pair(kernel), formulas.pair(dilation))
    return Case(
        name=name,
        layer=lambda: L.Conv2d(
            in_channels, out_channels, kernel, stride, padding, dilation, groups, bias
        ),
        torch=partial(_torch_conv, stride, padding, pads, dilation, groups),
        formula=lambda x, weight, bias=None: formulas.conv2d(
            x, weight, bias, stride, pads, dilation, groups
        ),
        shapes=tuple((shape,) for shape in shapes),
        **SUMS,  # type: ignore[arg-type]
    )


def explicit_padding(padding: Any, kernel: Any, dilation: Any) -> Any:
    """Zeros before and after, for rows and columns."""
    if padding == "valid":
        return ((0, 0), (0, 0))
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in total)
    pads = formulas.pair(padding)
    return tuple(formulas.pair(p) for p in pads)


def _torch_conv(stride: Any, padding: Any, pads: Any, dilation: Any, groups: int) -> Any:
    import torch

    convolve = partial(torch.nn.functional.conv2d, stride=stride, dilation=dilation, groups=groups)
    if isinstance(padding, (int, str)) or isinstance(padding[0], int):

        def padded_by_torch(x: Any, weight: Any, bias: Any = None) -> Any:
            with warnings.catch_warnings():
                # With "same" and an even kernel PyTorch warns that it pads a copy.
                warnings.filterwarnings("ignore", "Using padding='same' with even kernel")
                return convolve(x, weight, bias, padding=padding)

        return padded_by_torch
    (top, bottom), (left, right) = pads
    pad = torch.nn.functional.pad
    return lambda x, weight, bias=None: convolve(pad(x, (left, right, top, bottom)), weight, bias)


IMAGES = ((1, 3, 8, 8), (2, 3, 7, 11), (3, 3, 5, 6))

CASES: tuple[Case, ...] = (
    conv_case("conv2d-1x1", 3, 5, 1, shapes=((1, 3, 1, 1), (2, 3, 5, 7), (3, 3, 1, 4))),
    conv_case("conv2d-3x3", 3, 4, 3, shapes=((1, 3, 3, 3), *IMAGES)),
    conv_case("conv2d-no-bias", 3, 4, 3, padding=1, bias=False, shapes=((1, 3, 1, 1), *IMAGES)),
    conv_case("conv2d-stride", 3, 4, 3, stride=2, padding=1, shapes=((1, 3, 1, 1), *IMAGES)),
    conv_case("conv2d-stride-over-kernel", 3, 2, (1, 2), stride=(3, 4), shapes=IMAGES),
    conv_case("conv2d-7x7", 3, 8, 7, stride=2, padding=3, shapes=((1, 3, 1, 1), *IMAGES)),
    conv_case("conv2d-1x7", 3, 2, (1, 7), padding=(0, 3), shapes=((1, 3, 1, 1), *IMAGES)),
    conv_case("conv2d-dilation", 3, 2, 3, padding=(2, 3), dilation=(2, 3), shapes=IMAGES),
    conv_case("conv2d-padding-beyond-kernel", 3, 2, 2, padding=5, shapes=((1, 3, 1, 1), IMAGES[1])),
    conv_case("conv2d-asymmetric", 3, 4, 3, padding=((0, 2), (1, 0)), shapes=IMAGES),
    conv_case("conv2d-asymmetric-stride", 3, 2, 4, 2, ((3, 0), (0, 5)), shapes=IMAGES),
    conv_case("conv2d-same", 3, 4, 3, padding="same", shapes=((1, 3, 1, 1), *IMAGES)),
    conv_case("conv2d-same-even", 3, 4, (2, 4), padding="same", dilation=(3, 1), shapes=IMAGES),
    conv_case("conv2d-valid", 3, 4, (3, 2), padding="valid", shapes=IMAGES),
    conv_case("conv2d-groups", 6, 9, 3, padding=1, groups=3, shapes=((2, 6, 4, 5), (1, 6, 1, 1))),
    conv_case("conv2d-depthwise", 5, 5, 3, 2, 1, groups=5, shapes=((2, 5, 4, 5), (1, 5, 1, 1))),
    conv_case(
        "conv2d-depthwise-double", 5, 10, 3, padding="same", groups=5, shapes=((2, 5, 4, 5),)
    ),
    conv_case("conv2d-one-output", 33, 1, 3, padding=1, shapes=((1, 33, 4, 4),)),
    # The same arguments in the same order, and the same names in the state dict.
    like_torch(
        "conv2d-torch-arguments",
        "Conv2d",
        4,
        6,
        (3, 2),
        (2, 1),
        (1, 0),
        (1, 2),
        2,
        shapes=((2, 4, 5, 6),),
        formula=lambda x, weight, bias: formulas.conv2d(
            x, weight, bias, (2, 1), ((1, 1), (0, 0)), (1, 2), 2
        ),
        **SUMS,
    ),
    like_torch(
        "linear",
        "Linear",
        7,
        5,
        shapes=((1, 7), (3, 7), (2, 4, 7), (2, 1, 3, 7)),
        formula=lambda x, weight, bias: np.einsum("...i,oi->...o", x, weight) + bias,
        **SUMS,
    ),
    like_torch(
        "linear-no-bias",
        "Linear",
        1,
        1,
        arguments={"bias": False},
        shapes=((1, 1), (3, 1)),
        formula=lambda x, weight: x * weight[0, 0],
        **SUMS,
    ),
    Case(
        name="matmul",
        layer=lambda: OperatorLayer(ops.MatMul()),
        torch=lambda: lambda a, b: a @ b,
        formula=lambda a, b: a @ b,
        shapes=(
            ((2, 3, 5, 7), (7, 9)),
            ((5, 7), (3, 7, 40)),
            ((13, 20), (20, 1)),
            ((2, 1, 4, 5), (3, 5, 6)),
        ),
        # Zero times infinity is NaN in every order, but which elements PyTorch multiplies is open.
        special=False,
        ulps=8.0,
        sums=True,
    ),
)
