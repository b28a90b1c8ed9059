"""multiply_bytes: contractions of quantized numbers multiply their bytes.

Handles: convolutions and linear layers of an input that was dequantized by one scale, and of a
constant weight that was dequantized by a scale for all or for each output, and whose bytes without
their zeros fit int8.  The sums are int32, which scale and bias make numbers of; rounding the
products' sum once it differs from the dequantized layer's in the last bits.  Quantizing goes in
front of what only moves elements or gives the largest, and is dropped where it undoes what was
done.  Point-wise operators read bytes themselves, and one that quantizes takes in those that it
alone reads.
Refuses: everything if the target multiplies no bytes; scales of several inputs, weights and biases
that are not known.
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
from minidnn.graph.types import BYTES, TensorType
from minidnn.passes.infrastructure import Context, Pass

_MOST_LINES = 64
"""Of a formula that others are taken into."""


def multiply_bytes(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if not context.target.multiplies_bytes:
        return graph
    for rewrite in (_move_quantizers, _multiply, _compose):
        graph = rewrite(graph, context)
    return graph


def precision_of(graph: Graph, computed: str) -> str:
    """What an optimized graph is computed in: "int8" if contractions in it, or in its regions,
    multiply bytes, whatever the rest is ``computed`` in."""
    return "int8" if _multiplies(graph) else computed


def _multiplies(graph: Graph) -> bool:
    for node in graph.nodes:
        body = getattr(node.op, "body", None)
        if isinstance(body, Graph) and _multiplies(body):
            return True
        if isinstance(node.op, Contraction) and node.inputs[1].dtype in BYTES:
            return True
    return False


def _steps_read(node: Node | None) -> Steps | None:
    """The numbers that a node's bytes stand for, if it dequantizes them."""
    if node is None or len(node.inputs) != 1:
        return None
    return dequantization_of(node.op, node.inputs[0].dtype)


# Quantizing in front of moves


def _move_quantizers(graph: Graph, context: Context) -> Graph:
    rewriter = Rewriter(graph)

    def quantized(value: Value, steps: Steps, name: str) -> Value:
        """A value's bytes."""
        node = value.producer
        if node is not None and _steps_read(node) == steps:
            return rewriter.value(node.inputs[0])
        if node is not None and _moves(node) and graph.only_reader(value) is not None:
            operands = [quantized(each, steps, name) for each in node.inputs]
            return rewriter.add(node.op, operands, rewriter.fresh(node.name), node.source).output
        fresh = rewriter.fresh(name)
        return rewriter.add(steps.quantize(), [rewriter.value(value)], fresh, name).output

    for node in graph.nodes:
        steps = quantization_of(node.op)
        producer = node.inputs[0].producer if steps is not None else None
        undone = producer is not None and steps is not None and _steps_read(producer) == steps
        if producer is None or steps is None or not (undone or _moves(producer)):
            rewriter.keep(node)
        elif context.allow(f"quantize what {producer.name} moves, not the result"):
            rewriter.replace(node.output, quantized(node.inputs[0], steps, node.name))
        else:
            rewriter.keep(node)
    return rewriter.finish()


def _moves(node: Node) -> bool:
    """Whether a node only places elements, all of which it reads, or gives the largest ones:
    rounding keeps their order."""
    op = node.op
    if isinstance(op, Windowed):
        return op.window().chooses
    return isinstance(op, (Reshaping, Transpose, Concat))


# Contractions


def _multiply(graph: Graph, context: Context) -> Graph:
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        found = _bytes_of(node)
        if found is None or not context.allow(f"{node.name} multiplies bytes"):
            rewriter.keep(node)
            continue
        steps, weight, scale = found
        assert isinstance(node.op, (Conv2d, Linear))
        source = node.inputs[0].producer
        assert source is not None
        op = replace(node.op, zero=steps.zero)
        whole = rewriter.fresh(f"{node.name}.sums")
        sums = rewriter.add(op, [rewriter.value(source.inputs[0]), weight], whole, node.source)
        output = _scaled(rewriter, node, sums.output, np.float32(steps.scale) * scale)
        rewriter.replace(node.output, output)
    return rewriter.finish()


def _bytes_of(node: Node) -> tuple[Steps, Constant, np.ndarray] | None:
    """A contraction's input as it is quantized, its weight in int8, and the weight's scales, one
    for each output; None if it multiplies no bytes."""
    if not isinstance(node.op, (Conv2d, Linear)) or node.op.zero:
        return None
    x, weight, *bias = node.inputs
    steps = _steps_read(x.producer)
    made = weight.producer
    if steps is None or made is None or made.op != PER_CHANNEL:
        return None
    if not all(isinstance(value, Constant) for value in (*made.inputs, *bias)):
        return None
    given, scale, zero = (value.data for value in made.inputs if isinstance(value, Constant))
    if given.dtype.name not in BYTES or any(size != 1 for size in scale.shape[1:]):
        return None
    found = given.astype(np.int32) - zero.astype(np.int32)
    if not found.size or found.min() < -128 or found.max() > 127:
        return None
    type = TensorType(weight.shape, "int8")
    data = found.astype(np.int8)
    scales = np.broadcast_to(scale.reshape(-1), (weight.shape[0],)).astype(np.float32)
    return steps, Constant(type, f"{node.name}.sums.weight", data), scales


