"""Constant folding into convolutions and linear layers: normalizations, biases and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from minidnn.graph.expression import argument, fma, sqrt
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operators import Add, BatchNorm, Conv2d, Formula, Linear, Pad, ScaleShift
from minidnn.graph.types import FLOATS, TensorType, rounded_to
from minidnn.passes.infrastructure import Context, Pass


def fold_batch_norm(graph: Graph, context: Context) -> Graph:
    """Batch normalization is folded into weights, or becomes a scale and a shift.

    Handles: a BatchNorm that is the only reader of a Conv2d or Linear: its scale goes into the
    weight, its shift into the bias.  Any other BatchNorm with constant statistics becomes a
    ScaleShift.  New constants are computed in float64 and rounded once, when they are first needed.
    For statistics that are not constant, the scale is computed in each run, once for each channel;
    it multiplies the difference from the mean, which loses no digits where the mean is large.
    Refuses: nothing.
    """
    rewriter = Rewriter(graph)
    folded: set[Node] = set()  # normalizations that went into the contraction before them
    for node in graph.nodes:
        norm = graph.only_reader(node.output) if isinstance(node.op, (Conv2d, Linear)) else None
        if norm is not None and _can_fold_norm(node, norm):
            if context.allow(f"fold {norm.name} into {node.name}"):
                folded.add(norm)
                _without_norm(rewriter, node, norm)
                continue
        elif (
            _has_constant_statistics(node)
            and node not in folded
            and context.allow(f"make {node.name} a scale and a shift")
        ):
            _scale_and_shift(rewriter, node)
            continue
        elif (
            isinstance(node.op, BatchNorm)
            and not _has_constant_statistics(node)
            and context.allow(f"compute the scale of {node.name} once for a channel")
        ):
            _scaled(rewriter, node)
            continue
        if node not in folded:
            rewriter.keep(node)
    return rewriter.finish()


def _scaled(rewriter: Rewriter, node: Node) -> None:
    """Adds a BatchNorm with computed statistics as a scale for each channel and one formula."""
    assert isinstance(node.op, BatchNorm)
    x, factor, shift, mean = map(argument, range(4))
    inputs = [rewriter.value(value) for value in node.inputs]
    scale = Formula(argument(0) / sqrt(argument(1) + node.op.eps), 2, title="Scale")
    name = rewriter.fresh(f"{node.name}.scale")
    scale_value = rewriter.add(scale, [inputs[1], inputs[4]], name, node.source).output
    op = Formula(fma(x - mean, factor, shift), 1, 3, node.op.name)
    operands = [inputs[0], scale_value, inputs[2], inputs[3]]
    rewriter.replace(node.output, rewriter.add(op, operands, node.name, node.source).output)


def _has_constant_statistics(node: Node) -> bool:
    return isinstance(node.op, BatchNorm) and all(isinstance(v, Constant) for v in node.inputs[1:])


def _can_fold_norm(contraction: Node, norm: Node) -> bool:
    """Whether a normalization can be folded into the weights of the contraction before it."""
    channels_last = isinstance(contraction.op, Linear) and contraction.output.type.rank != 2
    return (
        _has_constant_statistics(norm)
        and norm.inputs[0] is contraction.output
        and all(isinstance(value, Constant) for value in contraction.inputs[1:])
        and not channels_last
    )


def _without_norm(rewriter: Rewriter, contraction: Node, norm: Node) -> None:
    """Adds a contraction with the scale and the shift of a normalization in its weights."""
    weight, *bias = contraction.inputs[1:]
    scale, shift = _factors(norm)
    channels = norm.inputs[1].type

    def new_weight() -> np.ndarray:
        data = _data(weight)
        factor = scale().reshape(-1, *(1,) * (data.ndim - 1))
        folded = np.empty_like(data, order="C")
        with np.errstate(all="ignore"):  # NumPy buffers float64 products, a few thousand at a time
            np.multiply(data, factor, out=folded, dtype=np.float64, casting="same_kind")
        # NumPy has no bfloat16: such weights are float32 arrays that are rounded.
        return rounded_to(weight.dtype, folded) if weight.dtype == "bfloat16" else folded

    def new_bias() -> np.ndarray:
        before = _data(bias[0]).astype(np.float64) if bias else 0.0
        with np.errstate(all="ignore"):
            return rounded_to(channels.dtype, before * scale() + shift())

    constants = (
        # Not named after the weight, which several contractions may share.
        Constant(weight.type, f"{contraction.name}.folded_weight", new_weight),
        Constant(channels, f"{norm.name}.folded_bias", new_bias),
    )
    inputs = (rewriter.value(contraction.inputs[0]), *constants)
    new = rewriter.add(contraction.op, inputs, contraction.name, contraction.source)
    rewriter.replace(norm.output, new.output)


def _scale_and_shift(rewriter: Rewriter, norm: Node) -> None:
    scale, shift = _factors(norm)
    channels = norm.inputs[1].type

    def rounded(factor: Callable[[], np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            return rounded_to(channels.dtype, factor())

    constants = (
        Constant(channels, f"{norm.name}.scale", partial(rounded, scale)),
        Constant(channels, f"{norm.name}.shift", partial(rounded, shift)),
    )
    inputs = (rewriter.value(norm.inputs[0]), *constants)
    new = rewriter.add(ScaleShift(), inputs, norm.name, norm.source)
    rewriter.replace(norm.output, new.output)


def _factors(norm: Node) -> tuple[Callable[[], np.ndarray], Callable[[], np.ndarray]]:
    """Functions that give a normalization's scale and shift in float64."""
    op, parameters = norm.op, norm.inputs[1:]
    assert isinstance(op, BatchNorm)

    def scale() -> np.ndarray:
        weight, _, _, var = _float64(parameters)
        with np.errstate(all="ignore"):
            return np.asarray(weight / np.sqrt(var + op.eps))

    def shift() -> np.ndarray:
        _, bias, mean, _ = _float64(parameters)
        with np.errstate(all="ignore"):
            return np.asarray(bias - mean * scale())

    return scale, shift


