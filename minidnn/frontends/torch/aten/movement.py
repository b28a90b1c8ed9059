"""Operations that only move elements, or do nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from minidnn.frontends.torch.aten.call import Call, Refused, takes
from minidnn.graph import operators as ops
from minidnn.graph.ir import Value
from minidnn.graph.trace import apply


@takes(
    "contiguous.default",
    "clone.default",
    "detach.default",
    "alias.default",
    "lift_fresh_copy.default",
    "_to_copy.default",
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "type_as.default",
    when="dtype and device stay what they are",
)
def same(call: Call) -> Any:
    x = call.tensor("self")
    before, after = call.node.all_input_nodes[0].meta["val"], call.node.meta["val"]
    if before.device != after.device:
        raise Refused(f"it moves the tensor from {before.device} to {after.device}")
    if call.result != x.type:
        raise Refused(f"it makes {call.result} of {x.type}")
    return apply(ops.Identity(), x)


def _reshaped(x: Value, shape: tuple[int, ...]) -> Any:
    if x.shape and shape and x.shape[0] == shape[0]:
        return apply(ops.Reshape(shape[1:]), x)
    return apply(ops.View(shape), x)


@takes("flatten.using_ints")
def flatten(call: Call) -> Any:
    x = call.tensor("self")
    if not x.shape:
        return apply(ops.View((1,)), x)
    return apply(ops.Flatten(call["start_dim"], call["end_dim"]), x)


@takes(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "unflatten.int",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "unsqueeze.default",
)
def reshape(call: Call) -> Any:
    return _reshaped(call.tensor("self"), call.result.shape)


@takes("permute.default")
def permute(call: Call) -> Any:
    x = call.tensor("self")
    return apply(ops.Transpose(tuple(d % x.type.rank for d in call["dims"])), x)


@takes("transpose.int")
def transpose(call: Call) -> Any:
    x = call.tensor("self")
    order = list(range(x.type.rank))
    first, second = call.axis("dim0", x.type.rank), call.axis("dim1", x.type.rank)
    if order:
        order[first], order[second] = order[second], order[first]
    return apply(ops.Transpose(tuple(order)), x)


@takes("t.default", "numpy_T.default", "mT.default")
def matrix_transpose(call: Call) -> Any:
    x = call.tensor("self")
    order = list(range(x.type.rank))
    if "mT" in str(call.node.target):
        order[-2:] = order[:-3:-1]
    else:
        order.reverse()
    return apply(ops.Transpose(tuple(order)), x)


def part(x: Value, axis: int, start: int, size: int, step: int = 1) -> Any:
    """``size`` elements along ``axis``, every ``step``-th from ``start`` on."""
    rank = x.type.rank
    starts, sizes, steps = [0] * rank, list(x.shape), [1] * rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return apply(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


@takes("slice.Tensor", "narrow.default")
def slice_(call: Call) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    begin, size = call["start"] or 0, x.shape[axis]
    start = min(max(begin + size if begin < 0 else begin, 0), size)
    step = call["step"] if "step" in call.names else 1
    return part(x, axis, start, call.result.shape[axis], step)


@takes("select.int")
def select(call: Call) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    return _reshaped(part(x, axis, call["index"] % x.shape[axis], 1), call.result.shape)


@takes(
    "chunk.default",
    "split.Tensor",
    "split_with_sizes.default",
    "tensor_split.sections",
    "unsafe_chunk.default",
    "unsafe_split.Tensor",
    "unbind.int",
)
def chunk(call: Call) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    whole = call.node.meta["val"]
    found, start = [], 0
    for piece in whole:
        alone = piece.dim() < x.type.rank
        size = 1 if alone else piece.shape[axis]
        value = part(x, axis, start, size)
        found.append(_reshaped(value, tuple(piece.shape)) if alone else value)
        start += size
    return found


@takes("expand.default", "expand_as.default", "broadcast_to.default")
def expand(call: Call) -> Any:
    return apply(ops.Expand(call.result.shape), call.tensor("self"))


@takes("cat.default", "concat.default")
def cat(call: Call) -> Any:
    values = call.tensors("tensors")
    return apply(ops.Concat(call.axis("dim", values[0].type.rank)), *values)


@takes("stack.default")
def stack(call: Call) -> Any:
    values = call.tensors("tensors")
    axis = call.axis("dim", values[0].type.rank + 1)
    shape = values[0].shape
    thin = (*shape[:axis], 1, *shape[axis:])
    return apply(ops.Concat(axis), *(_reshaped(value, thin) for value in values))


_MODES: dict[str, Literal["constant", "edge", "reflect", "wrap"]] = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


@takes("pad.default", when="no padding is negative")
def pad(call: Call) -> Any:
    return _padded(call, call["mode"], call["value"] or 0.0)


@takes("constant_pad_nd.default", when="no padding is negative")
def constant_pad(call: Call) -> Any:
    return _padded(call, "constant", call.number("value"))


@takes("reflection_pad2d.default", "reflection_pad1d.default", when="no padding is negative")
def reflection_pad(call: Call) -> Any:
    return _padded(call, "reflect", 0.0)


@takes("replication_pad2d.default", "replication_pad1d.default", when="no padding is negative")
def replication_pad(call: Call) -> Any:
    return _padded(call, "replicate", 0.0)


def _padded(call: Call, mode: str, value: float) -> Any:
    """Paddings are given in pairs, those of the last axis first."""
    x = call.tensor("self")
    given = call["pad"] if "pad" in call.names else call["padding"]
    if min(given, default=0) < 0:
        raise Refused(f"padding={given} cuts elements off; known are sizes of at least 0")
    rank = x.type.rank
    before, after = [0] * rank, [0] * rank
    for i in range(len(given) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = given[2 * i], given[2 * i + 1]
    return apply(ops.Pad(tuple(before), tuple(after), _MODES[mode], float(value)), x)


@takes("pixel_shuffle.default")
def pixel_shuffle(call: Call) -> Any:
    x, factor = call.tensor("self"), call["upscale_factor"]
    *front, channels, rows, columns = x.shape
    batch = tuple(front)
    rank = len(front)
    split = apply(ops.View((*batch, channels // factor**2, factor, factor, rows, columns)), x)
    order = (*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2)
    return apply(ops.View(call.result.shape), apply(ops.Transpose(order), split))


@takes("pixel_unshuffle.default")
def pixel_unshuffle(call: Call) -> Any:
    x, factor = call.tensor("self"), call["downscale_factor"]
    *front, channels, rows, columns = x.shape
    batch = tuple(front)
    rank = len(front)
    split = apply(
        ops.View((*batch, channels, rows // factor, factor, columns // factor, factor)), x
    )
    order = (*range(rank), rank, rank + 2, rank + 4, rank + 1, rank + 3)
    return apply(ops.View(call.result.shape), apply(ops.Transpose(order), split))


@takes("flip.default")
def flip(call: Call) -> Any:
    x = call.tensor("self")
    return _taken(x, {axis % x.type.rank: range(x.shape[axis])[::-1] for axis in call["dims"]})


@takes("roll.default", when="the axes are given")
def roll(call: Call) -> Any:
    x, axes = call.tensor("self"), call["dims"]
    if not axes:
        raise Refused("it rolls the whole as one vector")
    places: dict[int, Sequence[int]] = {}
    for axis, shift in zip(axes, call["shifts"], strict=True):
        size = x.shape[axis]
        before = places.get(axis % x.type.rank, range(size))
        places[axis % x.type.rank] = [before[(i - shift) % size] for i in range(size)]
    return _taken(x, places)


def _taken(x: Value, places: Mapping[int, Sequence[int]]) -> Value:
    """Along these axes the elements of these indices."""
    every = [tuple(places[axis]) if axis in places else None for axis in range(x.type.rank)]
    return apply(ops.Take(tuple(every)), x)


@takes("channel_shuffle.default")
def channel_shuffle(call: Call) -> Any:
    x, groups = call.tensor("self"), call["groups"]
    batch, channels, *plane = x.shape
    split = apply(ops.View((batch, groups, channels // groups, *plane)), x)
    order = (0, 2, 1, *range(3, 3 + len(plane)))
    return apply(ops.View(x.shape), apply(ops.Transpose(order), split))
