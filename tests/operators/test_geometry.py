"""Windows, pooling and convolution of drawn geometry, against PyTorch and the formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from minidnn.errors import GraphError
from minidnn.graph.window import WindowAxis
from tests.cases import check
from tests.cases.contraction import conv_case
from tests.cases.pooling import adaptive_case, avg_pool_case, max_pool_case
from tests.oracles.formulas import pool_starts
from tests.sampling import IS_FULL

EXAMPLES = settings(max_examples=200 if IS_FULL else 60)
MANY = settings(max_examples=5000)


def pairs(low: int, high: int) -> Any:
    return st.tuples(st.integers(low, high), st.integers(low, high))


@st.composite
def images(draw: Any, channels: int | None = None) -> tuple[int, ...]:
    depth = draw(st.integers(1, 4)) if channels is None else channels
    return (draw(st.integers(1, 3)), depth, *draw(pairs(1, 11)))


@st.composite
def pools(draw: Any) -> tuple[tuple[int, ...], dict[str, Any]]:
    kernel = draw(pairs(1, 5))
    padding = tuple(draw(st.integers(0, size // 2)) for size in kernel)
    stride = draw(st.none() | pairs(1, 6))
    arguments = {"kernel_size": kernel, "stride": stride, "padding": padding}
    return draw(images()), arguments | {"ceil_mode": draw(st.booleans())}


def check_unless_rejected(make: Any, call: Any) -> None:
    """Either both compute the same, or both refuse."""
    try:
        call()
    except RuntimeError as error:  # PyTorch's, for an output without elements
        note(str(error))
        with pytest.raises(GraphError, match="larger than the padded input"):
            case = make()
            case.graph(case.shapes[0])
        return
    case = make()
    check(case, "float64")
    check(case, "float32")


def _max_pool(drawn: Any, dilation: Any) -> None:
    shape, arguments = drawn
    arguments = arguments | {"dilation": dilation}
    keywords = {k: v for k, v in arguments.items() if k != "kernel_size"}
    check_unless_rejected(
        lambda: max_pool_case("drawn", arguments["kernel_size"], shapes=(shape,), **keywords),
        lambda: torch.nn.MaxPool2d(**arguments)(torch.zeros(shape)),
    )


@EXAMPLES
@given(pools(), pairs(1, 3))
def test_max_pool(drawn: Any, dilation: tuple[int, int]) -> None:
    _max_pool(drawn, dilation)


def _avg_pool(drawn: Any, more: dict[str, Any]) -> None:
    shape, arguments = drawn
    arguments = arguments | more
    keywords = {k: v for k, v in arguments.items() if k != "kernel_size"}
    check_unless_rejected(
        lambda: avg_pool_case("drawn", arguments["kernel_size"], shapes=(shape,), **keywords),
        lambda: torch.nn.AvgPool2d(**arguments)(torch.zeros(shape)),
    )


AVERAGES = st.fixed_dictionaries(
    {"count_include_pad": st.booleans(), "divisor_override": st.none() | st.integers(1, 9)}
)


@EXAMPLES
@given(pools(), AVERAGES)
def test_avg_pool(drawn: Any, more: dict[str, Any]) -> None:
    _avg_pool(drawn, more)


@EXAMPLES
@given(images(), pairs(1, 13))
def test_adaptive_avg_pool(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    check(adaptive_case("drawn", size, (shape,)), "float64")


@st.composite
def convolutions(draw: Any) -> dict[str, Any]:
    groups = draw(st.integers(1, 3))
    channels = groups * draw(st.integers(1, 3))
    kernel, stride, dilation = draw(pairs(1, 4)), draw(pairs(1, 3)), draw(pairs(1, 3))
    padding = draw(
        pairs(0, 3)
        | st.tuples(pairs(0, 3), pairs(0, 3))
        | (st.just("same") if stride == (1, 1) else st.just("valid"))
    )
    return {
        "in_channels": channels,
        "out_channels": groups * draw(st.integers(1, 3)),
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "shapes": (draw(images(channels)),),
    }


def _convolution(arguments: dict[str, Any]) -> None:
    case = conv_case("conv2d-drawn", **arguments)
    (shapes,) = case.shapes
    check_unless_rejected(
        lambda: case, lambda: case.by_torch(case.inputs(shapes, "float64"), "float64")
    )


@EXAMPLES
@given(convolutions())
def test_convolution(arguments: dict[str, Any]) -> None:
    _convolution(arguments)


@st.composite
def axes(draw: Any) -> WindowAxis:
    kernel = draw(st.integers(1, 6))
    pad = draw(st.integers(0, kernel // 2))
    stride, dilation = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    return WindowAxis(kernel, stride, (pad, pad), dilation, draw(st.booleans()))


@EXAMPLES
@given(axes(), st.integers(1, 20))
def test_window_axis(axis: WindowAxis, size: int) -> None:
    """Sizes and positions against windows that are walked one by one."""
    starts = pool_starts(
        size, axis.kernel, axis.stride, axis.padding[0], axis.dilation, axis.ceil_mode
    )
    assert max(axis.output_size(size), 0) == len(starts)
    assert [axis.first(i) for i in range(len(starts))] == starts
    taps = [axis.tap(0, k) for k in range(axis.kernel)]
    assert taps == [k * axis.dilation - axis.padding[0] for k in range(axis.kernel)]
    assert axis.reach == taps[-1] - taps[0] + 1


@pytest.mark.full
@MANY
@given(pools(), pairs(1, 3))
def test_max_pool_at_length(drawn: Any, dilation: tuple[int, int]) -> None:
    _max_pool(drawn, dilation)


@pytest.mark.full
@MANY
@given(pools(), AVERAGES)
def test_avg_pool_at_length(drawn: Any, more: dict[str, Any]) -> None:
    _avg_pool(drawn, more)


@pytest.mark.full
@MANY
@given(convolutions())
def test_convolution_at_length(arguments: dict[str, Any]) -> None:
    _convolution(arguments)
