"""Writes contractions, pooling, reductions, normalizations and data movement as ONNX operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidnn.frontends.onnx.export.writer import DATA_TYPES, Writer, Writers
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Node
from minidnn.graph.operator import Windowed, is_integer_product
from minidnn.graph.types import INT8_DTYPES, TensorType, numpy_dtype
from minidnn.graph.window import WindowAxis

writers = Writers()

#: The end of a Slice that goes back to the first element: before any index.
_SMALLEST = -(1 << 62)


@writers(ops.Conv2d)
def _conv(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.Conv2d)
    (top, bottom), (left, right) = op.padding
    kind, bias = "Conv", None
    if is_integer_product(*(value.type for value in node.inputs)):
        kind, (x, weight, *bias) = "ConvInteger", inputs
        _require_bytes(writer, node)
        inputs = [x, weight, writer.number(op.zero, node.inputs[0].dtype)]
    convolution = writer.add(
        kind,
        inputs,
        node.name,
        kernel_shape=list(node.inputs[1].shape[2:]),
        strides=list(op.stride),
        pads=[top, left, bottom, right],
        dilations=list(op.dilation),
        group=op.groups,
    )
    if not bias:
        return convolution
    return writer.add("Add", [convolution, writer.reshape(bias[0], (-1, 1, 1))])


def _require_bytes(writer: Writer, node: Node) -> None:
    """Refuses a contraction of int32 operands, which ONNX lacks."""
    if any(value.dtype not in INT8_DTYPES for value in node.inputs[:2]):
        raise writer.refuse(node, "ONNX multiplies int8 and uint8, and no int32")


@writers(ops.Linear)
def _linear(writer: Writer, node: Node, inputs: list[str]) -> str:
    is_integer = is_integer_product(*(value.type for value in node.inputs))
    if node.inputs[0].type.rank == 2 and not is_integer:
        return writer.add("Gemm", inputs, node.name, transB=1)
    weight = node.inputs[1]
    if isinstance(weight, Constant):
        transposed = writer.constant(weight.data.T, weight.name)
    else:
        transposed = writer.add("Transpose", [inputs[1]], perm=[1, 0])
    kind, operands = "MatMul", [inputs[0], transposed]
    if is_integer:
        assert isinstance(node.op, ops.Linear)
        _require_bytes(writer, node)
        kind = "MatMulInteger"
        operands.append(writer.number(node.op.zero, node.inputs[0].dtype))
    product = writer.add(kind, operands, node.name)
    return writer.add("Add", [product, inputs[2]]) if len(inputs) > 2 else product


@writers(ops.MatMul)
def _matmul(writer: Writer, node: Node, inputs: list[str]) -> str:
    is_integer = is_integer_product(*(value.type for value in node.inputs))
    if is_integer:
        _require_bytes(writer, node)
    return writer.add("MatMulInteger" if is_integer else "MatMul", inputs, node.name)


@writers(ops.MaxPool2d, ops.AvgPool2d, ops.Pool2d)
def _window(writer: Writer, node: Node, inputs: list[str]) -> str:
    """Writes pooling with explicit padding and without ceil mode.

    ONNX's versions differ in how far the last window of ceil mode extends, and in what it counts.
    """
    assert isinstance(node.op, Windowed)
    window, x = node.op.window(), node.inputs[0].type
    if not (window.averages or (window.chooses and window.reduction == "max")):
        raise writer.refuse(node, "ONNX has no such window")
    extent = (x.shape[2], x.shape[3])
    pads = [_padding(axis, size) for axis, size in zip(window.whole, extent, strict=True)]
    (x_name,) = inputs
    if any(max(pad) >= axis.kernel for axis, pad in zip(window.axes, pads, strict=True)):
        # Engines refuse padding as large as the window, so a Pad node pads.
        operands = [
            x_name,
            writer.integers(_around(pads, 4)),
            writer.number(window.combiner.identity, x.dtype),
        ]
        x_name, pads = writer.add("Pad", operands, mode="constant"), [(0, 0), (0, 0)]
    attributes: dict[str, Any] = {
        "kernel_shape": [axis.kernel for axis in window.axes],
        "strides": [axis.stride for axis in window.axes],
        "pads": _around(pads, 2),
    }
    if any(axis.dilation > 1 for axis in window.axes):
        # ONNX Runtime's average pooling of int8 and uint8 has no such attribute.
        attributes["dilations"] = [axis.dilation for axis in window.axes]
    if window.chooses:
        return writer.add("MaxPool", [x_name], node.name, **attributes)
    mean = writer.add("AveragePool", [x_name], node.name, count_include_pad=1, **attributes)
    counted = np.multiply.outer(*window.divisors(extent))
    if (counted == window.taps).all():
        return mean
    with np.errstate(all="ignore"):  # a window that counts no elements is 0 / 0
        factor = (window.taps / counted).astype(numpy_dtype(x.dtype))
    return writer.add("Mul", [mean, writer.constant(factor, "share")])


def _padding(axis: WindowAxis, size: int) -> tuple[int, int]:
    """The padding (before, after) that gives as many outputs without ceil mode."""
    end = axis.tap(axis.output_size(size) - 1, axis.kernel - 1) + 1
    return axis.padding[0], max(0, end - size)


def _around(pads: Sequence[tuple[int, int]], rank: int) -> list[int]:
    """Pads in ONNX's order: those before each of ``rank`` axes, then those after; ``pads`` are the
    last axes'."""
    zeros = [0] * (rank - len(pads))
    return [*zeros, *(pad[0] for pad in pads), *zeros, *(pad[1] for pad in pads)]


