"""keep_layers: layers, and the gradients of layers, become calls of the device's library.

Handles, under the strategy "cudnn" alone: every node that the target has a library function for;
the nodes that together compute the gradient of such a node, which are found by applying its
differentiation rule again; normalization by the statistics of the batch, with the update of the
running statistics, and its gradient; dropout, whose function is given a mask that the graph's own
generator draws.
Refuses: nodes for which the target gives a reason, which is noted.  Other nodes stay as they are
and are computed one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.fusion.functions import LayerFunction, LibraryFunction, LibraryFunctions, body_of
from minidnn.gradients.reverse import Recorded
from minidnn.graph import operators as ops
from minidnn.graph.expression import argument, constant, linearize, number, sqrt, where
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value
from minidnn.graph.types import TensorType, numpy_dtype
from minidnn.passes.infrastructure import Context, Pass

_GRADIENT = re.compile(r"(.*)\.gradient(\.\d+)?")
_SHOWN = 3
"""Nodes that a note names; of others it says how many they are."""


def keep_layers(graph: Graph, context: Context) -> Graph:
    """See the module."""
    if context.strategy != "cudnn":
        return graph
    search = _Search(graph, context)
    for node in graph.nodes:
        search.look_at(node)
    rewritten = search.rewritten()
    search.note_refusals(rewritten)
    return rewritten


@dataclass(frozen=True, eq=False)
class _Call:
    """A node that is going to be added to the graph.

    Attributes:
        inputs, outputs: values of the graph, or values that only calls exchange.  The results of
            the call replace those outputs that the graph has.
        node: the graph's node that the call is named after.
    """

    op: LayerFunction | ops.Add | ops.RandomDrop | ops.View
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    node: Node


class _Search:
    """Finds the calls that replace nodes of a graph, and builds the new graph.

    ``recorded`` holds the graph and what is recorded beside it: to find the nodes of a gradient, a
    rule is applied again, and nodes that the graph already has are recognized.
    """

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        self.recorded = Recorded(graph)
        #: The calls that are inserted before each node of the graph.
        self.calls: dict[Node, list[_Call]] = {}
        #: Values that calls compute.
        self.computed: set[Value] = set()
        #: Why there is no library function, by the name of the node.
        self.refused: dict[str, str] = {}
        #: Masks of dropouts, by operator, operands of the generator, and type.
        self.kept: dict[object, Value] = {}
        self.ones: dict[TensorType, Constant] = {}
        #: Nodes of the gradient of each node, by its name.
        self.after: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if (match := _GRADIENT.fullmatch(node.name)) is not None:
                self.after.setdefault(match[1], []).append(node)

    def look_at(self, node: Node) -> None:
        """Finds the calls for a node, and for its gradients."""
        functions = self.context.target.layer_functions(node)
        if isinstance(functions, str):
            if node.op.kind != "movement" and not isinstance(node.op, (ops.Identity, ops.Dropout)):
                self.refused[node.name] = functions
        elif isinstance(node.op, ops.RandomDrop):
            self._dropout(node, functions.forward)
        elif isinstance(node.op, ops.BatchNorm):
            self._batch_norm(node, functions)
        elif self._call(node, functions.forward, node.inputs, [node.output]):
            self._gradients(node, functions.backward)

    # Layers

    def _gradients(self, node: Node, function: LibraryFunction | None) -> None:
        """Finds the calls for the gradients of a node whose forward call was added; ``function`` is
        the library's backward function."""
        for gradient, results in self._differentiated(node):
            if isinstance(node.op, (ops.Conv2d, ops.Linear)):
                self._gradients_of_product(node, gradient, results)
            elif function is not None and results[0] is not None and results[0] in self.recorded:
                x, y = node.inputs[0], node.output
                takes_x = function.name != "cudnnSoftmaxBackward"
                inputs = (y, gradient, x) if takes_x else (y, gradient)
                self._call(node, function, inputs, [results[0]])

    def _gradients_of_product(
        self, node: Node, gradient: Value, results: Sequence[Value | None]
    ) -> None:
        """Finds the calls for the gradients of a convolution or linear layer, other than those that
        are nodes with library functions of their own."""
        x, weight = node.inputs[:2]
        operands = ((gradient, weight), (x, gradient), (gradient,))
        for place, (inputs, result) in enumerate(zip(operands, results, strict=False)):
            function = self.context.target.product_gradient(node, place)
            if function is not None and result is not None and result in self.recorded:
                self._call(node, function, inputs, [result])

    def _dropout(self, node: Node, function: LibraryFunction) -> None:
        """Adds the call for a dropout; nodes that draw the same numbers, as a layer and its
        gradient do, share one mask."""
        op, (x, *numbers) = node.op, node.inputs
        assert isinstance(op, ops.RandomDrop)
        vector = TensorType((x.type.size,), x.dtype)
        key = (op, *numbers, x.type)
        if key not in self.kept:
            ones = self.ones.get(x.type)
            if ones is None:
                fill = partial(np.ones, x.shape, numpy_dtype(x.dtype))
                ones = self.ones[x.type] = Constant(x.type, f"{node.name}.ones", fill)
            drawn, kept = Value(x.type, "drawn"), Value(vector, "kept")
            self._add(node, _Call(op, (ones, *numbers), (drawn,), node))
            self._add(node, _Call(ops.View(vector.shape), (drawn,), (kept,), node))
            self.kept[key] = kept
        kept = self.kept[key]
        scaled = argument(0) * float(numpy_dtype(x.dtype).type(op.scale))
        chosen = ops.Formula(where(argument(1) > 0.0, scaled, 0.0), 2, title="Dropped")
        (mask,) = self.recorded.apply(ops.View(x.shape), kept)
        (result,) = self.recorded.apply(chosen, x, mask)
        self._call(node, function, (x, kept), [result], [node.output])

    def _batch_norm(self, node: Node, functions: LibraryFunctions) -> None:
        """Finds the calls for a batch normalization: in training one that also computes the batch's
        statistics and updates the running ones, and its gradient."""
        x, weight, bias, mean, var = node.inputs
        by_mean, by_var = mean.producer, var.producer
        axes = tuple(d for d in range(x.type.rank) if d != 1)
        is_of_batch = (
            by_mean is not None
            and by_var is not None
            and (by_mean.op, by_mean.inputs) == (ops.Reduce("mean", axes), (x,))
            and (by_var.op, by_var.inputs) == (ops.Variance(), (x, mean))
        )
        training, op = functions.training, node.op
        if not is_of_batch or training is None or by_mean is None or by_var is None:
            self._call(node, functions.forward, node.inputs, [node.output])
            return
        assert isinstance(op, ops.BatchNorm)
        inverse_of = ops.Formula(1.0 / sqrt(argument(0) + op.eps), title="Inverse")
        (inverse,) = self.recorded.apply(inverse_of, var)
        inputs, outputs = [x, weight, bias], [node.output, mean, inverse]
        update = self._moved(mean, var, x.type.size // mean.type.size)
        if update is not None:
            factor, old, new = update
            inputs, outputs = [*inputs, *old], [*outputs, *new]
            training = LibraryFunction(
                training.name, (*training.numbers, factor), training.precision
            )
        if not self._call(node, training, inputs, outputs):
            return
        if functions.backward is None:
            return
        for gradient, results in self._differentiated(node):
            self._batch_norm_gradient(
                node, functions.backward, gradient, results, (by_mean, by_var), inverse
            )

    def _moved(
        self, mean: Value, var: Value, count: int
    ) -> tuple[float, tuple[Value, Value], tuple[Value, Value]] | None:
        """The update of running statistics by the batch's ``mean`` and ``var``: its factor, the old
        mean and variance, and the new ones; None if there is no such update.

        ``count``: elements for each channel.
        """
        if count < 2:
            return None
        readers = self.graph.readers
        unbiased = argument(0) * (count / (count - 1))
        unbiased_nodes = [
            n for n in readers.get(var, ()) if getattr(n.op, "body", None) == unbiased
        ]
        pairs = (
            (a, b)
            for unbiased_node in unbiased_nodes
            for a in readers[mean]
            for b in readers[unbiased_node.output]
        )
        for by_mean, by_var in pairs:
            factor = _factor(by_mean)
            if factor is None or _factor(by_var) != factor:
                continue
            if by_mean.inputs[1] is mean and by_var.inputs[1].producer in unbiased_nodes:
                old = (by_mean.inputs[0], by_var.inputs[0])
                return factor, old, (by_mean.output, by_var.output)
        return None

    def _batch_norm_gradient(
        self,
        node: Node,
        function: LibraryFunction,
        gradient: Value,
        results: Sequence[Value | None],
        statistics: tuple[Node, Node],
        inverse: Value,
    ) -> None:
        """Finds the call for the gradient of a batch normalization in training.

        The graph adds the gradient for the input up from three: the direct one, and those through
        the batch's variance and mean.
        """
        x, weight, _, mean, _ = node.inputs
        direct, by_weight, by_bias, by_mean, by_var = results
        assert direct and by_weight and by_bias and by_mean and by_var
        if not any(each in self.recorded for each in (direct, by_weight)):
            return
        (through_var, _), (through_mean,) = (
            self.recorded.gradients(statistics[1], by_var),
            self.recorded.gradients(statistics[0], by_mean),
        )
        assert through_var and through_mean

        def summed(first: Value) -> Value:
            for part in (through_var, through_mean):
                (first,) = self.recorded.apply(ops.Add(), first, part)
            return first

        total = summed(direct)
        inputs = (x, gradient, weight, mean, inverse)
        gradients = [total, by_weight, by_bias]
        accumulated = None
        if total not in self.recorded:
            for reader in self.graph.readers.get(direct, ()):
                if isinstance(reader.op, ops.Add) and reader.inputs[1] is direct:
                    sum_of_all = summed(reader.output)
                    if sum_of_all in self.recorded:
                        accumulated = (reader.inputs[0], sum_of_all)
        parameter_gradients = [each for each in (by_weight, by_bias) if each in self.recorded]
        ends = [*parameter_gradients, *([total] if total in self.recorded else [])]
        if accumulated is not None:
            ends.append(accumulated[1])
        if direct in self.recorded and total not in self.recorded and accumulated is None:
            return  # the graph adds up the three gradients in another order
        if not ends or not self._call(node, function, inputs, gradients, before=ends):
            return
        if accumulated is not None:
            before, sum_of_all = accumulated
            assert sum_of_all.producer is not None
            self._add(sum_of_all.producer, _Call(ops.Add(), (before, total), (sum_of_all,), node))

    # Calls

    def _differentiated(self, node: Node) -> Iterator[tuple[Value, Sequence[Value | None]]]:
        """The gradients of a node's output in the graph, each with the gradients of the node's
        inputs that its rule records for it."""
        excluded = {*node.inputs, node.output}
        operands = [v for after in self.after.get(node.name, ()) for v in after.inputs]
        for value in dict.fromkeys(operands):
            if value.type == node.output.type and value not in excluded:
                try:
                    yield value, self.recorded.gradients(node, value)
                except UnsupportedError:
                    return

    def _call(
        self,
        node: Node,
        function: LibraryFunction,
        inputs: Sequence[Value],
        results: Sequence[Value],
        places: Sequence[Value] | None = None,
        before: Iterable[Value] | None = None,
    ) -> bool:
        """Adds a call that computes values by a library function, before the first node that
        computes one of them; returns False if an operand is computed after that node, if another
        call computes a value already, or if the passes have no fuel.

        results: values whose recorded nodes define what the function computes.
        places: the values of the graph that the call replaces; by default the results.
        before: the values before the first of which the call is inserted; by default ``places``.
        """
        places = results if places is None else places
        ends = places if before is None else before
        position = self.graph.position
        producers = [v.producer for v in ends if v in self.recorded]
        first = min((n for n in producers if n is not None), key=position.__getitem__)
        late = [
            value
            for value in inputs
            if value in self.recorded and position[_producer(value)] >= position[first]
        ]
        if late or any(v in self.computed for v in places if v in self.recorded):
            return False
        op = LayerFunction.of(body_of(inputs, results, node.name), function)
        if not self.context.allow(f"compute {places[0].name} by {function.name}"):
            return False
        self._add(first, _Call(op, tuple(inputs), tuple(places), node))
        return True

    def _add(self, before: Node, call: _Call) -> None:
        self.calls.setdefault(before, []).append(call)
        self.computed.update(call.outputs)

    def rewritten(self) -> Graph:
        """The graph with all calls, without nodes whose results calls compute."""
        rewriter = Rewriter(self.graph)
        for node in self.graph.nodes:
            for call in self.calls.get(node, ()):
                inputs = [rewriter.value(value) for value in call.inputs]
                producer = call.outputs[0].producer
                if call.outputs[0] in self.recorded and producer is not None:
                    name = producer.name
                else:
                    name = rewriter.fresh(f"{call.node.name}.{call.op.name}")
                new = rewriter.add(call.op, inputs, name, call.node.source)
                for old, value in zip(call.outputs, new.outputs, strict=True):
                    rewriter.replace(old, value)
            if not all(value in self.computed for value in node.outputs):
                rewriter.keep(node)
        return rewriter.finish()

    def note_refusals(self, graph: Graph) -> None:
        """Notes which nodes of the new graph are computed by kernels of our own, and why."""
        needed: set[Node | None] = {value.producer for value in graph.results}
        refused: dict[tuple[str, str], list[str]] = {}
        for node in reversed(graph.nodes):
            if node in needed:
                needed.update(value.producer for value in node.inputs)
                if isinstance(node.op, LayerFunction):
                    continue  # which may have the name of what it takes the place of
                if (reason := self.refused.get(node.name)) is not None:
                    refused.setdefault((node.op.name, reason), []).append(node.name)
        for (name, reason), nodes in reversed(refused.items()):
            more = f" and {len(nodes) - _SHOWN} others" if len(nodes) > _SHOWN else ""
            shown = ", ".join(nodes[: -_SHOWN - 1 : -1])
            self.context.notes[name] = f"{reason}; a kernel of ours computes {shown}{more}"


def _producer(value: Value) -> Node:
    assert value.producer is not None
    return value.producer


def _factor(node: Node) -> float | None:
    """The factor by which a node interpolates from its first operand to its second one; None if it
    does something else."""
    op = node.op
    if not isinstance(op, ops.Formula) or len(node.inputs) != 2:
        return None
    old, new = argument(0), argument(1)
    for line in linearize(op.body):
        if line.op == "constant" and line.value is not None:
            factor = constant(float(line.value))
            if number(old * (1.0 - factor) + new * factor) == op.body:
                return float(line.value)
    return None


KEEP_LAYERS = Pass("keep_layers", keep_layers, requires=("freeze",))
