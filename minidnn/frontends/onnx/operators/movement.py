"""Operators that place elements."""

from __future__ import annotations

from math import prod

from minidnn.errors import GraphError
from minidnn.frontends.onnx.call import OnnxCall
from minidnn.frontends.onnx.limits import LONGEST_TABLE, check_shape
from minidnn.frontends.onnx.operators.registry import Family
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value

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
        rest = prod(size for size in shape if size != -1)
        if not rest or x.type.size % rest:
            raise GraphError(f"shape={wanted} does not fit an input {x.shape}")
        shape[shape.index(-1)] = x.type.size // rest
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
    kept = [size for axis, size in enumerate(x.shape) if axis not in dropped]
    return call.build.view(x, kept)


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
    own = [1] * (rank - x.type.rank) + list(x.shape)
    other = [1] * (rank - len(wanted)) + wanted
    if any(a != b and 1 not in (a, b) for a, b in zip(own, other, strict=True)):
        raise GraphError(f"shape={wanted} and an input {x.shape} do not broadcast")
    shape = [b if a == 1 else a for a, b in zip(own, other, strict=True)]
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
    x, block = call.operand(0), call.integer("blocksize", 0)
    if x.type.rank != 4 or block < 1:
        raise GraphError(f"blocksize={block} of an input {x.shape}; valid is rank 4")
    return x, block