@writers(ops.AdaptiveAvgPool2d)
def _adaptive(writer: Writer, node: Node, inputs: list[str]) -> str:
    op, x = node.op, node.inputs[0].type
    assert isinstance(op, ops.AdaptiveAvgPool2d)
    if op.sizes(x) == (1, 1):
        return writer.add("GlobalAveragePool", inputs, node.name)
    down, across = (
        writer.constant(_averaging(out, size, x))
        for out, size in zip(op.sizes(x), x.shape[2:], strict=True)
    )
    rows = writer.add("MatMul", [down, inputs[0]])
    transposed = writer.add("Transpose", [across], perm=[1, 0])
    return writer.add("MatMul", [rows, transposed], node.name)


def _averaging(outputs: int, size: int, x: TensorType) -> np.ndarray:
    """The matrix (outputs, size) that averages each output's inputs."""
    matrix = np.zeros((outputs, size), numpy_dtype(x.dtype))
    for i in range(outputs):
        begin, end = i * size // outputs, -(-(i + 1) * size // outputs)
        matrix[i, begin:end] = 1.0 / (end - begin)
    return matrix


@writers(ops.Reduce)
def _reduce(writer: Writer, node: Node, inputs: list[str]) -> str:
    assert isinstance(node.op, ops.Reduce)
    kind = f"Reduce{node.op.how.capitalize()}"
    axes = writer.integers(node.op.dims)
    attributes = {"keepdims": int(node.op.keepdim), "noop_with_empty_axes": 1}
    given_dtype = node.op.dtype
    if given_dtype is not None and given_dtype != node.inputs[0].dtype:
        inputs = [writer.add("Cast", inputs, f"{node.name}.cast", to=DATA_TYPES[given_dtype])]
    return writer.add(kind, [*inputs, axes], node.name, **attributes)


@writers(ops.Variance)
def _variance(writer: Writer, node: Node, inputs: list[str]) -> str:
    op, x = node.op, node.inputs[0].type
    assert isinstance(op, ops.Variance)
    if op.dtype is not None and op.dtype != x.dtype:
        inputs = [writer.add("Cast", inputs[:1], to=DATA_TYPES[op.dtype]), inputs[1]]
    mean = writer.reshape(inputs[1], (1, x.shape[1], *(1 for _ in x.shape[2:])))
    deviations = writer.add("Sub", [inputs[0], mean])
    squares = writer.add("Mul", [deviations, deviations])
    axes = writer.integers((0, *range(2, x.rank)))
    return writer.add("ReduceMean", [squares, axes], node.name, keepdims=0)


@writers(ops.LayerNorm)
def _layer_norm(writer: Writer, node: Node, inputs: list[str]) -> str:
    op, x = node.op, node.inputs[0].type
    assert isinstance(op, ops.LayerNorm)
    if len(inputs) == 1:
        ones = np.ones(x.shape[x.rank - op.axes :], numpy_dtype(x.dtype))
        inputs = [*inputs, writer.constant(ones)]
    return writer.add("LayerNormalization", inputs, node.name, axis=-op.axes, epsilon=float(op.eps))


