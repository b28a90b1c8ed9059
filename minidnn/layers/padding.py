"""Padding layers, with PyTorch's names and order: the last axis first, (left, right, top, bottom).

Negative padding crops elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph.trace import apply
from minidnn.layers.arguments import check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer

__all__ = [
    "CircularPad1d",
    "CircularPad2d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ZeroPad1d",
    "ZeroPad2d",
]

Pads = Sequence[tuple[int, int]]

#: The graph's mode for each of PyTorch's ``padding_mode``.
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def padded(owner: str, x: Any, pads: Pads, mode: str, value: float = 0.0) -> Any:
    """``x`` with (before, after) elements added to each of its last axes; negative ones crop.

    GraphError, in ``owner``'s name, if an axis is too short.
    """
    first = x.type.rank - len(pads)
    for axis, (before, after) in enumerate(pads, first):
        size = x.shape[axis]
        longest = {"reflect": size - 1, "wrap": size}.get(mode, max(before, after))
        problem = f"padding of ({before}, {after}) does not fit axis {axis} of the input {x.shape}"
        if max(before, after) > longest:
            raise misfit(owner, f"{problem}; valid is at most {longest}")
        if size + before + after < 1:
            raise misfit(owner, f"{problem}; valid is what leaves at least one element")
    if any(n < 0 for pair in pads for n in pair):
        starts = [0] * first + [max(-before, 0) for before, _ in pads]
        ends = [0] * first + [max(-after, 0) for _, after in pads]
        sizes = (n - a - b for n, a, b in zip(x.shape, starts, ends, strict=True))
        x = apply(ops.Slice(tuple(starts), tuple(sizes), (1,) * x.type.rank), x)
    before, after = ((0,) * first + tuple(max(pair[i], 0) for pair in pads) for i in (0, 1))
    if not any(before) and not any(after):
        return x
    return apply(ops.Pad(before, after, mode, value), x)


class _Padding(Layer):
    """The base of padding layers: ``axes`` axes are padded in PyTorch's padding ``mode``."""

    axes: int
    mode: str

    def __init__(self, padding: int | Sequence[int]) -> None:
        count = 2 * self.axes
        numbers = check_numbers(type(self).__name__, "padding", padding, count, None)
        self.padding = tuple(numbers)
        self.value = 0.0

    def forward(self, x: Any) -> Any:
        name = type(self).__name__
        check_rank(name, x, self.axes + 2)
        pairs = [(self.padding[i], self.padding[i + 1]) for i in range(0, 2 * self.axes, 2)]
        return padded(name, x, pairs[::-1], MODES[self.mode], self.value)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPadding(_Padding):
    """The base of layers that pad with one value."""

    mode = "zeros"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise GraphError(f"{type(self).__name__}: value={value!r:.80}; valid is a number")
        self.value = float(value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPadding):
    """Adds elements of one value to (N, C, L).

    Args:
        padding: elements added at both ends, or at (left, right); negative ones crop.
        value: what is added.

    >>> net = Sequential(ConstantPad1d((2, 0), 1.0), Conv1d(4, 8, 3))
    """

    axes = 1


class ConstantPad2d(_ConstantPadding):
    """Adds elements of one value to (N, C, H, W).

    Args:
        padding: elements added at all sides, or at (left, right, top, bottom); negative ones crop.
        value: what is added.

    >>> net = Sequential(ConstantPad2d(1, 0.5), Conv2d(3, 8, 3))
    """

    axes = 2


class ZeroPad1d(_Padding):
    """Adds zeros to (N, C, L).

    Args:
        padding: elements added at both ends, or at (left, right); negative ones crop.

    >>> net = Sequential(ZeroPad1d((2, 0)), Conv1d(4, 8, 3))
    """

    axes, mode = 1, "zeros"


class ZeroPad2d(_Padding):
    """Adds zeros to (N, C, H, W).

    Args:
        padding: elements added at all sides, or at (left, right, top, bottom); negative ones crop.

    >>> net = Sequential(ZeroPad2d((1, 2, 1, 2)), Conv2d(3, 8, 4))
    """

    axes, mode = 2, "zeros"


class ReflectionPad1d(_Padding):
    """Adds elements mirrored at the outermost ones, which are not repeated; the arguments are those
    of :class:`ZeroPad1d`.
    """

    axes, mode = 1, "reflect"


class ReflectionPad2d(_Padding):
    """Adds elements mirrored at the outermost ones, which are not repeated; the arguments are those
    of :class:`ZeroPad2d`.
    """

    axes, mode = 2, "reflect"


class ReplicationPad1d(_Padding):
    """Repeats the outermost elements; the arguments are those of :class:`ZeroPad1d`."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(_Padding):
    """Repeats the outermost elements; the arguments are those of :class:`ZeroPad2d`."""

    axes, mode = 2, "replicate"


class CircularPad1d(_Padding):
    """Adds elements from the other end; the arguments are those of :class:`ZeroPad1d`."""

    axes, mode = 1, "circular"


class CircularPad2d(_Padding):
    """Adds elements from the other end; the arguments are those of :class:`ZeroPad2d`."""

    axes, mode = 2, "circular"
