"""Cases of graph/operators/pooling.py, with every edge of ceil mode."""

from __future__ import annotations

from typing import Any

import numpy as np

from minidnn.graph import operators as ops
from minidnn.graph.window import Window, WindowAxis, average_window
from minidnn.layers.activations import OperatorLayer
from tests.cases.record import PLANES, Case, Shape, like_torch
from tests.cases.reduction import around
from tests.oracles import formulas

IMAGES = ((1, 1, 4, 4), (2, 3, 5, 7), (3, 2, 6, 11))


def max_pool_case(name: str, *args: Any, shapes: tuple[Shape, ...], **arguments: Any) -> Case:
    return like_torch(
        f"max_pool2d-{name}",
        "MaxPool2d",
        *args,
        arguments=arguments,
        shapes=shapes,
        formula=lambda x: formulas.max_pool2d(x, *args, **arguments),
        ulps=0,
    )


def avg_pool_case(name: str, *args: Any, shapes: tuple[Shape, ...], **arguments: Any) -> Case:
    return like_torch(
        f"avg_pool2d-{name}",
        "AvgPool2d",
        *args,
        arguments=arguments,
        shapes=shapes,
        formula=lambda x: formulas.avg_pool2d(x, *args, **arguments),
        sums=True,
        torch_differs="PyTorch sums tap by tap, which differs where large numbers cancel",
    )


#: Windows of more than 16 rows or columns: whole planes, parts that are equal or overlap.
LONG: tuple[tuple[Any, Shape], ...] = (
    *((1, (2, 19, 33, 40)), (1, (1, 3, 300, 261)), (1, (1, 2, 1, 9000)), (1, (1, 9, 5000, 1))),
    *((1, (1, 2, 600, 3)), (1, (1, 1, 2, 70001)), ((3, 2), (2, 3, 60, 40))),
    *(((3, 4), (1, 17, 70, 71)), ((2, 7), (1, 3, 35, 5)), ((None, 1), (1, 2, 5, 33))),
)


def adaptive_case(name: str, size: Any, shapes: tuple[Shape, ...], mean: float = 0.0) -> Case:
    far: dict[str, Any] = {}
    if mean:
        far = {"dtypes": ("float32",), "draw": around(mean)}
    return like_torch(
        f"adaptive_avg_pool2d-{name}",
        "AdaptiveAvgPool2d",
        size,
        shapes=shapes,
        formula=lambda x: formulas.adaptive_avg_pool2d(x, formulas.pair(size)),
        sums=True,
        torch_differs="PyTorch sums half precision in another order, which overflows elsewhere",
        **far,
    )


def window_case(name: str, window: Window, *shapes: Shape) -> Case:
    """Any window, walked tap by tap."""

    def formula(x: np.ndarray) -> np.ndarray:
        size = [a.output_size(n) for a, n in zip(window.whole, x.shape[2:], strict=True)]
        out = np.empty((*x.shape[:2], *size))
        for r, c in np.ndindex(*size):
            taps, counted = [], 0
            for y, z in np.ndindex(window.rows.kernel, window.columns.kernel):
                at = (window.whole[0].tap(r, y), window.whole[1].tap(c, z))
                if all(0 <= p < n for p, n in zip(at, x.shape[2:], strict=True)):
                    taps.append(x[:, :, at[0], at[1]])
                counted += all(
                    -a.padding[0] <= p < n + a.padding[1]
                    for a, p, n in zip(window.whole, at, x.shape[2:], strict=True)
                )
            if window.chooses:
                out[:, :, r, c] = np.max(taps, 0) if taps else -np.inf
            else:
                total = np.sum(taps, 0) if taps else np.zeros(x.shape[:2])
                out[:, :, r, c] = total / (counted if window.count_padding else len(taps))
        return out

    def by_torch(x: Any) -> Any:
        import torch

        return torch.from_numpy(formula(x.double().numpy())).to(x.dtype)

    return Case(
        name=f"pool2d-{name}",
        layer=lambda: OperatorLayer(ops.Pool2d(window)),
        torch=lambda: by_torch,
        formula=formula,
        shapes=tuple((shape,) for shape in shapes),
        ulps=0 if window.chooses else 4,
        sums=not window.chooses,
        torch_differs="it is the formula rounded",
    )


_UNEVEN = (WindowAxis(2, 1, (0, 1), 2), WindowAxis(3, 2, (2, 0), 2))
#: Their outer taps reach over a plane of up to three rows or columns.
_BESIDE = (WindowAxis(2, 2, (4, 0), 4), WindowAxis(2, 1, (0, 3), 4))

