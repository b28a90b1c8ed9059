"""The geometry of a contraction: convolution, 1x1 convolution and linear layer are the same loops.

A linear layer is a 1x1 convolution whose pixels are the rows of its input; a 1x1 convolution
without stride and padding has one long row of pixels.  Algorithms read a :class:`Problem` only, so
none of them needs to know which operator it computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....fusion.region import Parts
from ....graph.ir import Value
from ....graph.operator import is_integer_product
from ....graph.operators import Conv2d, Linear
from ....graph.types import FLOATS, TensorType
from ..tensor import ELEMENTS, Element, Tensor
from .integer_fallback import why_not_integer

Pair = tuple[int, int]


FEW_CHANNELS = 4
"""Convolutions of at most so many channels read NCHW: a block of lanes would be mostly padding."""


@dataclass(frozen=True, slots=True)
class BlockedView:
    """The strides, in elements, of a tensor whose layout has blocks of channels.

    Element (n, c, y, x) has the offset
    ``n * image + c // block * plane + c % block + y * row + x * column``.  A stride of 0 broadcasts
    a value that has one element on that axis; ``channels == 1`` broadcasts its channel.
    """

    channels: int
    image: int
    plane: int
    block: int
    row: int
    column: int
    dtype: str = "float32"

    @property
    def element(self) -> Element:
        return ELEMENTS[self.dtype]

    @property
    def contiguous(self) -> bool:
        """Whether all channels of a pixel are contiguous."""
        return self.block >= self.channels

    def broadcasts(self, channels: int) -> bool:
        return self.channels == 1 < channels

    def flat(self) -> BlockedView:
        """The view with all pixels as one row (they are contiguous, or all the same element)."""
        return replace(self, row=0)


@dataclass(frozen=True, slots=True)
class Problem:
    """Shapes and strides of a contraction.

    Attributes:
        in_channels: input channels of one group, over which each result sums.
        out_channels: output channels of one group.
        in_size, out_size: rows and columns of input and output.
        source, result, others: the views of the tensors.
        factors: dtype of the numbers that are multiplied; the source may be read in another one.
        width: pixels of a row of ``source`` where several rows are treated as one, though their
            pixels are not evenly spaced, so that they have to be gathered; 0 where they are.
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    in_size: Pair
    out_size: Pair
    kernel: Pair
    stride: Pair
    dilation: Pair
    padding: tuple[Pair, Pair]
    source: BlockedView
    result: BlockedView
    others: tuple[BlockedView, ...]
    is_linear: bool = False
    width: int = 0
    factors: str = "float32"

    @property
    def result_views(self) -> dict[str, BlockedView]:
        """The result, ``y``, and the further tensors, ``z0`` and so on, by kernels' names."""
        return {"y": self.result, **{f"z{i}": view for i, view in enumerate(self.others)}}

    @property
    def depth(self) -> int:
        """Products of one sum."""
        return self.in_channels * self.kernel[0] * self.kernel[1]

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel of the result reads one pixel of the input, at the same position."""
        return (1, 1) == self.kernel == self.stride and not self.pads

    @property
    def pads(self) -> bool:
        """Whether an output reads beyond the input."""
        for size, out, kernel, stride, dilation, pads in zip(
            self.in_size,
            self.out_size,
            self.kernel,
            self.stride,
            self.dilation,
            self.padding,
            strict=True,
        ):
            last = (out - 1) * stride + (kernel - 1) * dilation - pads[0]
            if pads[0] or last >= size:
                return True
        return False

    def tap_rows(self, first: int, rows: int) -> tuple[int, int]:
        """The range of kernel rows that read an input, and not padding only, for ``rows`` rows of
        results from ``first`` on: the first of them and the one after the last."""
        (down, _), (dilation, _) = self.stride, self.dilation
        before, taps = self.padding[0][0], self.kernel[0]
        begin = max(0, -((first + rows - 1) * down - before) + dilation - 1) // dilation
        end = max(0, self.in_size[0] + before - first * down + dilation - 1) // dilation
        begin = min(begin, taps)
        return begin, max(begin, min(end, taps))

    @property
    def operations(self) -> int:
        pixels = self.batch * self.out_size[0] * self.out_size[1]
        return 2 * pixels * self.groups * self.out_channels * self.depth


def problem_of(
    parts: Parts, batch: int, source: Tensor, others: tuple[Tensor, ...], result: Tensor
) -> Problem:
    """The geometry of a contraction on tensors of these layouts."""
    if isinstance(parts.node.op, Linear):
        return _linear(parts, batch, source, others, result)
    op = parts.node.op
    assert isinstance(op, Conv2d)
    x, weight = (value.type for value in parts.node.inputs[:2])
    result_type = parts.node.output.type
    kernel = (weight.shape[2], weight.shape[3])
    problem = Problem(
        batch=batch,
        groups=op.groups,
        in_channels=weight.shape[1],
        out_channels=weight.shape[0] // op.groups,
        in_size=(x.shape[2], x.shape[3]),
        out_size=(result_type.shape[2], result_type.shape[3]),
        kernel=kernel,
        stride=op.stride,
        dilation=op.dilation,
        padding=op.padding,
        source=_view(source, x, x),
        result=_view(result, result_type, result_type),
        others=tuple(
            _view(t, v.type, result_type) for t, v in zip(others, parts.others, strict=True)
        ),
        factors=weight.dtype,
    )
    return _flattened(problem)


def _flattened(problem: Problem) -> Problem:
    if not problem.is_pointwise or not all(_is_flat(v, problem.out_size) for v in problem.others):
        return problem
    pixels = problem.in_size[0] * problem.in_size[1]
    return replace(
        problem,
        in_size=(1, pixels),
        out_size=(1, pixels),
        source=problem.source.flat(),
        result=problem.result.flat(),
        others=tuple(view.flat() for view in problem.others),
    )


def gathered(problem: Problem) -> Problem | None:
    """A 1x1 convolution with a stride, as one long row of the pixels that it reads; None for any
    other contraction, or if the layouts of its tensors do not allow it."""
    is_strided = problem.kernel == (1, 1) != problem.stride and not problem.pads
    if not is_strided or not all(_is_flat(v, problem.out_size) for v in problem.others):
        return None
    down, across = problem.stride
    source, pixels = problem.source, problem.out_size[0] * problem.out_size[1]
    return replace(
        problem,
        in_size=(1, pixels),
        out_size=(1, pixels),
        stride=(1, 1),
        source=replace(source, row=down * source.row, column=across * source.column),
        result=problem.result.flat(),
        others=tuple(view.flat() for view in problem.others),
        width=problem.out_size[1],
    )


def _is_flat(view: BlockedView, out: Pair) -> bool:
    return view.row == view.column * out[1] or out[0] == 1


def _view(tensor: Tensor, value_type: TensorType, read_type: TensorType) -> BlockedView:
    """The view of a tensor of ``value_type`` that is read, with broadcasting, at the positions of
    ``read_type``."""
    repeats = [a == 1 < b for a, b in zip(value_type.plane, read_type.plane, strict=True)]
    block, plane = tensor.block, tensor.plane
    if block == 1 and plane == 1:
        block, plane = tensor.channels, 0
    return BlockedView(
        tensor.channels,
        0 if repeats[0] else tensor.image,
        plane,
        block,
        0 if repeats[2] else tensor.columns * tensor.block,
        0 if repeats[3] else tensor.block,
        tensor.dtype,
    )


def _linear(
    parts: Parts, batch: int, source: Tensor, others: tuple[Tensor, ...], result: Tensor
) -> Problem:
    """The geometry of a linear layer; its tensors are rows of features (each an image of one
    pixel), or images whose pixels are rows of features."""
    inputs, outputs = parts.node.inputs[1].shape[1], parts.node.inputs[1].shape[0]
    shape = parts.node.output.shape
    rank = len(shape)
    in_rows = rank <= 2 or (source.channels, source.plane) == (inputs, 1)
    images, pixels = (1, batch) if in_rows else (batch, prod(shape[1:-1]))
    tensors = (source, result, *others)
    sizes = (inputs, *(outputs for _ in tensors[1:]))
    if not in_rows and all(t.image == pixels * n for t, n in zip(tensors, sizes, strict=True)):
        images, pixels = 1, images * pixels

    def view(tensor: Tensor, value: Value) -> BlockedView:
        features = value.shape[-1]
        if not in_rows:
            return BlockedView(features, tensor.image, 0, features, 0, features, tensor.dtype)
        column = 0 if value.shape[:-1] != shape[:-1] else tensor.image
        return BlockedView(features, 0, 0, features, 0, column, tensor.dtype)

    return Problem(
        batch=images,
        groups=1,
        in_channels=inputs,
        out_channels=outputs,
        in_size=(1, pixels),
        out_size=(1, pixels),
        kernel=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        padding=((0, 0), (0, 0)),
        source=view(source, parts.node.inputs[0]),
        result=view(result, parts.node.output),
        others=tuple(view(t, v) for t, v in zip(others, parts.others, strict=True)),
        is_linear=True,
        factors=parts.node.inputs[1].dtype,
    )


def why_unsupported(parts: Parts) -> str | None:
    """Why no kernel here computes these parts; None if one does."""
    if is_integer_product(*(value.type for value in parts.node.inputs)):
        return why_not_integer(parts)
    if not isinstance(parts.node.op, (Conv2d, Linear)):
        return f"{parts.node.op.name} is no convolution or linear layer"
    types = [value.type for value in (*parts.node.inputs, *parts.others, *parts.vectors)]
    valid = [dtype for dtype in ELEMENTS if dtype in FLOATS]
    for type in types:
        if type.dtype not in valid:
            return f"an operand is {type.dtype}; valid are {', '.join(valid)}"
    output = parts.node.output
    for operation in (*parts.prologue, *parts.epilogue):
        if operation.window is not None or operation.is_concat:
            return f"{operation.output.name} is not computed element by element"
    for operation in parts.epilogue:
        if operation.output.shape != output.shape:
            return f"{operation.output.name} has another shape than the contraction's result"
    if isinstance(parts.node.op, Linear):
        if output.type.rank > 2 and parts.vectors:
            return "the channels of a vector are not the features of a linear layer of rank 3"
        for value in parts.others:
            if output.type.rank > 2 and value.shape != output.shape:
                return f"{value.name} repeats over rows of a linear layer of rank 3"
    for value in parts.others:
        if len(value.shape) != output.type.rank:
            return f"{value.name} has another rank than the result"
    return None
