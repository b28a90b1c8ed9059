"""Operations that only move elements or do nothing: views, slices, concatenation, padding,
gathering, and lookups of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from minidnn.frontends.torch.aten.call import TRAINING, AtenCall, Refused, key_of, takes
from minidnn.graph import operators as ops
from minidnn.graph import rearranged
from minidnn.graph.expression import argument, where
from minidnn.graph.ir import Constant, Value
from minidnn.graph.rearranged import rows_of
from minidnn.graph.trace import apply
from minidnn.graph.types import TensorType


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
def same(call: AtenCall) -> Any:
    if call.trained and key_of(call.node) == "detach.default":
        raise Refused("no gradient flows through it, which PyTorch sees to")
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
def flatten(call: AtenCall) -> Any:
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
    "reshape_as.default",
    "view_as.default",
)
def reshape(call: AtenCall) -> Any:
    return _reshaped(call.tensor("self"), call.result.shape)


@takes("permute.default")
def permute(call: AtenCall) -> Any:
    x = call.tensor("self")
    return apply(ops.Transpose(tuple(d % x.type.rank for d in call["dims"])), x)


@takes("transpose.int", "swapaxes.default", "swapdims.default")
def transpose(call: AtenCall) -> Any:
    x = call.tensor("self")
    order = list(range(x.type.rank))
    first, second = (call.axis(name, x.type.rank) for name in call.names[1:])
    if order:
        order[first], order[second] = order[second], order[first]
    return apply(ops.Transpose(tuple(order)), x)


@takes("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def movedim(call: AtenCall) -> Any:
    x = call.tensor("self")
    arguments = [call[name] for name in ("source", "destination")]
    rank = max(x.type.rank, 1)
    source, destination = (
        [axis % rank for axis in (axes if isinstance(axes, list) else [axes])] for axes in arguments
    )
    rest = iter([axis for axis in range(x.type.rank) if axis not in source])
    moved = dict(zip(destination, source, strict=True))
    order = [moved[axis] if axis in moved else next(rest) for axis in range(x.type.rank)]
    return apply(ops.Transpose(tuple(order)), x)


@takes("t.default", "numpy_T.default", "mT.default")
def matrix_transpose(call: AtenCall) -> Any:
    x = call.tensor("self")
    order = list(range(x.type.rank))
    if "mT" in str(call.node.target):
        order[-2:] = order[:-3:-1]
    else:
        order.reverse()
    return apply(ops.Transpose(tuple(order)), x)


def part(x: Value, axis: int, start: int, size: int, step: int = 1) -> Any:
    """A slice of ``size`` elements along ``axis``: every ``step``-th from ``start`` on."""
    rank = x.type.rank
    starts, sizes, steps = [0] * rank, list(x.shape), [1] * rank
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return apply(ops.Slice(tuple(starts), tuple(sizes), tuple(steps)), x)


@takes("slice.Tensor", "narrow.default")
def slice_(call: AtenCall) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    begin, size = call["start"] or 0, x.shape[axis]
    start = min(max(begin + size if begin < 0 else begin, 0), size)
    step = call["step"] if "step" in call.names else 1
    return part(x, axis, start, call.result.shape[axis], step)


@takes("select.int")
def select(call: AtenCall) -> Any:
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
def chunk(call: AtenCall) -> Any:
    x = call.tensor("self")
    axis = call.axis("dim", x.type.rank)
    pieces = call.node.meta["val"]
    values, start = [], 0
    for piece in pieces:
        drops_axis = piece.dim() < x.type.rank
        size = 1 if drops_axis else piece.shape[axis]
        value = part(x, axis, start, size)
        values.append(_reshaped(value, tuple(piece.shape)) if drops_axis else value)
        start += size
    return values


@takes("expand.default", "expand_as.default", "broadcast_to.default")
def expand(call: AtenCall) -> Any:
    return apply(ops.Expand(call.result.shape), call.tensor("self"))


@takes("cat.default", "concat.default", "concatenate.default")
def cat(call: AtenCall) -> Any:
    values = call.tensors("tensors")
    return apply(ops.Concat(call.axis("dim", values[0].type.rank)), *values)


@takes("stack.default")
def stack(call: AtenCall) -> Any:
    values = call.tensors("tensors")
    axis = call.axis("dim", values[0].type.rank + 1)
    shape = values[0].shape
    thin = (*shape[:axis], 1, *shape[axis:])
    return apply(ops.Concat(axis), *(_reshaped(value, thin) for value in values))


@takes("slice_scatter.default", when="the step is 1")
def slice_scatter(call: AtenCall) -> Any:
    """Replaces a slice of a tensor."""
    x, axis = call.tensor("self"), call.axis("dim", call.result.rank)
    if call["step"] != 1:
        raise Refused(f"step={call['step']}; known is 1")
    begin, size = call["start"] or 0, x.shape[axis]
    return _replaced(x, call.tensor("src"), axis, min(max(begin + size * (begin < 0), 0), size))


@takes("select_scatter.default")
def select_scatter(call: AtenCall) -> Any:
    """Replaces the slice of a tensor at one index along an axis."""
    x, axis = call.tensor("self"), call.axis("dim", call.result.rank)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    source = _reshaped(call.tensor("src"), shape)
    return _replaced(x, source, axis, call["index"] % x.shape[axis])


def _replaced(x: Value, source: Value, axis: int, begin: int) -> Any:
    """Replaces the elements of ``x`` from ``begin`` on along an axis by those of ``source``."""
    end = begin + source.shape[axis]
    ranges = [(0, begin), (end, x.shape[axis])]
    before, after = (
        [part(x, axis, first, last - first, 1)] if last > first else [] for first, last in ranges
    )
    pieces = [*before, source, *after]
    return pieces[0] if len(pieces) == 1 else apply(ops.Concat(axis), *pieces)


_MODES: dict[str, Literal["constant", "edge", "reflect", "wrap"]] = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


@takes("pad.default", when="no padding is negative")
def pad(call: AtenCall) -> Any:
    return _padded(call, call["mode"], call["value"] or 0.0)


@takes("constant_pad_nd.default", when="no padding is negative")
def constant_pad(call: AtenCall) -> Any:
    return _padded(call, "constant", call.number("value"))


def _padded(call: AtenCall, mode: str, value: float = 0.0) -> Any:
    """Pads; the argument has a pair of sizes for each axis, beginning with the last axis."""
    x = call.tensor("self")
    sizes = call["pad"] if "pad" in call.names else call["padding"]
    if min(sizes, default=0) < 0:
        raise Refused(f"padding={sizes} cuts elements off; known are sizes of at least 0")
    rank = x.type.rank
    before, after = [0] * rank, [0] * rank
    for i in range(len(sizes) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = sizes[2 * i], sizes[2 * i + 1]
    return apply(ops.Pad(tuple(before), tuple(after), _MODES[mode], float(value)), x)


for _kind, _mode in (("reflection", "reflect"), ("replication", "replicate")):
    _overloads = [f"{_kind}_pad2d.default", f"{_kind}_pad1d.default"]
    takes(*_overloads, when="no padding is negative")(partial(_padded, mode=_mode))


@takes("pixel_shuffle.default")
def pixel_shuffle(call: AtenCall) -> Any:
    return rearranged.pixel_shuffle(call.tensor("self"), call["upscale_factor"])


@takes("pixel_unshuffle.default")
def pixel_unshuffle(call: AtenCall) -> Any:
    return rearranged.pixel_unshuffle(call.tensor("self"), call["downscale_factor"])


@takes("flip.default")
def flip(call: AtenCall) -> Any:
    x = call.tensor("self")
    return _taken(x, {axis % x.type.rank: range(x.shape[axis])[::-1] for axis in call["dims"]})


@takes("roll.default", when="the axes are given")
def roll(call: AtenCall) -> Any:
    x, axes = call.tensor("self"), call["dims"]
    if not axes:
        raise Refused("it rolls the whole as one vector")
    indices: dict[int, Sequence[int]] = {}
    for axis, shift in zip(axes, call["shifts"], strict=True):
        size = x.shape[axis]
        before = indices.get(axis % x.type.rank, range(size))
        indices[axis % x.type.rank] = [before[(i - shift) % size] for i in range(size)]
    return _taken(x, indices)


@takes("repeat.default", "tile.default")
def repeat(call: AtenCall) -> Any:
    """Repeats a tensor along each axis, after prepending axes of size 1 for additional repeats."""
    x, shape = call.tensor("self"), call.result.shape
    wide = (1,) * (len(shape) - x.type.rank) + x.shape
    x = x if wide == x.shape else apply(ops.View(wide), x)
    sizes = enumerate(zip(wide, shape, strict=True))
    return _taken(x, {a: [i % n for i in range(out)] for a, (n, out) in sizes if out != n})


@takes("repeat_interleave.self_int")
def repeat_interleave(call: AtenCall) -> Any:
    """Repeats each element along an axis; without an axis, along the flattened tensor."""
    x, times = call.tensor("self"), call["repeats"]
    if call["dim"] is None:
        x = apply(ops.View((x.type.size,)), x)
    axis = 0 if call["dim"] is None else call["dim"] % x.type.rank
    return _taken(x, {axis: [i // times for i in range(times * x.shape[axis])]})


@takes("index_select.default", when="the indices are known")
def index_select(call: AtenCall) -> Any:
    x = call.tensor("self")
    return _taken(x, {call.axis("dim", x.type.rank): _indices(call.constant("index"), x, call)})


def _indices(index: Constant, x: Value, call: AtenCall) -> list[int]:
    """The elements of an index vector, as indices that are not negative."""
    size = x.shape[call.axis("dim", x.type.rank)]
    return [int(i) % size for i in index.data.reshape(-1)]


@takes("unfold.default")
def unfold(call: AtenCall) -> Any:
    """Extracts sliding windows along an axis; the elements of a window become the last axis."""
    x = call.tensor("self")
    axis, size, step = call.axis("dimension", x.type.rank), call["size"], call["step"]
    count = call.result.shape[axis]
    windows = _taken(x, {axis: [i * step + k for i in range(count) for k in range(size)]})
    split = apply(ops.View((*x.shape[:axis], count, size, *x.shape[axis + 1 :])), windows)
    order = [d for d in range(x.type.rank + 1) if d != axis + 1]
    return apply(ops.Transpose((*order, axis + 1)), split)


@takes("im2col.default", when="there is a batch axis")
def im2col(call: AtenCall) -> Any:
    x = call.tensor("self")
    if x.type.rank != 4:
        raise Refused(f"input has shape {x.shape}; known is one with a batch axis")
    return rearranged.unfold(x, _blocks(call))


@takes("col2im.default", when="there is a batch axis")
def col2im(call: AtenCall) -> Any:
    x = call.tensor("self")
    if x.type.rank != 3:
        raise Refused(f"input has shape {x.shape}; known is one with a batch axis")

    def constant(type: TensorType, data: Callable[[], np.ndarray]) -> Constant:
        return Constant(type, f"{call.node.name}.places", data)

    return rearranged.fold(x, call.pair("output_size"), _blocks(call), constant)


def _blocks(call: AtenCall) -> rearranged.SlidingBlocks:
    return rearranged.SlidingBlocks(
        *(call.pair(name) for name in ("kernel_size", "dilation", "padding", "stride"))
    )


@takes("tril.default", "triu.default")
def triangle(call: AtenCall) -> Any:
    """Sets the elements above (``tril``) or below (``triu``) a diagonal of matrices to 0."""
    x, diagonal = call.tensor("self"), call["diagonal"]
    rows, columns = x.shape[-2:]
    lower = "tril" in str(call.node.target)

    def data() -> np.ndarray:
        below = np.tri(rows, columns, k=diagonal if lower else diagonal - 1, dtype=bool)
        return below if lower else ~below

    kept = Constant(TensorType((rows, columns), "bool"), f"{call.node.name}.kept", data)
    body = where(argument(1) > 0.0, argument(0), 0.0)
    return apply(ops.Formula(body, tensors=2, title="Triangle", dtype=x.dtype), x, kept)


def _taken(x: Value, by_axis: Mapping[int, Sequence[int]]) -> Value:
    """Gathers the elements at these indices along each of these axes."""
    indices = [tuple(by_axis[axis]) if axis in by_axis else None for axis in range(x.type.rank)]
    return apply(ops.Take(tuple(indices)), x)


@takes("channel_shuffle.default")
def channel_shuffle(call: AtenCall) -> Any:
    return rearranged.channel_shuffle(call.tensor("self"), call["groups"])


@takes("embedding.default", when="not training, and the table is known")
def embedding(call: AtenCall) -> Any:
    """Looks up rows of a table.  PyTorch raises for indices out of range; here such indices are
    refused if they are constants, and give rows of NaN otherwise."""
    if call.trained:
        raise Refused(f"{TRAINING}, and PyTorch refuses numbers beyond the table")
    table, numbers = call.constant("weight"), call.tensor("indices")
    if isinstance(numbers, Constant):
        known = numbers.data
        if known.size and not 0 <= known.min() <= known.max() < table.shape[0]:
            raise Refused(f"it takes numbers beyond the {table.shape[0]} rows of the table")
    return rows_of(table, numbers)