def _scaled(rewriter: Rewriter, node: Node, sums: Value, scale: np.ndarray) -> Value:
    """Sums by the scale of each output, plus the bias."""
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
    # The features of a linear layer are channels if nothing lies between them and the batch.
    channels = isinstance(node.op, Conv2d) or node.output.type.rank == 2
    counts = (1, 2) if channels else (3, 0)
    op = Formula(body, *counts, title="Rescale", compute="float32")
    return rewriter.add(op, [sums, *vectors], node.name, node.source).output


# Point-wise operators on bytes


def _compose(graph: Graph, context: Context) -> Graph:
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Elementwise) or _steps_read(node) is not None:
            rewriter.keep(node)
            continue
        taken = _Formula(graph, node)
        if not taken.changed or not context.allow(f"{node.name} computes with bytes"):
            rewriter.keep(node)
            continue
        operands = [rewriter.value(value) for value in taken.operands]
        new = rewriter.add(taken.op(), operands, node.name, node.source)
        rewriter.replace(node.output, new.output)
    return rewriter.finish()


class _Formula:
    """A point-wise node together with those that it takes in."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node
        self.quantizes = node.output.dtype in BYTES
        self.changed = False
        self._with_sums: Node | None = None
        self._tensors: dict[Value, int] = {}
        self._vectors: dict[Value, int] = {}
        self.body = self._expression(node)
        self.changed |= self.quantizes and quantization_of(node.op) is not None

    @property
    def operands(self) -> list[Value]:
        return [*self._tensors, *self._vectors]

    def op(self) -> Formula:
        # Vectors stand behind all tensors, of whose number there was no knowing.
        count = len(self._tensors)
        places = [argument(i) for i in range(count)]
        vectors = [argument(count + i) for i in range(len(self._vectors))]
        given = {**dict(enumerate(places)), **{_FAR + i: v for i, v in enumerate(vectors)}}
        body = substituted(self.body, given)
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
        op = node.op
        assert isinstance(op, Elementwise)
        split = len(node.inputs) - op.channel_count
        given: dict[int, Expression] = {}
        self._choose_sums(node)
        for i, value in enumerate(node.inputs):
            if i >= split:
                given[i] = argument(_FAR + self._vectors.setdefault(value, len(self._vectors)))
            elif self._takes(value):
                self.changed = True
                assert value.producer is not None
                given[i] = self._expression(value.producer)
            else:
                given[i] = argument(self._tensors.setdefault(value, len(self._tensors)))
        return substituted(_without_division(node), given)

    def _choose_sums(self, node: Node) -> None:
        """Of contractions' sums only the first ones are computed with as they are: those of others
        would have to be stored, where numbers are as large."""
        graph = self.graph
        alone = [v.producer for v in node.tensors if graph.only_reader(v) is node]
        found = [inner for inner in alone if inner is not None and _has_sums(inner)]
        if self._with_sums is None and found:
            self._with_sums = min(found, key=graph.position.__getitem__)

    def _takes(self, value: Value) -> bool:
        """Whether the node that computes a value is taken in."""
        inner = value.producer
        if inner is None or not _in_float32(self.node) or not _in_float32(inner):
            return False
        if value.dtype != "float32":
            return False
        if _steps_read(inner) is not None:
            return True
        if _has_sums(inner) and inner is not self._with_sums:
            return False
        assert isinstance(inner.op, Elementwise)
        alone = self.graph.only_reader(value) is not None
        short = len(inner.op.lines) <= _MOST_LINES
        return self.quantizes and alone and short and value.shape == self.node.output.shape


def _without_division(node: Node) -> Expression:
    """What a node computes; rounding to bytes by the reciprocal of the scale, which puts what lies
    on the edge of two numbers to either."""
    assert isinstance(node.op, Elementwise)
    steps = quantization_of(node.op) if node.inputs[0].dtype == "float32" else None
    if steps is None:
        return node.op.expression()
    factor = float(np.float32(1) / np.float32(steps.scale))
    return rint(argument(0) * factor) + steps.zero


_FAR = 1 << 20
"""Where vectors are counted from while tensors are still found."""


def _has_sums(node: Node) -> bool:
    """Whether a node makes numbers of a contraction's sums."""
    return any(value.dtype == "int32" for value in node.inputs)


def _in_float32(node: Node) -> bool:
    if not isinstance(node.op, Elementwise):
        return False
    known: Sequence[str] = [value.dtype for value in node.inputs]
    return node.op.computed_in(known) == "float32"


MULTIPLY_BYTES = Pass("multiply_bytes", multiply_bytes)
