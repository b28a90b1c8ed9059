"""Strides, dilations and padding of convolutions and pooling, read from a node's attributes.

Convolutions get them as pairs of rows and columns; in one dimension there is a single row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import OnnxCall
from minidnn.frontends.onnx.library import (
    LARGEST_WINDOW,
    PADDED_ELEMENTS,
    PADDED_TIMES,
    check_shape,
)

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]

_AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class SpatialAxes:
    """The strides, padding (before, after) and dilations of a window along rows and columns.

    A one-dimensional window has one row.
    """

    strides: Pair
    pads: Pads
    dilations: Pair


def spatial_axes(
    call: OnnxCall, sizes: Sequence[int], kernel: Sequence[int], transposed: bool = False
) -> SpatialAxes:
    """Reads the attributes of a convolution over one or two spatial axes of these sizes."""
    kernel_shape = call.ints("kernel_shape")
    if kernel_shape is not None and kernel_shape != list(kernel):
        raise GraphError(f"kernel_shape={kernel_shape}, but the weight's is {list(kernel)}")
    strides, dilations = steps(call, len(kernel))
    find = _transposed_pads if transposed else window_pads
    pads = find(call, sizes, kernel, strides, dilations)
    if not transposed:
        strides = strides_within(strides, sizes, kernel, dilations, pads)
    lead: int = 2 - len(kernel)
    return SpatialAxes(
        _pair([1] * lead + strides),
        _pair([(0, 0)] * lead + pads),
        _pair([1] * lead + dilations),
    )


def _pair(values: list) -> tuple:  # type: ignore[type-arg]
    first, second = values
    return (first, second)


def steps(call: OnnxCall, count: int) -> tuple[list[int], list[int]]:
    """Reads strides and dilations of ``count`` axes, by default 1."""
    attributes = []
    for name in ("strides", "dilations"):
        values = call.ints(name)
        values = [1] * count if values is None else values
        if len(values) != count or min(values) < 1:
            raise GraphError(f"{name}={values}; valid are {count} of at least 1")
        attributes.append(values)
    return attributes[0], attributes[1]


def strides_within(
    strides: Sequence[int],
    sizes: Sequence[int],
    kernel: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[Pair],
) -> list[int]:
    """Returns strides limited to the padded input and the window: all longer ones leave one window
    as well."""
    longest = [
        max(size + sum(pad), dilation * (k - 1) + 1)
        for size, k, dilation, pad in zip(sizes, kernel, dilations, pads, strict=True)
    ]
    return [min(stride, limit) for stride, limit in zip(strides, longest, strict=True)]


def window_pads(
    call: OnnxCall,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Pair]:
    """Returns the padding (before, after) of each axis, from ``pads`` or ``auto_pad``."""
    auto = call.choice("auto_pad", "NOTSET", *_AUTO)
    explicit = call.ints("pads")
    count = len(kernel)
    if max(kernel) > LARGEST_WINDOW or max(explicit or [0]) > LARGEST_WINDOW:
        raise GraphError(
            f"kernel {list(kernel)}, pads={explicit}; valid are at most {LARGEST_WINDOW}"
        )
    if auto == "VALID":
        return [(0, 0)] * count
    if auto != "NOTSET":
        pads = []
        for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
            outputs = -(-size // stride)
            total = max((outputs - 1) * stride + dilation * (k - 1) + 1 - size, 0)
            pads.append(_halves(total, auto == "SAME_UPPER"))
        return _check_padded_size(sizes, pads)
    return _check_padded_size(sizes, _pairs(explicit, count))


def _pairs(pads: list[int] | None, count: int) -> list[Pair]:
    """The attribute ``pads`` as (before, after) of each axis, by default 0."""
    values = [0] * 2 * count if pads is None else pads
    if len(values) != 2 * count or min(values) < 0:
        raise GraphError(f"pads={values}; valid are {2 * count} of at least 0")
    return list(zip(values[:count], values[count:], strict=True))


def _check_padded_size(sizes: Sequence[int], pads: list[Pair]) -> list[Pair]:
    """Returns the padding; GraphError if it makes a small input, or a small file, a huge plane."""
    padded = [size + sum(pad) for size, pad in zip(sizes, pads, strict=True)]
    limit = PADDED_ELEMENTS + PADDED_TIMES * prod(sizes)
    if prod(padded) > limit:
        raise GraphError(f"padding makes {list(sizes)} to {padded}; valid are {limit} elements")
    return pads


def _halves(total: int, more_behind: bool) -> Pair:
    """Splits a total of padding into before and after; which of them gets the odd one is given."""
    less = total // 2
    return (less, total - less) if more_behind else (total - less, less)


def _transposed_pads(
    call: OnnxCall,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[Pair]:
    """Returns how much a transposed convolution cuts off before and after each axis.

    ``output_padding`` reduces the cut after.
    """
    count = len(kernel)
    auto = call.choice("auto_pad", "NOTSET", *_AUTO)
    wanted, explicit = call.ints("output_shape"), call.ints("pads")
    extra = call.ints("output_padding") or [0] * count
    if len(extra) != count or min(extra) < 0:
        raise GraphError(f"output_padding={extra}; valid are {count} of at least 0")
    if wanted is not None and len(wanted) == count + 2:
        wanted = wanted[2:]
    is_explicit = wanted is not None
    if wanted is None and auto.startswith("SAME"):
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    pads = _pairs(None if auto == "VALID" else explicit, count)
    if wanted is not None:
        if len(wanted) != count or min(wanted) < 1:
            raise GraphError(f"output_shape={wanted}; valid are {count} of at least 1")
        pads = []
        for i, size in enumerate(sizes):
            extent = dilations[i] * (kernel[i] - 1) + 1
            total = strides[i] * (size - 1) + extra[i] + extent - wanted[i]
            # Positions of an output_shape beyond all windows come after, as in all engines.
            halves = _halves(total, auto == "SAME_UPPER")
            pads.append((0, total) if is_explicit and total < 0 else halves)
    full = [
        strides[i] * (size - 1) + dilations[i] * (kernel[i] - 1) + 1 + extra[i] - sum(pads[i])
        for i, size in enumerate(sizes)
    ]
    check_shape("the output", [max(size, 0) for size in full])
    return [(a, b - more) for (a, b), more in zip(pads, extra, strict=True)]
