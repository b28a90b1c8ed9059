"""Contractions that the tests run: every way of reading, tiling and storing."""

from __future__ import annotations

from minidnn.graph import expression as scalar
from minidnn.graph.operators import (
    GELU,
    Add,
    Conv2d,
    Formula,
    Linear,
    ReLU,
    ScaleShift,
    Sigmoid,
)

from .harness import Case


def conv(
    stride: tuple[int, int] = (1, 1),
    pad: object = 0,
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Conv2d:
    pads = ((pad, pad), (pad, pad)) if isinstance(pad, int) else pad
    return Conv2d(stride, pads, dilation, groups)  # type: ignore[arg-type]


BN_RELU = (ScaleShift(), ReLU())
TIMES = Formula(scalar.argument(0) * scalar.argument(1) + 1.0, 1, 1)

POINTWISE = [
    Case("1x1", (1, 32, 7, 7), 64),
    Case("1x1-batch", (3, 64, 5, 9), 48),
    Case("1x1-tails", (2, 20, 5, 3), 37),
    Case("1x1-one-pixel", (2, 17, 1, 1), 5),
    Case("1x1-one-channel", (1, 1, 4, 4), 1),
    Case("1x1-long", (1, 16, 40, 41), 32, bias=False),
    Case("1x1-deep", (2, 1040, 7, 7), 32),
    Case("1x1-very-deep", (1, 4096, 6, 7), 33, after=(ReLU(),)),
    Case("1x1-stride", (2, 48, 9, 8), 40, op=conv((2, 2))),
    Case("1x1-stride-3", (1, 19, 11, 7), 16, op=conv((3, 2))),
    Case("1x1-padded", (1, 24, 4, 5), 16, op=conv(pad=((1, 0), (2, 3)))),
    Case("1x1-prologue", (2, 32, 6, 5), 32, before=BN_RELU),
    Case("1x1-prologue-tails", (2, 37, 6, 5), 21, before=BN_RELU, after=(ReLU(),)),
    Case("1x1-prologue-stride", (2, 33, 7, 7), 16, op=conv((2, 2)), before=BN_RELU),
    Case("1x1-prologue-padded", (1, 19, 4, 5), 16, op=conv(pad=1), before=(TIMES,)),
    Case("1x1-residual", (2, 64, 7, 7), 96, after=(Add(), ReLU())),
    Case("1x1-residual-tails", (3, 9, 7, 5), 21, after=(Add(), ReLU()), slack=16),
    Case("1x1-slices", (3, 32, 5, 5), 32, after=(ReLU(),), slack=32),
    Case("1x1-planar", (2, 11, 5, 7), 18, layouts="pp", after=(Add(),)),
    Case("1x1-planar-prologue", (2, 11, 5, 7), 18, layouts="pb", before=BN_RELU),
    Case("1x1-planar-result", (2, 32, 5, 7), 19, layouts="bp", after=BN_RELU, slack=3),
    Case("1x1-repeats-rows", (2, 16, 5, 7), 32, after=(Add(),), repeats=(1, 32, 1, 1)),
    Case("1x1-repeats-channels", (2, 16, 5, 7), 33, after=(Add(),), repeats=(2, 1, 5, 7)),
    Case("1x1-repeats-columns", (2, 16, 5, 7), 33, after=(Add(),), repeats=(2, 33, 5, 1)),
    Case("1x1-long-epilogue", (2, 16, 5, 7), 20, after=(GELU(), Sigmoid(), ScaleShift())),
]
SPATIAL = [
    Case("3x3", (1, 32, 9, 9), 32, (3, 3), conv(pad=1)),
    Case("3x3-7x7", (2, 64, 7, 7), 80, (3, 3), conv(pad=1), after=(ReLU(),)),
    Case("3x3-14", (1, 48, 14, 14), 24, (3, 3), conv(pad=1), after=(Add(), ReLU())),
    Case("3x3-tails", (3, 21, 6, 17), 35, (3, 3), conv(pad=1), bias=False),
    Case("3x3-deep", (2, 528, 7, 7), 40, (3, 3), conv(pad=1)),
    Case("3x3-stride", (2, 32, 15, 14), 32, (3, 3), conv((2, 2), 1)),
    Case("3x3-stride-3", (1, 18, 10, 13), 16, (3, 3), conv((3, 1), 1)),
    Case("3x3-valid", (2, 40, 6, 9), 32, (3, 3)),
    Case("3x3-dilated", (1, 16, 9, 12), 32, (3, 3), conv(pad=((2, 2), (3, 3)), dilation=(2, 3))),
    Case("3x3-asymmetric", (2, 17, 5, 6), 33, (3, 3), conv(pad=((0, 2), (1, 0)))),
    Case("3x3-much-padding", (1, 5, 2, 3), 6, (2, 2), conv(pad=5)),
    Case("3x3-one-pixel", (2, 16, 1, 1), 16, (3, 3), conv(pad=1)),
    Case("3x3-one-column", (2, 16, 9, 1), 16, (3, 3), conv(pad=1)),
    Case("3x3-prologue", (2, 33, 8, 7), 40, (3, 3), conv(pad=1), before=BN_RELU, after=(ReLU(),)),
    Case(
        "3x3-prologue-planar", (2, 6, 8, 7), 16, (3, 3), conv(pad=1), before=(TIMES,), layouts="pb"
    ),
    Case("3x3-slices", (3, 16, 8, 7), 48, (3, 3), conv(pad=1), slack=48),
    Case("3x3-planar", (2, 6, 8, 21), 5, (3, 3), conv(pad=1), layouts="pp", slack=2),
    Case("3x3-many-blocks", (1, 16, 64, 30), 16, (3, 3), conv(pad=1)),
    Case("1x7", (1, 32, 8, 17), 32, (1, 7), conv(pad=((0, 0), (3, 3)))),
    Case("7x1", (2, 32, 17, 6), 24, (7, 1), conv(pad=((3, 3), (0, 0)))),
    Case("5x5", (1, 48, 9, 8), 16, (5, 5), conv(pad=2)),
    Case("4x2-stride", (2, 9, 11, 9), 40, (4, 2), conv((2, 1), ((3, 0), (0, 5)))),
    Case("over-kernel", (2, 18, 11, 9), 17, (1, 2), conv((3, 4))),
    Case("stem-7x7", (2, 3, 30, 28), 64, (7, 7), conv((2, 2), 3), layouts="pb", after=(ReLU(),)),
    Case("stem-11x11", (1, 3, 39, 41), 64, (11, 11), conv((4, 4), 2), layouts="pb"),
    Case("stem-3x3", (3, 3, 17, 15), 32, (3, 3), conv((2, 2)), layouts="pb", bias=False),
    Case("stem-wide", (1, 1, 9, 40), 16, (3, 15), conv(pad=((1, 1), (7, 7))), layouts="pb"),
    Case("long-epilogue", (1, 16, 9, 9), 33, (3, 3), conv(pad=1), after=(GELU(), Sigmoid())),
]
GROUPED = [
    Case("groups-aligned", (2, 64, 7, 7), 64, (3, 3), conv(pad=1, groups=2), before=BN_RELU),
    Case("groups-1x1", (2, 64, 5, 7), 96, op=conv(groups=2), after=(Add(), ScaleShift())),
    Case("groups-uneven", (2, 36, 7, 6), 54, (3, 3), conv(pad=1, groups=2), after=(Add(),)),
    Case(
        "groups-uneven-prologue", (1, 42, 7, 6), 63, (3, 3), conv(pad=1, groups=3), before=BN_RELU
    ),
    Case("groups-small", (2, 24, 7, 6), 36, (3, 3), conv(pad=1, groups=6), before=BN_RELU),
    Case("groups-tiny", (2, 64, 9, 8), 64, (3, 3), conv((2, 2), 1, groups=16), after=(ReLU(),)),
    Case(
        *("groups-of-8", (2, 104, 7, 6), 104, (3, 3), conv(pad=1, groups=13)),
        before=BN_RELU,
        after=(Add(),),
    ),
    Case("groups-of-4-stride", (1, 36, 9, 8), 36, (3, 3), conv((2, 2), 1, groups=9)),
    Case("groups-of-2-dilated", (1, 22, 9, 9), 22, (3, 3), conv(pad=2, dilation=(2, 2), groups=11)),
    Case("groups-of-4-1x1", (2, 24, 5, 5), 24, op=conv(groups=6), before=BN_RELU, slack=16),
    Case("groups-of-4-planar", (1, 24, 6, 5), 24, (3, 3), conv(pad=1, groups=6), layouts="pb"),
    Case("groups-1x1-small", (2, 12, 5, 5), 8, op=conv(groups=4), after=(ScaleShift(),)),
    Case("depthwise", (2, 40, 9, 8), 40, (3, 3), conv(pad=1, groups=40), after=(ReLU(),)),
    Case("depthwise-stride", (1, 33, 9, 8), 33, (3, 3), conv((2, 2), 1, groups=33), bias=False),
    Case("depthwise-prologue", (1, 21, 9, 8), 21, (5, 5), conv(pad=2, groups=21), before=BN_RELU),
    Case("depthwise-double", (2, 10, 6, 5), 20, (3, 3), conv(pad=1, groups=10), before=BN_RELU),
    Case("depthwise-planar", (2, 10, 6, 5), 20, (3, 3), conv(pad=1, groups=10), layouts="pp"),
    Case("depthwise-dilated", (1, 16, 9, 9), 16, (3, 3), conv(pad=2, dilation=(2, 2), groups=16)),
    Case("groups-planar", (2, 34, 6, 5), 68, (3, 3), conv(pad=1, groups=2), layouts="pp", slack=1),
    Case("groups-planar-1x1", (2, 34, 6, 5), 68, op=conv(groups=2), layouts="pb"),
]
LINEAR = [
    Case("linear", (1, 128), 96, op=Linear()),
    Case("linear-tails", (1, 37), 19, op=Linear(), after=(ReLU(),)),
    Case("linear-batch", (5, 64), 100, op=Linear(), bias=False, after=(Add(), ReLU())),
    Case("linear-large-batch", (33, 50), 70, op=Linear(), slack=13),
    Case("linear-deep", (17, 9216), 48, op=Linear(), after=(ReLU(),)),
    Case("linear-one", (3, 1), 1, op=Linear()),
    Case("linear-vectors", (4, 30), 21, op=Linear(), before=BN_RELU, after=(ScaleShift(),)),
    Case("linear-repeats", (4, 30), 21, op=Linear(), after=(Add(),), repeats=(1, 21)),
    Case("linear-repeats-features", (4, 30), 21, op=Linear(), after=(Add(),), repeats=(4, 1)),
    Case("linear-rank-1", (20,), 9, op=Linear(), after=(ReLU(),)),
    Case("linear-rank-3", (2, 4, 7), 17, op=Linear(), after=(ReLU(),)),
    Case("linear-rank-3-slices", (2, 4, 7), 17, op=Linear(), after=(Add(),), slack=2),
    Case("linear-rank-4", (2, 3, 5, 18), 33, op=Linear(), before=(ReLU(),), layouts="pp"),
]
CASES = [*POINTWISE, *SPATIAL, *GROUPED, *LINEAR]