#: Windows whose last position depends on ceil mode.  Comments: sizes at stride 2.
CEIL: tuple[tuple[str, tuple[Any, ...], dict[str, Any], tuple[Shape, ...]], ...] = (
    ("ceil", (3, 2), {}, ((1, 1, 3, 4), (2, 2, 5, 6), (1, 3, 7, 8), (1, 1, 112, 5))),
    ("ceil-padding", (3, 2), {"padding": 1}, ((1, 1, 1, 2), (1, 2, 3, 4), (2, 1, 5, 6))),
    # A last window that would start in the trailing padding is dropped.
    ("ceil-starts-in-padding", (2, 2), {"padding": 1}, ((1, 1, 1, 2), (1, 2, 3, 4), (1, 1, 5, 6))),
    ("ceil-starts-at-end", (1, 3), {}, ((1, 1, 1, 2), (1, 2, 3, 4), (1, 1, 5, 7))),
    ("ceil-stride-over-kernel", (2, 5), {"padding": 1}, ((1, 1, 2, 3), (1, 2, 5, 6), (1, 1, 7, 8))),
    # A window larger than the input, cut to it.
    ("ceil-larger-than-input", (3, 3), {}, ((1, 1, 1, 1), (1, 2, 2, 1))),
    ("ceil-axes-differ", ((2, 3), (1, 4)), {"padding": (1, 0)}, ((1, 2, 3, 5), (1, 1, 2, 8))),
)

CASES: tuple[Case, ...] = (
    max_pool_case("1x1", 1, shapes=PLANES),
    max_pool_case("2x2", 2, shapes=IMAGES),
    max_pool_case("overlapping", 3, 2, shapes=IMAGES),
    max_pool_case("padding", 3, 2, 1, shapes=((1, 1, 1, 1), *IMAGES)),
    max_pool_case("same-size", 3, 1, 1, shapes=((1, 1, 1, 1), (2, 17, 1, 9), *IMAGES)),
    max_pool_case("rectangle", (1, 3), (2, 1), (0, 1), shapes=IMAGES),
    max_pool_case("stride-over-kernel", 2, 3, shapes=IMAGES),
    max_pool_case("dilation", 2, 1, 1, (3, 2), shapes=IMAGES),
    # The first window has taps only before and after the one pixel: nothing, so minus infinity.
    max_pool_case("dilation-over-input", 3, 2, 1, 3, shapes=((1, 1, 5, 5), (1, 2, 6, 7))),
    max_pool_case("dilation-ceil", 2, 2, 1, 2, shapes=IMAGES, ceil_mode=True),
    *(max_pool_case(n, *a, shapes=s, ceil_mode=True, **k) for n, a, k, s in CEIL),
    avg_pool_case("1x1", 1, shapes=PLANES),
    avg_pool_case("2x2", 2, shapes=IMAGES),
    avg_pool_case("overlapping", 3, 2, shapes=IMAGES),
    avg_pool_case("padding", 3, 2, 1, shapes=((1, 1, 1, 1), *IMAGES)),
    avg_pool_case("same-size", 3, 1, 1, shapes=((1, 1, 1, 1), (2, 17, 1, 9), *IMAGES)),
    avg_pool_case("rectangle", (1, 3), (2, 1), (0, 1), shapes=IMAGES),
    avg_pool_case("exclude-padding", 3, 2, 1, shapes=IMAGES, count_include_pad=False),
    avg_pool_case("divisor", 3, 2, 1, shapes=IMAGES, divisor_override=5),
    avg_pool_case("divisor-negative", 2, shapes=IMAGES, divisor_override=-3),
    avg_pool_case("divisor-ceil", 3, 2, 1, shapes=IMAGES, divisor_override=7, ceil_mode=True),
    *(avg_pool_case(n, *a, shapes=s, ceil_mode=True, **k) for n, a, k, s in CEIL),
    *(
        avg_pool_case(f"{n}-exclude", *a, shapes=s, ceil_mode=True, count_include_pad=False, **k)
        for n, a, k, s in CEIL
    ),
    adaptive_case("1", 1, PLANES),
    adaptive_case("dividing", (2, 3), ((1, 1, 2, 3), (2, 3, 4, 9))),
    adaptive_case("overlapping", (3, 4), ((1, 1, 5, 7), (2, 3, 4, 5), (1, 2, 7, 6))),
    adaptive_case("enlarging", (7, 5), ((1, 1, 1, 1), (2, 3, 3, 2), (1, 2, 6, 8))),
    adaptive_case("keep-rows", (None, 2), ((1, 1, 3, 5), (2, 3, 1, 1))),
    adaptive_case("keep-columns", (6, None), ((1, 1, 13, 5),)),
    adaptive_case("keep-both", (None, None), ((1, 1, 3, 5),)),
    *(
        adaptive_case(f"long-{'x'.join(map(str, shape))}-{size}", size, (shape,), mean=1e3)
        for size, shape in LONG
    ),
    avg_pool_case("long", 17, 5, 8, shapes=((1, 3, 20, 40),)),
    avg_pool_case("long-row", (1, 300), (1, 7), shapes=((1, 2, 3, 320),)),
    avg_pool_case("long-column", (40, 2), (3, 1), (20, 0), shapes=((2, 9, 50, 3),)),
    avg_pool_case("long-side-by-side", (20, 40), shapes=((2, 3, 20, 120),)),
    avg_pool_case("long-divisor", (18, 3), shapes=((1, 2, 36, 6),), divisor_override=7),
    window_case("max-uneven", Window(*_UNEVEN, "max"), (2, 3, 5, 7)),
    window_case("max-beside", Window(*_BESIDE, "max"), (1, 2, 3, 4)),
    window_case("average-uneven", average_window(*_UNEVEN), (2, 3, 5, 7)),
    window_case("average-uneven-exclude", average_window(*_UNEVEN, False), (2, 3, 5, 7)),
    window_case("average-beside", average_window(*_BESIDE), (1, 2, 3, 4)),
)