def _float64(values: Sequence[Value]) -> list[np.ndarray]:
    return [_data(value).astype(np.float64) for value in values]


def _data(value: Value) -> np.ndarray:
    assert isinstance(value, Constant)
    return value.data


def no_constant_batch_norms(graph: Graph) -> Iterator[str]:
    """No batch normalization has constant statistics."""
    for node in graph.nodes:
        if _has_constant_statistics(node):
            yield f"node {node.name!r} is a batch normalization with constant statistics"


FOLD_BATCH_NORM = Pass(
    "fold_batch_norm", fold_batch_norm, requires=("simplify",), ensures=(no_constant_batch_norms,)
)


def fold_bias(graph: Graph, context: Context) -> Graph:
    """An Add after a linear layer becomes its bias.

    Model files write a linear layer as a matrix product and an Add.  Accumulation begins with the
    bias, so that results are rounded differently.
    Handles: an Add of a constant with one number for each feature that is the only reader of a
    linear layer without a bias.
    Refuses: other constants, and integers, whose bias has another dtype.
    """
    rewriter = Rewriter(graph)
    folded: set[Node] = set()  # sums that went into the layer before them
    for node in graph.nodes:
        reader = graph.only_reader(node.output) if isinstance(node.op, Linear) else None
        added = None if reader is None else _added(node, reader)
        if (
            reader is not None
            and added is not None
            and context.allow(f"{reader.name} is the bias of {node.name}")
        ):
            folded.add(reader)
            _with_bias(rewriter, node, reader, added)
        elif node not in folded:
            rewriter.keep(node)
    return rewriter.finish()


def _added(layer: Node, reader: Node) -> Constant | None:
    """The constant that an Add adds to the features of a linear layer; None if it is no bias."""
    if len(layer.inputs) > 2 or not isinstance(reader.op, Add):
        return None
    others: list[Value] = [v for v in reader.inputs if v is not layer.output]
    if len(others) != 1 or not isinstance(other := others[0], Constant):
        return None
    features = layer.output.shape[-1:]
    is_vector = other.shape[-1:] == features and prod(other.shape[:-1]) == 1
    same_type = reader.output.type == layer.output.type and other.dtype == layer.output.dtype
    return other if is_vector and same_type and other.dtype in FLOATS else None


def _with_bias(rewriter: Rewriter, layer: Node, reader: Node, added: Constant) -> None:
    type = TensorType(added.shape[-1:], added.dtype)
    bias = Constant(type, f"{layer.name}.bias", lambda: added.data.reshape(type.shape))
    inputs = [*map(rewriter.value, layer.inputs), bias]
    new = rewriter.add(layer.op, inputs, layer.name, layer.source)
    rewriter.replace(reader.output, new.output)


FOLD_BIAS = Pass("fold_bias", fold_bias, requires=("simplify",))


def fold_pad(graph: Graph, context: Context) -> Graph:
    """A Pad by zeros that only convolutions read becomes their own padding.

    Model files have a Pad of its own where a convolution's padding is "same", which may be
    asymmetric.  As an operator it copies the image.
    Handles: a Pad of rows and columns by zeros, whose readers are all convolutions of it.
    Refuses: other values and modes, integers, whose zero point may be another number than 0, and
    results of the graph.
    """
    rewriter = Rewriter(graph)
    folded: set[Node] = set()
    for node in graph.nodes:
        pad = node.inputs[0].producer if isinstance(node.op, Conv2d) else None
        if pad is not None and pad in folded:
            _fold(rewriter, pad, node)
        elif _can_fold(graph, node) and context.allow(f"fold {node.name} into what reads it"):
            folded.add(node)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _can_fold(graph: Graph, node: Node) -> bool:
    op = node.op
    if not isinstance(op, Pad) or op.mode != "constant" or op.value != 0.0:
        return False
    readers = graph.readers.get(node.output, ())
    convolutions = all(
        isinstance(reader.op, Conv2d)
        and reader.inputs.count(node.output) == 1
        and reader.inputs[0] is node.output
        for reader in readers
    )
    images = len(op.before) == 4 and not any((*op.before[:2], *op.after[:2]))
    read = bool(readers) and node.output not in graph.results
    return images and read and convolutions and node.output.dtype in FLOATS


def _fold(rewriter: Rewriter, pad: Node, convolution: Node) -> None:
    assert isinstance(pad.op, Pad) and isinstance(convolution.op, Conv2d)
    (top, bottom), (left, right) = convolution.op.padding
    before, after = pad.op.before, pad.op.after
    rows, columns = (top + before[2], bottom + after[2]), (left + before[3], right + after[3])
    op = replace(convolution.op, padding=(rows, columns))
    inputs = [rewriter.value(value) for value in (pad.inputs[0], *convolution.inputs[1:])]
    new = rewriter.add(op, inputs, convolution.name, convolution.source)
    rewriter.replace(convolution.output, new.output)


FOLD_PAD = Pass("fold_pad", fold_pad, requires=("simplify",))
