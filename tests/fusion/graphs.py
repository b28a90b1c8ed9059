"""Random graphs of fusable and other nodes, and inputs for them, as hypothesis strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Constant, Graph, Value
from minidnn.graph.operator import Windowed
from minidnn.graph.trace import Trace, apply, tracing
from minidnn.graph.types import TensorType
from minidnn.graph.window import COMBINERS, Axis, Window, WindowAxis, average_window

Draw = Any

_ACTIVATIONS = (
    ops.ReLU(),
    ops.ReLU6(),
    ops.LeakyReLU(0.1),
    ops.Hardswish(),
    ops.Identity(),
    ops.SiLU(),
)


@st.composite
def graphs(draw: Draw, least: int = 5, most: int = 40, convolutions: bool = True) -> Graph:
    """Graphs of that many nodes over small planes of odd and even sizes.

    Outputs may be read, too, be inputs, or stand twice.
    """
    batch = draw(st.integers(1, 3))
    count = draw(st.integers(least, most))
    with tracing("random") as trace:
        values = [trace.input(_plane(draw, batch), f"x{i}") for i in range(draw(st.integers(1, 2)))]
        while len(trace.nodes) < count:
            values.append(_node(draw, trace, values, convolutions))
        read = {value for node in trace.nodes for value in node.inputs}
        ends = [v for v in values if v not in read and v.producer is not None]
        return trace.graph([*ends, *draw(st.lists(st.sampled_from(values), max_size=2))])


def _plane(draw: Draw, batch: int) -> TensorType:
    # Blocks of lanes are full with 8 and 16 channels, and begun once more with 17.
    channels = draw(st.one_of(st.integers(1, 5), st.sampled_from((8, 16, 17))))
    return TensorType((batch, channels, draw(st.integers(1, 13)), draw(st.integers(1, 13))))


def _node(draw: Draw, trace: Trace, values: list[Value], convolutions: bool) -> Value:
    # Recent values are preferred, so that graphs become deep as well as wide.
    recent = values[-4:] if draw(st.booleans()) else values
    x = draw(st.sampled_from(recent))
    kinds = ["window", "window", "described", "activation", "scale", "join", "two", "constant"]
    kinds += [draw(st.sampled_from(("move", "adaptive")))]
    kind = draw(st.sampled_from([*kinds, "conv"] if convolutions else kinds))
    if kind == "window":
        window = _window(draw, x)
        return apply(window, x) if window is not None else apply(ops.ReLU(), x)
    if kind == "described":
        return _described(draw, x, values)
    if kind == "scale":
        return apply(ops.ScaleShift(), x, *(_vector(draw, trace, x) for _ in range(2)))
    if kind == "join":
        same = [v for v in values if v.shape[2:] == x.shape[2:]]
        operands = draw(st.lists(st.sampled_from(same), min_size=1, max_size=3))
        if sum(v.shape[1] for v in operands) <= 40:
            return apply(ops.Concat(1), *operands)
    if kind == "two":
        op = draw(st.sampled_from((ops.Add(), ops.Mul(), ops.Sub())))
        other = draw(st.sampled_from([v for v in values if _broadcasts(v, x)]))
        return apply(op, *draw(st.permutations((x, other))))
    if kind == "constant":
        return _with_constant(draw, trace, x)
    if kind == "move":
        return _move(draw, x)
    if kind == "adaptive":
        return apply(ops.AdaptiveAvgPool2d((draw(st.integers(1, 3)), draw(st.integers(1, 3)))), x)
    if kind == "conv":
        return _convolution(draw, trace, x)
    return apply(draw(st.sampled_from(_ACTIVATIONS)), x)


def _broadcasts(value: Value, x: Value) -> bool:
    return all(a in (1, b) for a, b in zip(value.shape, x.shape, strict=True))


def _with_constant(draw: Draw, trace: Trace, x: Value) -> Value:
    """``x`` and a constant, which may be repeated over images, channels, rows or columns."""
    sizes = [draw(st.sampled_from((1, size))) for size in x.shape]
    shape = tuple(sizes[draw(st.integers(0, 4)) :])
    op = draw(st.sampled_from((ops.Add(), ops.Sub(), ops.Mul(), ops.Div())))
    constant = _constant(draw, trace, shape)
    first = not isinstance(op, ops.Div) and draw(st.booleans())
    return apply(op, constant, x) if first else apply(op, x, constant)


def _move(draw: Draw, x: Value) -> Value:
    """A part of the plane, a wider one, or one with its channels or axes in another order."""
    batch, channels, rows, columns = x.shape
    kind = draw(st.sampled_from(("slice", "pad", "turn", "shuffle")))
    if kind == "slice":
        starts = [draw(st.integers(0, size - 1)) for size in x.shape[1:]]
        pairs = zip(starts, x.shape[1:], strict=True)
        sizes = [draw(st.integers(1, size - start)) for start, size in pairs]
        return apply(ops.Slice((0, *starts), (batch, *sizes), (1, 1, 1, 1)), x)
    if kind == "pad":
        before, after = ((0, *(draw(st.integers(0, 2)) for _ in range(3))) for _ in range(2))
        mode = draw(st.sampled_from(("constant", "edge", "reflect", "wrap")))
        return apply(ops.Pad(before, after, mode, draw(st.sampled_from((0.0, 0.5)))), x)
    if kind == "turn":
        return apply(ops.Transpose((0, 1, 3, 2)), x)
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    apart = apply(ops.View((batch, groups, channels // groups, rows, columns)), x)
    turned = apply(ops.Transpose((0, 2, 1, 3, 4)), apart)
    return apply(ops.View(x.shape), turned)


def _window(draw: Draw, x: Value) -> Windowed | None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return (draw(st.integers(low, high)), draw(st.integers(low, high)))

    kernel, stride = pair(1, 4), pair(1, 3)
    padding = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
    ceil_mode = draw(st.booleans())
    op: Windowed
    kind = draw(st.sampled_from(("max", "max", "average", "average", "any")))
    if kind == "max":
        op = ops.MaxPool2d(kernel, stride, padding, pair(1, 2), ceil_mode)
    elif kind == "any":
        padded = [pair(0, k - 1) for k in kernel]
        axes = [WindowAxis(*each) for each in zip(kernel, stride, padded, strict=True)]
        average = average_window(axes[0], axes[1], draw(st.booleans()))
        op = ops.Pool2d(draw(st.sampled_from((Window(axes[0], axes[1], "max"), average))))
    else:
        divisor = draw(st.sampled_from((None, None, 3)))
        op = ops.AvgPool2d(kernel, stride, padding, ceil_mode, draw(st.booleans()), divisor)
    window = op.window()
    sizes = [a.output_size(s) for a, s in zip(window.axes, x.shape[2:], strict=True)]
    return op if min(sizes) >= 1 else None


def _described(draw: Draw, x: Value, values: list[Value]) -> Value:
    """A window that is no pooling: of several operands and computed taps, or over the windows that
    cover a position."""
    axes: list[Axis] = []
    covers = draw(st.booleans())
    for size in x.shape[2:]:
        kernel, dilation = draw(st.integers(1, 4)), draw(st.integers(1, 2))
        padding = draw(st.integers(0, kernel // 2))
        axis = WindowAxis(kernel, draw(st.integers(1, 3)), (padding, padding), dilation)
        wide = (size - 1) * axis.stride - 2 * padding + axis.reach + draw(st.integers(0, 1))
        covered = covers and 1 <= wide <= 40 and axis.output_size(wide) == size
        axes.append(axis.covering(wide) if covered else axis)
    shape = (*x.shape[:2], *(a.output_size(n) for a, n in zip(axes, x.shape[2:], strict=True)))
    if min(shape) < 1:
        return apply(ops.ReLU(), x)
    same = [v for v in values if v.shape == x.shape]
    under = [x, *draw(st.lists(st.sampled_from(same), max_size=1))]
    given = [v for v in values if v.shape == shape]
    here = draw(st.lists(st.sampled_from(given), max_size=1)) if given else []
    operands = [*under, *here]
    each = [argument(i) for i in range(len(operands))]
    number = argument(len(each))
    last = each[-1]
    tap = where(last > number - 2.0, each[0] * last, number) if draw(st.booleans()) else each[0]
    whole = all(isinstance(axis, WindowAxis) for axis in axes)
    finish = (
        argument(0) * 0.5 / (argument(1) + 1.0) if whole and draw(st.booleans()) else argument(0)
    )
    join = draw(st.sampled_from(tuple(COMBINERS)))
    window = Window(axes[0], axes[1], join, tap, finish, len(under), len(here), draw(st.booleans()))
    return apply(ops.Pool2d(window, "Described"), *operands)


def _vector(draw: Draw, trace: Trace, x: Value) -> Constant:
    return _constant(draw, trace, (x.shape[1],))


def _constant(draw: Draw, trace: Trace, shape: tuple[int, ...], least: float = 0.1) -> Constant:
    """Numbers of both signs that are not near 0, since they may divide."""
    seed = draw(st.integers(0, 99))
    data = np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)
    data = np.asarray(data + np.copysign(np.float32(least), data), np.float32)
    name = f"c{len(trace.nodes)}.{seed}"
    return trace.constant(object(), name, TensorType(shape), lambda: data)


def _convolution(draw: Draw, trace: Trace, x: Value) -> Value:
    """As most networks have them, or with groups, strides, dilation and uneven padding."""
    kernel = draw(st.sampled_from((1, 1, 3)))
    pad = kernel // 2
    op = ops.Conv2d(padding=((pad, pad), (pad, pad)))
    if draw(st.booleans()):
        groups = [g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0]
        other = ops.Conv2d(
            (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
            (
                (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
                (draw(st.integers(0, 2)), draw(st.integers(0, 2))),
            ),
            (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
            draw(st.sampled_from(groups)),
        )
        sizes = zip(other.axes((kernel, kernel)), x.shape[2:], strict=True)
        op = other if min(axis.output_size(size) for axis, size in sizes) >= 1 else op
    channels = op.groups * draw(st.integers(1, 4 if op.groups == 1 else 2))
    weight = _constant(draw, trace, (channels, x.shape[1] // op.groups, kernel, kernel))
    bias = [_constant(draw, trace, (channels,))] if draw(st.booleans()) else []
    return apply(op, x, weight, *bias)


def inputs_for(graph: Graph, seed: int, special: bool) -> list[np.ndarray]:
    """Inputs of both signs with ties; some NaN, infinities and negative zeros if ``special``."""
    random = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        array = np.round(random.standard_normal(value.shape), 1).astype(np.float32)
        if special:
            where = random.random(value.shape)
            for i, number in enumerate((np.nan, np.inf, -np.inf, -0.0)):
                array[(where > i * 0.02) & (where < (i + 1) * 0.02)] = number
        arrays.append(array)
    return arrays
