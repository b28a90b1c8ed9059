"""multiply_int8: contractions of dequantized tensors become integer contractions of int8 or uint8.

Handles: convolutions and linear layers whose input was dequantized by one scale and zero point, and
whose constant weight was dequantized by one scale or a scale for each output, if the weight minus
its zero point fits int8.  Sums are int32; a fused multiply-add scales them and adds the
bias.  It rounds once, so that results differ from the dequantized layer's in the last bits.
Quantization moves before nodes that only move elements or take a maximum, and is dropped where it
undoes a dequantization.  Point-wise operators read quantized tensors themselves, and one that
quantizes is fused with the producers that it alone reads.
Refuses: everything if the target has no integer contractions; inputs with several scales, and
weights and biases that are not constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from minidnn.graph.expression import Expression, argument, fma, rint
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.operator import Contraction, Elementwise, Reshaping, Windowed
from minidnn.graph.operators import Concat, Conv2d, Formula, Linear, Transpose
from minidnn.graph.quantization import PER_CHANNEL, Steps, dequantization_of, quantization_of
from minidnn.graph.scalar_functions import substituted
from minidnn.graph.types import INT8_DTYPES, TensorType
from minidnn.passes.infrastructure import Context, Pass

_MOST_LINES = 64
"""Instructions of a formula that is fused into the one that reads it."""


def multiply_int8(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not context.target.multiplies_int8:
        return graph
    for rewrite in (_move_quantizers, _multiply, _compose):
        graph = rewrite(graph, context)
    return graph


def precision_of(graph: Graph, computed: str) -> str:
    """The precision that is reported of an optimized graph: "int8" if a contraction in it, or in
    its regions, reads an int8 or uint8 weight, and otherwise ``computed``."""
    return "int8" if _multiplies(graph) else computed


def _multiplies(graph: Graph) -> bool:
    """Whether a contraction in a graph or in its regions reads an int8 or uint8 weight."""
    for node in graph.nodes:
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph) and _multiplies(body):
            return True
        if isinstance(node.op, Contraction) and node.inputs[1].dtype in INT8_DTYPES:
            return True
    return False


def _dequantization(node: Node | None) -> Steps | None:
    """The scale and zero point by which a node dequantizes its operand; None if it does not."""
    if node is None or len(node.inputs) != 1:
        return None
    return dequantization_of(node.op, node.inputs[0].dtype)


# Quantizing before moves


def _move_quantizers(graph: Graph, context: Context) -> Graph:
    """Moves quantizations before nodes that commute with them, and drops those that undo a
    dequantization."""
    rewriter = Rewriter(graph)

    def quantized(value: Value, steps: Steps, name: str) -> Value:
        """The quantized value: its own source if it was dequantized by the same steps, or the moves
        before it applied to quantized operands."""
        node = value.producer
        if node is not None and _dequantization(node) == steps:
            return rewriter.value(node.inputs[0])
        if node is not None and _moves(node) and graph.only_reader(value) is not None:
            operands = [quantized(each, steps, name) for each in node.inputs]
            return rewriter.add(node.op, operands, rewriter.fresh(node.name), node.source).output
        fresh = rewriter.fresh(name)
        return rewriter.add(steps.quantize(), [rewriter.value(value)], fresh, name).output

    for node in graph.nodes:
        steps = quantization_of(node.op)
        producer = node.inputs[0].producer if steps is not None else None
        is_undone = (
            producer is not None and steps is not None and _dequantization(producer) == steps
        )
        if producer is None or steps is None or not (is_undone or _moves(producer)):
            rewriter.keep(node)
        elif context.allow(f"quantize what {producer.name} moves, not the result"):
            rewriter.replace(node.output, quantized(node.inputs[0], steps, node.name))
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _moves(node: Node) -> bool:
    """Whether a node commutes with quantization: it only moves elements, or takes a maximum, since
    rounding keeps the order of numbers."""
    op = node.op
    if isinstance(op, Windowed):
        return op.window().chooses
    return isinstance(op, (Reshaping, Transpose, Concat))


# Contractions


def _multiply(graph: Graph, context: Context) -> Graph:
    """Rewrites contractions of dequantized operands to integer contractions."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        operands = _bytes_of(node)
        if operands is None or not context.allow(f"{node.name} multiplies int8"):
            rewriter.keep(node)
            continue
        steps, weight, scale = operands
        assert isinstance(node.op, (Conv2d, Linear))
        source = node.inputs[0].producer
        assert source is not None
        op = replace(node.op, zero=steps.zero)
        name = rewriter.fresh(f"{node.name}.sums")
        sums = rewriter.add(op, [rewriter.value(source.inputs[0]), weight], name, node.source)
        output = _scaled(rewriter, node, sums.output, np.float32(steps.scale) * scale)
        rewriter.replace(node.output, output)
    return rewriter.finish()


