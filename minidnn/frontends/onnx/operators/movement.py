"""Data movement: reshapes, transposes, concatenation, slices, gathers and padding."""

from __future__ import annotations

from math import prod

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import Family, OnnxCall
from minidnn.frontends.onnx.library import LONGEST_TABLE, check_shape
from minidnn.graph import operators as ops
from minidnn.graph.ir import Constant, Value

_family = Family("movement")
CONVERTERS = _family.converters


@_family("Reshape")
def _reshape(call: OnnxCall) -> Value:
    x = call.operand(0)
    wanted = call.ints("shape") if call.opset < 5 else call.known_ints(1, "shape")
    if wanted is None:
        raise GraphError("its shape is missing")
    keep_zero = call.flag("allowzero")
    shape = []
    for axis, size in enumerate(wanted):
        if size == 0 and not keep_zero:
            if axis >= x.type.rank:
                raise GraphError(f"shape={wanted} copies axis {axis} of an input {x.shape}")
            size = x.shape[axis]
        shape.append(size)
    if min(shape, default=0) < -1 or shape.count(-1) > 1:
        raise GraphError(f"shape={wanted}; valid are sizes, and -1 at most once")
    if -1 in shape:
        known_size = prod(size for size in shape if size != -1)
        if not known_size or x.type.size % known_size:
            raise GraphError(f"shape={wanted} does not fit an input {x.shape}")
        shape[shape.index(-1)] = x.type.size // known_size
    return call.build.view(x, shape)


