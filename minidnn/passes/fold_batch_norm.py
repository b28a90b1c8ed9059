"""fold_batch_norm: batch normalization becomes part of weights, or a scale and a shift.

Handles: BatchNorm after a Conv2d or Linear of which it is the only reader: its scale goes into
the weight, its shift into the bias.  Any other BatchNorm with constant statistics becomes
ScaleShift.  New constants are computed in float64 and rounded once, when they are first needed.
Of other statistics the scale is computed in each run, once for a channel: distances from the mean
are multiplied by it, which loses no digits where the mean is large.
Refuses: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from minidnn.graph.expression import argument, fma, sqrt
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operators import BatchNorm, Conv2d, Formula, Linear, ScaleShift
from minidnn.graph.types import rounded_to
from minidnn.passes.infrastructure import Context, Pass


def fold_batch_norm(graph: Graph, context: Context) -> Graph:
    """See the module."""
    rewriter = Rewriter(graph)
    folded: set[Node] = set()  # normalizations that went into the contraction before them
    for node in graph.nodes:
        norm = graph.only_reader(node.output) if isinstance(node.op, (Conv2d, Linear)) else None
        if norm is not None and _can_fold(node, norm):
            if context.allow(f"fold {norm.name} into {node.name}"):
                folded.add(norm)
                _fold(rewriter, node, norm)
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
    assert isinstance(node.op, BatchNorm)
    x, factor, shift, mean = map(argument, range(4))
    given = [rewriter.value(value) for value in node.inputs]
    scale = Formula(argument(0) / sqrt(argument(1) + node.op.eps), 2, title="Scale")
    name = rewriter.fresh(f"{node.name}.scale")
    found = rewriter.add(scale, [given[1], given[4]], name, node.source).output
    op = Formula(fma(x - mean, factor, shift), 1, 3, node.op.name)
    operands = [given[0], found, given[2], given[3]]
    rewriter.replace(node.output, rewriter.add(op, operands, node.name, node.source).output)


def _has_constant_statistics(node: Node) -> bool:
    return isinstance(node.op, BatchNorm) and all(isinstance(v, Constant) for v in node.inputs[1:])


def _can_fold(contraction: Node, norm: Node) -> bool:
    channels_last = isinstance(contraction.op, Linear) and contraction.output.type.rank != 2
    return (
        _has_constant_statistics(norm)
        and norm.inputs[0] is contraction.output
        and all(isinstance(value, Constant) for value in contraction.inputs[1:])
        and not channels_last
    )


def _fold(rewriter: Rewriter, contraction: Node, norm: Node) -> None:
    weight, *bias = contraction.inputs[1:]
    scale, shift = _factors(norm)
    channels = norm.inputs[1].type

    def new_weight() -> np.ndarray:
        data = _data(weight)
        factor = scale().reshape(-1, *(1,) * (data.ndim - 1))
        folded = np.empty_like(data, order="C")
        with np.errstate(all="ignore"):  # products in float64, of a few thousand at a time
            np.multiply(data, factor, out=folded, dtype=np.float64, casting="same_kind")
        # NumPy has no bfloat16: such weights are float32 to it, and rounded.
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
    for node in graph.nodes:
        if _has_constant_statistics(node):
            yield f"node {node.name!r} is a batch normalization with constant statistics"


FOLD_BATCH_NORM = Pass(
    "fold_batch_norm", fold_batch_norm, requires=("simplify",), ensures=(no_constant_batch_norms,)
)