def _bytes_of(node: Node) -> tuple[Steps, Constant, np.ndarray] | None:
    """The quantization of a contraction's input, its weight in int8 without zero point, and the
    weight's scales, one for each output; None if it cannot be computed in integers."""
    if not isinstance(node.op, (Conv2d, Linear)) or node.op.zero:
        return None
    x, weight, *bias = node.inputs
    steps = _dequantization(x.producer)
    dequantize = weight.producer
    if steps is None or dequantize is None or dequantize.op != PER_CHANNEL:
        return None
    if not all(isinstance(value, Constant) for value in (*dequantize.inputs, *bias)):
        return None
    quantized, scale, zero = (
        value.data for value in dequantize.inputs if isinstance(value, Constant)
    )
    if quantized.dtype.name not in INT8_DTYPES or any(size != 1 for size in scale.shape[1:]):
        return None
    shifted = quantized.astype(np.int32) - zero.astype(np.int32)
    if not shifted.size or shifted.min() < -128 or shifted.max() > 127:
        return None
    type = TensorType(weight.shape, "int8")
    data = shifted.astype(np.int8)
    scales = np.broadcast_to(scale.reshape(-1), (weight.shape[0],)).astype(np.float32)
    return steps, Constant(type, f"{node.name}.sums.weight", data), scales


def _scaled(rewriter: Rewriter, node: Node, sums: Value, scale: np.ndarray) -> Value:
    """Adds the epilogue of an integer contraction: int32 sums times the scale of each output, plus
    the bias."""
    bias = node.inputs[2:]
    shift = np.full_like(scale, -0.0)
    for value in bias:
        assert isinstance(value, Constant)
        shift = value.data.astype(np.float32)
    type = TensorType((len(scale),))
    vectors = [
        Constant(type, f"{node.name}.sums.{name}", partial(np.asarray, data))
        for name, data in (("scale", scale), ("shift", shift))
    ]
    body = fma(argument(0), argument(1), argument(2))
    # The features of a linear layer are channels (axis 1) if its result is a matrix.
    channels = isinstance(node.op, Conv2d) or node.output.type.rank == 2
    counts = (1, 2) if channels else (3, 0)
    op = Formula(body, *counts, title="Rescale", compute="float32")
    return rewriter.add(op, [sums, *vectors], node.name, node.source).output


# Point-wise operators on quantized tensors