@_family("Flatten")
def _flatten(call: OnnxCall) -> Value:
    x = call.operand(0)
    axis, rank = call.integer("axis", 1), x.type.rank
    if not -rank <= axis <= rank:
        raise GraphError(f"axis={axis}; valid are {-rank} to {rank}")
    axis += rank * (axis < 0)
    return call.build.view(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@_family("Squeeze")
def _squeeze(call: OnnxCall) -> Value:
    x = call.operand(0)
    axes = call.ints("axes") if call.opset < 13 else call.known_ints(1, "axes")
    if axes is None:
        axes = [axis for axis, size in enumerate(x.shape) if size == 1]
    dropped = call.axes(axes, x.type.rank)
    if any(x.shape[axis] != 1 for axis in dropped):
        raise GraphError(f"axes={axes} of an input {x.shape}; valid are axes of size 1")
    sizes = [size for axis, size in enumerate(x.shape) if axis not in dropped]
    return call.build.view(x, sizes)


@_family("Unsqueeze")
def _unsqueeze(call: OnnxCall) -> Value:
    x = call.operand(0)
    axes = call.ints("axes") if call.opset < 13 else call.known_ints(1, "axes")
    if axes is None:
        raise GraphError("its axes are missing")
    added = call.axes(axes, x.type.rank + len(axes))
    sizes = iter(x.shape)
    shape = [1 if a in added else next(sizes) for a in range(x.type.rank + len(axes))]
    return call.build.view(x, shape)


@_family("Transpose")
def _transpose(call: OnnxCall) -> Value:
    x = call.operand(0)
    perm = call.ints("perm")
    dims = list(range(x.type.rank))[::-1] if perm is None else perm
    return call.build.transpose(x, dims)


@_family("Concat")
def _concat(call: OnnxCall) -> Value:
    values = call.all
    axis = call.axis(call.integer("axis", 1), values[0].type.rank)
    (type,) = ops.Concat(axis).infer(*(value.type for value in values))
    full = [value for value in values if value.type.size]
    if not full:
        return call.build.filled(type.shape, 0, type.dtype)
    return full[0] if len(full) == 1 else call.build.apply(ops.Concat(axis), *full)


@_family("Expand")
def _expand(call: OnnxCall) -> Value:
    x = call.operand(0)
    wanted = call.known_ints(1, "shape") or []
    check_shape("its shape", wanted)
    rank = max(len(wanted), x.type.rank)
    x_sizes = [1] * (rank - x.type.rank) + list(x.shape)
    wanted_sizes = [1] * (rank - len(wanted)) + wanted
    if any(a != b and 1 not in (a, b) for a, b in zip(x_sizes, wanted_sizes, strict=True)):
        raise GraphError(f"shape={wanted} and an input {x.shape} do not broadcast")
    shape = [b if a == 1 else a for a, b in zip(x_sizes, wanted_sizes, strict=True)]
    return call.build.expand(x, check_shape("its output", shape))


@_family("Tile")
def _tile(call: OnnxCall) -> Value:
    x = call.operand(0)
    repeats = call.known_ints(1, "repeats") or []
    if len(repeats) != x.type.rank or min(repeats, default=0) < 0:
        raise GraphError(f"repeats={repeats}; valid are {x.type.rank} numbers of at least 0")
    shape = [size * times for size, times in zip(x.shape, repeats, strict=True)]
    check_shape("its output", shape)
    if max(shape, default=0) > LONGEST_TABLE:
        raise call.refuse(f"its output has shape {shape}, whose axes are longer than is repeated")
    build = call.build
    if not prod(shape):
        return build.filled(shape, 0, x.dtype)
    pairs = zip(x.shape, repeats, strict=True)
    return build.apply(ops.Take(tuple(tuple(range(n)) * m if m > 1 else None for n, m in pairs)), x)


@_family("DepthToSpace")
def _depth_to_space(call: OnnxCall) -> Value:
    x, block = _blocks(call)
    batch, depth, height, width = x.shape
    if depth % block**2:
        raise GraphError(f"blocksize={block} does not fit {depth} channels")
    channels = depth // block**2
    if call.choice("mode", "DCR", "DCR", "CRD") == "DCR":
        shape, dims = (batch, block, block, channels, height, width), (0, 3, 4, 1, 5, 2)
    else:
        shape, dims = (batch, channels, block, block, height, width), (0, 1, 4, 2, 5, 3)
    moved = call.build.transpose(call.build.view(x, shape), dims)
    return call.build.view(moved, (batch, channels, height * block, width * block))


@_family("SpaceToDepth")
def _space_to_depth(call: OnnxCall) -> Value:
    x, block = _blocks(call)
    mode = call.choice("mode", "DCR", "DCR", "CRD")
    batch, channels, height, width = x.shape
    if height % block or width % block:
        raise GraphError(f"blocksize={block} does not fit an input {x.shape}")
    rows, columns = height // block, width // block
    wide = call.build.view(x, (batch, channels, rows, block, columns, block))
    dims = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = call.build.transpose(wide, dims)
    return call.build.view(moved, (batch, channels * block**2, rows, columns))


def _blocks(call: OnnxCall) -> tuple[Value, int]:
    """The operand (N, C, H, W) and the block size of DepthToSpace and SpaceToDepth."""
    x, block = call.operand(0), call.integer("blocksize", 0)
    if x.type.rank != 4 or block < 1:
        raise GraphError(f"blocksize={block} of an input {x.shape}; valid is rank 4")
    return x, block


@_family("Slice")
def _slice(call: OnnxCall) -> Value:
    x = call.operand(0)
    if call.opset < 10:
        starts, ends, axes = (call.ints(name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        starts, ends = call.known_ints(1, "starts"), call.known_ints(2, "ends")
        axes, steps = call.known_ints(3, "axes"), call.known_ints(4, "steps")
    if starts is None or ends is None:
        raise GraphError("its starts or ends are missing")
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise GraphError(f"starts={starts}, ends={ends}, axes={axes}, steps={steps} do not fit")
    first, sizes, strides = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
    each = zip(call.axes(axes, x.type.rank), starts, ends, steps, strict=True)
    for axis, start, end, step in each:
        chosen = range(x.shape[axis])[_as_slice(start, end, step, x.shape[axis])]
        sizes[axis], strides[axis] = len(chosen), step
        first[axis] = chosen[0] if len(chosen) else 0
    if not prod(sizes):
        return call.build.filled(sizes, 0, x.dtype)
    # A step beyond the axis takes one element, as a step of 1 does.
    strides = [step if size > 1 else 1 for step, size in zip(strides, sizes, strict=True)]
    if tuple(sizes) == x.shape and all(step == 1 for step in strides):
        return x
    return call.build.apply(ops.Slice(tuple(first), tuple(sizes), tuple(strides)), x)


def _as_slice(start: int, end: int, step: int, size: int) -> slice:
    """Returns ONNX's slice as one of Python's.

    With a negative step, Python has no number for an end before the first element, and a start
    before the first element takes nothing.  ONNX begins at the first element then: a start "is
    clamped [...] into the range [0, dims[axes[i]]-1] for negative stepping".
    """
    if step > 0:
        return slice(start, end, step)
    return slice(max(start, -size), None if end < -size else end, step)


@_family("Split")
def _split(call: OnnxCall) -> tuple[Value, ...]:
    x = call.operand(0)
    axis = call.axis(call.integer("axis", 0), x.type.rank)
    sizes = call.ints("split") if call.opset < 13 else call.known_ints(1, "split")
    count = len(call.output_names)
    if call.opset >= 18 and sizes is not None and call.has("num_outputs"):
        raise GraphError("it has split and num_outputs; valid is one of them")
    if call.opset >= 18 and call.integer("num_outputs", count) != count:
        raise GraphError(f"num_outputs={call.integer('num_outputs', 0)}, but it has {count}")
    if sizes is None:
        if call.opset < 18 and x.shape[axis] % count:
            raise GraphError(f"axis {axis} of an input {x.shape} has no {count} equal parts")
        each = -(-x.shape[axis] // count)
        sizes = [min(each, max(0, x.shape[axis] - i * each)) for i in range(count)]
    if min(sizes, default=0) < 0 or sum(sizes) != x.shape[axis] or len(sizes) != count:
        raise GraphError(f"split={sizes} of axis {axis} of an input {x.shape}")
    parts, begin = [], 0
    for size in sizes:
        parts.append(call.build.slice(x, axis, begin if size else 0, size))
        begin += size
    return tuple(parts)


@_family("Gather")
def _gather(call: OnnxCall) -> Value:
    """Indices beyond the axis, which ONNX does not allow, are moved inside if they are computed
    at run time."""
    x, indices = call.operand(0), call.operand(1)
    axis = call.axis(call.integer("axis", 0), x.type.rank)
    build = call.build
    if not isinstance(indices, Constant):
        return build.apply(ops.Gather(axis), x, indices)
    array, size = indices.data.astype(np.int64), x.shape[axis]
    if array.size and not -size <= int(array.min()) <= int(array.max()) < size:
        raise GraphError(f"indices from {array.min()} to {array.max()} of an axis of size {size}")
    flat = tuple(int(index) % size for index in array.reshape(-1))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    check_shape("its output", shape)
    if not prod(shape):
        return build.filled(shape, 0, x.dtype)
    if len(flat) == 1:
        return build.view(build.slice(x, axis, flat[0], 1), shape)
    return build.view(build.take(x, axis, flat), shape)


@_family("Pad")
def _pad(call: OnnxCall) -> Value:
    x, build = call.operand(0), call.build
    rank = x.type.rank
    mode = call.choice("mode", "constant", "constant", "edge", "reflect", "wrap")
    if call.opset < 11:
        pads, value = call.ints("pads"), call.number("value", 0.0)
        axes = list(range(rank))
    else:
        pads, constant = call.known_ints(1, "pads"), call.maybe_known(2, "constant_value")
        value = 0.0 if constant is None or not constant.size else constant.reshape(-1)[0].item()
        value = int(value) if isinstance(value, bool) else value
        listed = call.known_ints(3, "axes")
        axes = list(range(rank)) if listed is None else call.axes(listed, rank)
    if pads is None or len(pads) != 2 * len(axes):
        raise GraphError(f"pads={pads}; valid are {2 * len(axes)}")
    before, after = [0] * rank, [0] * rank
    for axis, first, last in zip(axes, pads, pads[len(axes) :], strict=False):
        before[axis], after[axis] = first, last
    for axis in range(rank):  # negative pads crop
        cut = (max(0, -before[axis]), max(0, -after[axis]))
        remaining = x.shape[axis] - sum(cut)
        if remaining < 0:
            raise GraphError(f"pads={pads} cut off more than an input {x.shape} has")
        x = build.slice(x, axis, cut[0] if remaining else 0, remaining)
    before, after = [max(0, v) for v in before], [max(0, v) for v in after]
    if not any((*before, *after)):
        return x
    op = ops.Pad(tuple(before), tuple(after), mode, value)
    if not x.type.size:
        return build.filled(op.shape_of(x.shape), value, x.dtype)
    return build.apply(op, x)