@writers(ops.GroupNorm)
def _group_norm(writer: Writer, node: Node, inputs: list[str]) -> str:
    """Writes LayerNormalization over each group, and a scale and shift per channel.

    ONNX's GroupNormalization with parameters per channel is newer than the default opset.
    """
    op, x = node.op, node.inputs[0].type
    assert isinstance(op, ops.GroupNorm)
    shape, dtype = (x.shape[0], op.groups, x.size // x.shape[0] // op.groups), numpy_dtype(x.dtype)
    rows = writer.reshape(inputs[0], shape)
    ones = writer.constant(np.ones(shape[2:], dtype))
    normalized = writer.add("LayerNormalization", [rows, ones], axis=-1, epsilon=float(op.eps))
    if len(inputs) == 1:
        return writer.reshape(normalized, x.shape, node.name)
    normalized = writer.reshape(normalized, x.shape)
    vectors = (writer.reshape(name, (-1, *(1 for _ in x.shape[2:]))) for name in inputs[1:])
    scaled = writer.add("Mul", [normalized, next(vectors)])
    return writer.add("Add", [scaled, next(vectors)], node.name)


@writers(ops.Flatten, ops.Reshape, ops.View)
def _reshape(writer: Writer, node: Node, inputs: list[str]) -> str:
    if isinstance(node.op, ops.Flatten) and node.output.type.rank == 2 and node.op.start_dim == 1:
        return writer.add("Flatten", inputs, node.name, axis=1)
    return writer.reshape(inputs[0], node.output.shape, node.name)


@writers(ops.Slice)
def _slice(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.Slice)
    ends = [b + n * s for b, n, s in zip(op.starts, op.sizes, op.steps, strict=True)]
    # A negative end would count from the end of the axis.
    ends = [end if end >= 0 else _SMALLEST for end in ends]
    axes = range(len(ends))
    operands = [writer.integers(values) for values in (op.starts, ends, axes, op.steps)]
    return writer.add("Slice", [*inputs, *operands], node.name)


@writers(ops.Expand)
def _expand(writer: Writer, node: Node, inputs: list[str]) -> str:
    return writer.add("Expand", [*inputs, writer.integers(node.output.shape)], node.name)


@writers(ops.Pad)
def _pad(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.Pad)
    operands = [*inputs, writer.integers((*op.before, *op.after))]
    if op.mode == "constant":
        operands.append(writer.number(op.value, node.output.dtype))
    return writer.add("Pad", operands, node.name, mode=op.mode)


@writers(ops.Take)
def _take(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.Take)
    (taken,) = inputs
    for axis, chosen in enumerate(op.indices):
        if chosen is not None:
            indices = writer.integers([max(i, 0) for i in chosen])
            taken = writer.add("Gather", [taken, indices], axis=axis)
    for axis, chosen in enumerate(op.indices):
        if chosen is not None and -1 in chosen:
            is_inside = np.array(chosen) >= 0
            shape = [1] * len(op.indices)
            shape[axis] = len(chosen)
            mask = writer.constant(is_inside.reshape(shape))
            taken = writer.add("Where", [mask, taken, writer.number(op.value, node.output.dtype)])
    return writer.add("Identity", [taken], node.name)


@writers(ops.TakeChannels)
def _take_channels(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.TakeChannels)
    first = [0]
    for value in node.inputs:
        first.append(first[-1] + value.shape[1])
    concatenated = writer.add("Concat", inputs, axis=1)
    indices = writer.integers([first[source] + channel for source, channel in op.picks])
    return writer.add("Gather", [concatenated, indices], node.name, axis=1)


@writers(ops.SumOverRanks)
def _sum_over_ranks(writer: Writer, node: Node, inputs: list[str]) -> str:
    op = node.op
    assert isinstance(op, ops.SumOverRanks)
    if op.ranks > 1 or len(inputs) > 1:
        raise writer.refuse(node, "there are no ranks in it")
    return writer.add("Identity", inputs, node.name)


@writers(ops.Unfold2d)
def _unfold(writer: Writer, node: Node, inputs: list[str]) -> str:
    op, shape = node.op, node.output.shape
    assert isinstance(op, ops.Unfold2d)
    (windows,) = inputs
    for axis, at in ((0, 2), (1, 4)):
        taps = np.arange(op.kernel_size[axis]) * op.dilation[axis]
        starts = np.arange(shape[4 + axis]) * op.stride[axis]
        indices = writer.constant(np.add.outer(taps, starts).astype(np.int64))
        windows = writer.add("Gather", [windows, indices], axis=at)
    return writer.add("Transpose", [windows], node.name, perm=[0, 1, 2, 4, 3, 5])


@writers(ops.Gather)
def _gather(writer: Writer, node: Node, inputs: list[str]) -> str:
    assert isinstance(node.op, ops.Gather)
    if not node.op.batch:
        return writer.add("Gather", inputs, node.name, axis=node.op.axis)
    return _gather_in_batches(writer, node, inputs)


def _gather_in_batches(writer: Writer, node: Node, inputs: list[str]) -> str:
    """Writes a batched gather: a Gather from the flattened batch, with offsets added to indices."""
    op, (x, indices) = node.op, [value.type for value in node.inputs]
    assert isinstance(op, ops.Gather)
    axis, batch, size = op.axis % x.rank, op.batch, x.shape[op.axis]
    batch_size, index_rank = int(np.prod(x.shape[:batch])), indices.rank - batch
    order = [*range(batch), axis, *(d for d in range(batch, x.rank) if d != axis)]
    ordered = [x.shape[d] for d in order]
    flat = writer.add("Transpose", inputs[:1], perm=order)
    flat = writer.reshape(flat, [batch_size * size, *ordered[batch + 1 :]])
    dtype = numpy_dtype(indices.dtype)
    offsets = np.arange(batch_size, dtype=dtype) * size
    wrapped = writer.add("Mod", [inputs[1], writer.constant(np.array(size, dtype))])
    starts = offsets.reshape(*indices.shape[:batch], *(1,) * index_rank).astype(dtype)
    flat_indices = writer.add("Add", [wrapped, writer.constant(starts)])
    gathered = writer.add("Gather", [flat, flat_indices], axis=0)
    # The axes are now: batch, those of the indices, those before the axis, those after it.
    outer = axis - batch
    before = range(batch + index_rank, batch + index_rank + outer)
    after = range(batch + index_rank + outer, x.rank - 1 + index_rank)
    perm = [*range(batch), *before, *range(batch, batch + index_rank), *after]
    return writer.add("Transpose", [gathered], node.name, perm=perm)