def _compose(graph: Graph, context: Context) -> Graph:
    """Fuses point-wise nodes with dequantizations, and quantizing ones with their producers."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Elementwise) or _dequantization(node) is not None:
            rewriter.keep(node)
            continue
        fused = _FusedFormula(graph, node)
        if not fused.changed or not context.allow(f"{node.name} computes in int8"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in fused.operands]
        new = rewriter.add(fused.op(), operands, node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


class _FusedFormula:
    """A point-wise node fused with producers: dequantizations, and point-wise nodes that it alone
    reads.

    Attributes:
        quantizes: whether the node's result is int8 or uint8.
        changed: whether the formula is another one than the node's own.
        body: the expression; tensors are arguments from 0 on, vectors from ``_FIRST_VECTOR`` on.
    """

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node
        self.quantizes = node.output.dtype in INT8_DTYPES
        self.changed = False
        self._sums_producer: Node | None = None
        self._tensors: dict[Value, int] = {}
        self._vectors: dict[Value, int] = {}
        self.body = self._expression(node)
        self.changed |= self.quantizes and quantization_of(node.op) is not None

    @property
    def operands(self) -> list[Value]:
        """The operands of the formula: tensors, then vectors over channels."""
        return [*self._tensors, *self._vectors]

    def op(self) -> Formula:
        """The formula, with its final numbers of arguments."""
        # Vectors follow all tensors, whose number is known only now.
        count = len(self._tensors)
        tensors = [argument(i) for i in range(count)]
        vectors = [argument(count + i) for i in range(len(self._vectors))]
        arguments = {
            **dict(enumerate(tensors)),
            **{_FIRST_VECTOR + i: v for i, v in enumerate(vectors)},
        }
        body = substituted(self.body, arguments)
        dtype = self.node.output.dtype
        return Formula(
            body,
            count,
            len(vectors),
            self.node.op.name,
            None if dtype == "float32" else dtype,
            "float32",
        )

    def _expression(self, node: Node) -> Expression:
        """The expression of a node with the expressions of fused producers substituted; notes the
        operands."""
        op = node.op
        assert isinstance(op, Elementwise)
        split = len(node.inputs) - op.channel_count
        arguments: dict[int, Expression] = {}
        self._choose_sums_producer(node)
        for i, value in enumerate(node.inputs):
            if i >= split:
                arguments[i] = argument(
                    _FIRST_VECTOR + self._vectors.setdefault(value, len(self._vectors))
                )
            elif self._takes(value):
                self.changed = True
                assert value.producer is not None
                arguments[i] = self._expression(value.producer)
            else:
                arguments[i] = argument(self._tensors.setdefault(value, len(self._tensors)))
        return substituted(_expression_of(node), arguments)

    def _choose_sums_producer(self, node: Node) -> None:
        """Chooses the one producer on int32 sums of a contraction that is fused.  The sums of a
        second contraction would have to be stored, at the same size as its float32 result."""
        graph = self.graph
        producers = [v.producer for v in node.tensors if graph.only_reader(v) is node]
        on_sums = [inner for inner in producers if inner is not None and _reads_int32_sums(inner)]
        if self._sums_producer is None and on_sums:
            self._sums_producer = min(on_sums, key=graph.position.__getitem__)

    def _takes(self, value: Value) -> bool:
        """Whether the producer of a value is fused."""
        inner = value.producer
        if inner is None or not _in_float32(self.node) or not _in_float32(inner):
            return False
        if value.dtype != "float32":
            return False
        if _dequantization(inner) is not None:
            return True
        if _reads_int32_sums(inner) and inner is not self._sums_producer:
            return False
        assert isinstance(inner.op, Elementwise)
        is_only_reader = self.graph.only_reader(value) is not None
        is_short = len(inner.op.lines) <= _MOST_LINES
        return (
            self.quantizes and is_only_reader and is_short and value.shape == self.node.output.shape
        )


def _expression_of(node: Node) -> Expression:
    """The expression of a node.  A quantization multiplies by the reciprocal of its scale, which
    may round a number halfway between two steps either way."""
    assert isinstance(node.op, Elementwise)
    steps = quantization_of(node.op) if node.inputs[0].dtype == "float32" else None
    if steps is None:
        return node.op.expression()
    factor = float(np.float32(1) / np.float32(steps.scale))
    return rint(argument(0) * factor) + steps.zero


_FIRST_VECTOR = 1 << 20
"""The number of the first vector argument while the number of tensors is not known."""


def _reads_int32_sums(node: Node) -> bool:
    """Whether a node reads the int32 sums of a contraction."""
    return any(value.dtype == "int32" for value in node.inputs)


def _in_float32(node: Node) -> bool:
    """Whether a node is element-wise and computes in float32."""
    if not isinstance(node.op, Elementwise):
        return False
    known: Sequence[str] = [value.dtype for value in node.inputs]
    return node.op.computed_in(known) == "float32"


MULTIPLY_INT8 = Pass("multiply_int8", multiply_int8)
