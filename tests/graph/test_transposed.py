"""Transposed convolutions give what PyTorch's give, whatever their strides and paddings."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from minidnn.errors import GraphError
from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph
from minidnn.graph.operators import Conv2d
from minidnn.graph.trace import tracing
from minidnn.graph.transposed import transposed_convolution
from minidnn.graph.types import TensorType

torch = pytest.importorskip("torch")


def recorded(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, **given: Any) -> Graph:
    with tracing("transposed") as trace:
        value = trace.input(TensorType(x.shape), "x")
        taps = Constant(TensorType(weight.shape), "weight", weight)
        added = None if bias is None else Constant(TensorType(bias.shape), "bias", bias)
        return trace.graph([transposed_convolution(value, taps, added, **given)])


def drawn(draw: random.Random, axes: int) -> dict[str, Any]:
    while True:
        sizes, kernel = [[draw.randint(1, 6) for _ in range(axes)] for _ in range(2)]
        stride, dilation = [[draw.randint(1, most) for _ in range(axes)] for most in (5, 4)]
        padding = [draw.randint(0, 5) for _ in range(axes)]
        more = [draw.randrange(max(s, d)) for s, d in zip(stride, dilation, strict=True)]
        outputs = [
            (n - 1) * s + d * (k - 1) + 1 - 2 * p + e
            for n, k, s, d, p, e in zip(sizes, kernel, stride, dilation, padding, more, strict=True)
        ]
        if min(outputs) > 0:
            break
    names = ("sizes", "kernel", "stride", "dilation", "padding", "more")
    return dict(zip(names, (sizes, kernel, stride, dilation, padding, more), strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_they_give_what_pytorch_gives(seed: int) -> None:
    """Infinities and NaN, too, which reach the outputs that they are part of, and no others."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    for _ in range(25):
        axes, groups = draw.choice((1, 2)), draw.choice((1, 1, 2, 3))
        case = drawn(draw, axes)
        channels, per_group = groups * draw.randint(1, 3), draw.randint(1, 3)
        x = numbers.standard_normal((2, channels, *case["sizes"])).astype(np.float32)
        x.flat[numbers.integers(x.size, size=2)] = (np.inf, np.nan)
        weight = numbers.standard_normal((channels, per_group, *case["kernel"]))
        weight = weight.astype(np.float32)
        bias = numbers.standard_normal(groups * per_group).astype(np.float32)
        given = draw.choice((bias, None))
        graph = recorded(
            x,
            weight,
            given,
            stride=tuple(case["stride"]),
            cut=tuple((p, p - e) for p, e in zip(case["padding"], case["more"], strict=True)),
            dilation=tuple(case["dilation"]),
            groups=groups,
        )
        (found,) = evaluate(graph, [x], dtype="float64")
        function = getattr(torch.nn.functional, f"conv_transpose{axes}d")
        wide = [None if a is None else torch.tensor(a).double() for a in (x, weight, given)]
        keys = ("stride", "padding", "more")
        wanted = function(*wide, *(case[key] for key in keys), groups, case["dilation"])
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-9, atol=1e-9, err_msg=str(case))


@pytest.mark.parametrize(
    ("kernel", "stride", "kernels"),
    [
        (4, 2, [(16, 4, 2, 2)]),  # of each phase 2 x 2 taps
        (2, 2, [(16, 4, 1, 1)]),
        (3, 2, [(4, 4, 2, 2), (4, 4, 2, 1), (4, 4, 1, 2), (4, 4, 1, 1)]),
        (3, 1, [(4, 4, 3, 3)]),
        (2, 3, [(16, 4, 1, 1)]),  # 5 of 9 phases have no tap
    ],
)
def test_nothing_is_multiplied_with_zeros_put_between(
    kernel: int, stride: int, kernels: list[tuple[int, ...]]
) -> None:
    x, weight = np.zeros((1, 4, 5, 5), np.float32), np.zeros((4, 4, kernel, kernel), np.float32)
    graph = recorded(
        x, weight, None, stride=(stride, stride), cut=((0, 0), (0, 0)), dilation=(1, 1)
    )
    found = [node.inputs[1].shape for node in graph.nodes if isinstance(node.op, Conv2d)]
    assert found == kernels
    assert sum(np.prod(shape) for shape in found) == weight.size


def test_a_single_element_is_a_product_of_matrices() -> None:
    x, weight = np.zeros((1, 4, 1, 1), np.float32), np.zeros((4, 3, 4, 4), np.float32)
    graph = recorded(x, weight, None, stride=(1, 1), cut=((0, 0), (0, 0)), dilation=(1, 1))
    (node,) = [node for node in graph.nodes if isinstance(node.op, Conv2d)]
    assert node.inputs[1].shape == (48, 4, 1, 1)
    assert graph.outputs[0].shape == (1, 3, 4, 4)


@pytest.mark.parametrize(
    ("x", "weight", "bias", "given", "text"),
    [
        ((1, 4, 5, 5, 5), (4, 4, 3, 3, 3), None, {}, "transposed convolution of (1, 4, 5, 5, 5)"),
        ((1, 4, 5, 5), (4, 4, 3), None, {}, "by (4, 4, 3) with stride=(2, 2)"),
        ((1, 4, 5, 5), (3, 4, 3, 3), None, {}, "(1, 4, 5, 5) and (3, 4, 3, 3) with groups=1"),
        ((1, 4, 5, 5), (4, 4, 3, 3), None, {"groups": 3}, "with groups=3, which do not fit"),
        ((1, 4, 5, 5), (4, 4, 3, 3), (3,), {}, "bias has shape (3,); valid is (4,)"),
        ((1, 4, 5, 5), (4, 4, 3, 3), None, {"stride": (0, 1)}, "stride=(0, 1), dilation=(1, 1)"),
        (
            (1, 4, 5, 5),
            (4, 4, 3, 3),
            None,
            {"cut": ((6, 5), (0, 0))},
            "cutting off (6, 5) leaves nothing of an axis of 11",
        ),
        (
            (1, 4, 5, 5),
            (4, 4, 3, 3),
            None,
            {"stride": (1 << 11, 1 << 10)},
            "stride (2048, 1024) makes 2097152 phases; valid are at most 1048576",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    x: tuple[int, ...],
    weight: tuple[int, ...],
    bias: tuple[int, ...] | None,
    given: dict[str, Any],
    text: str,
) -> None:
    defaults = {"stride": (2, 2), "cut": ((0, 0), (0, 0)), "dilation": (1, 1)}
    arrays = [None if shape is None else np.zeros(shape, np.float32) for shape in (weight, bias)]
    with pytest.raises(GraphError) as caught:
        recorded(np.zeros(x, np.float32), arrays[0], arrays[1], **(defaults | given))  # type: ignore[arg-type]
    assert text in str(caught.value)
