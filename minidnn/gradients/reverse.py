"""Reverse-mode differentiation of a graph: a walk over its nodes from last to first, each
differentiated by the rule of its operator.

Where slices cover a value, each element once, as splits of channels and packed projections do, the
gradients of the slices are concatenated.  The rule of a slice by itself pads its gradient with
zeros, and adding these up would cost one pass over the whole value for each slice.

:class:`Recorded` finds the nodes that a rule recorded, in a graph that contains them, by applying
the rule again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minidnn.errors import GraphError, did_you_mean
from minidnn.gradients import rules  # noqa: F401 (it fills the table)
from minidnn.gradients.table import Backward, rule_of
from minidnn.graph import operators as ops
from minidnn.graph.attention_patterns import (
    compose_attention,
    expand_attention,
    read_transposed_results,
)
from minidnn.graph.checker import check_is_graph
from minidnn.graph.ir import Constant, Graph, Node, Rewriter, Value, drop_unread
from minidnn.graph.operator import Operator
from minidnn.graph.operators import Slice
from minidnn.graph.recorder import recording_by
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype


def gradient(graph: Graph, loss: Value | str, of: Value | str | Iterable[Value | str]) -> Graph:
    """The graph with the gradients of a loss as further outputs.

    Args:
        graph: A graph that has not been optimized.
        loss: The value to differentiate, of one element: a value of the graph, or its name, or the
            name of an output.
        of: What to differentiate by: states, constants, inputs or any other values of the graph, or
            their names; one of them or several.

    Returns:
        A graph with the same inputs, states and updates.  Its outputs are those of ``graph``, then
        one gradient for each of ``of``, in their order and of their types.  Where outputs have
        names, that of the gradient by ``w`` is ``"gradient.w"``.  It can be differentiated again.

    Raises:
        GraphError: The loss has more elements than one or is no floating-point number; a name is
            unknown; the loss does not depend on a value, which is named.
        UnsupportedError: An operator between them has no rule; it names the node.

    >>> from minidnn.layers.build import to_graph
    >>> square = L.Sequential(L.Linear(4, 1), L.Elementwise(lambda y: y * y))
    >>> graph = to_graph(square, (1, 4), states=True)
    >>> graph = md.gradient(graph, graph.outputs[0], of=graph.states)
    >>> exe = md.compile(graph, device="reference")
    >>> loss, by_weight, by_bias = exe(np.ones((1, 4), np.float32))
    """
    check_is_graph(graph)
    find = _Finder(graph)
    target = _one_element(graph, find(loss, "loss"))
    requested = [of] if isinstance(of, (Value, str)) else list(of)
    values = [_floating(find(each, "of")) for each in requested]
    if not values:
        raise GraphError("of is empty; valid are one or more values to differentiate by")
    original = graph
    graph, target, values = _with_attention(graph, target, values)
    reached = _reached(graph, target)
    missed = [value.name for value in values if value not in reached]
    if missed:
        raise GraphError(
            f"the loss {target.name!r} does not depend on {', '.join(map(repr, missed))}; valid "
            "are values that it is computed of by floating-point numbers"
        )
    recording = _Recording(graph)
    seeds = {target: recording.filled(target.type, 1.0)}
    with recording_by(recording):
        gradients = _walk(graph, seeds, values, reached, recording)
    names = graph.output_names
    extended = Graph(
        graph.inputs,
        (*graph.outputs, *gradients),
        recording.nodes,
        graph.name,
        None if names is None else (*names, *(f"gradient.{value.name}" for value in values)),
        updates=graph.updates,
    )
    return extended if graph is original else drop_unread(read_transposed_results(extended))


def _with_attention(
    graph: Graph, target: Value, values: Sequence[Value]
) -> tuple[Graph, Value, list[Value]]:
    """The graph in which attention is one operator, and the target and values in that graph.

    A graph that contains gradients of attention, which have no rule, is expanded into products
    instead.
    """
    asked = [target, *values]
    if any(isinstance(node.op, ops.AttentionGradient) for node in graph.nodes):
        rewritten, new_value = expand_attention(graph)
    else:
        rewritten, new_value = compose_attention(graph, asked)
    target, *values = map(new_value, asked)
    return rewritten, target, values


def pullback(graph: Graph, of: Sequence[Value]) -> Graph:
    """The vector-Jacobian product: the graph that maps gradients of outputs to gradients of values.

    Args:
        graph: A graph that has not been optimized.
        of: What to differentiate by; each value must be reached, see :func:`reached_values`.

    Returns:
        A graph whose nodes begin with those of ``graph``.  Its inputs are those of ``graph``, then
        the gradient of each floating-point output; its outputs are the gradients of ``of``, in
        their order and of their types.

    Raises:
        UnsupportedError: An operator between them has no rule; it names the node.
    """
    recording = _Recording(graph)
    seeds: dict[Value, Value] = {}
    output_gradients = []
    with recording_by(recording):
        for output in graph.outputs:
            if output.dtype in FLOATS:
                seed = Value(output.type, f"gradient.{output.name}")
                output_gradients.append(seed)
                earlier = seeds.get(output)
                recording.node = output.producer or next(iter(graph.nodes), None)
                seeds[output] = seed if earlier is None else recording.sum(earlier, seed)
        gradients = _walk(graph, seeds, of, reached_values(graph), recording)
    return Graph((*graph.inputs, *output_gradients), gradients, recording.nodes, graph.name)


def reached_values(graph: Graph) -> set[Value]:
    """The floating-point values that some output depends on by way of floating-point values."""
    return _reached(graph, *(value for value in graph.outputs if value.dtype in FLOATS))


def _walk(
    graph: Graph,
    seeds: Mapping[Value, Value],
    of: Sequence[Value],
    reached: set[Value],
    recording: _Recording,
) -> list[Value]:
    """The gradients of the values ``of``, given the gradients ``seeds`` of other values.

    Args:
        graph: What is differentiated.
        seeds: Values to start from, with their gradients.
        of: What to differentiate by.
        reached: The values that the seeds' values depend on.
        recording: Records the nodes that rules apply.
    """
    dependent = _values_depending_on(graph, of)
    accumulated: dict[Value, Value] = dict(seeds)
    sliced = _sliced_values(graph)
    for node in reversed(graph.nodes):
        if node in sliced:
            # All gradients of slices are there once the walk has come to the first slice.
            if node is min(sliced[node].nodes, key=graph.position.__getitem__):
                _add_slice_gradients(sliced[node], accumulated, dependent & reached, recording)
            continue
        gradients = tuple(accumulated.get(output) for output in node.outputs)
        wanted = tuple(value in dependent and value in reached for value in node.inputs)
        if not any(wanted) or all(each is None for each in gradients):
            continue
        recording.node = node
        results = rule_of(node)(Backward(node, gradients, wanted))
        for value, result, is_wanted in zip(node.inputs, results, wanted, strict=True):
            if result is None or not is_wanted:
                continue
            if result.type != value.type:
                raise GraphError(
                    f"node {node.name!r} ({node.op}): its rule gives {result.type} for the operand "
                    f"{value!r}; valid is the operand's type"
                )
            _add(accumulated, value, result, recording)
    return [accumulated[v] if v in accumulated else recording.filled(v.type, 0.0) for v in of]


def _add_slice_gradients(
    sliced: _CoveredValue, gradients: dict[Value, Value], wanted: set[Value], recording: _Recording
) -> None:
    """Adds the concatenated gradients of the slices that cover a value to its gradient."""
    value = sliced.value
    slice_gradients = [gradients.get(node.output) for node in sliced.nodes]
    if value not in wanted or all(part is None for part in slice_gradients):
        return
    recording.node = sliced.nodes[0]
    filled = [
        recording.filled(node.output.type, 0.0) if part is None else part
        for node, part in zip(sliced.nodes, slice_gradients, strict=True)
    ]
    (result,) = recording.apply(ops.Concat(sliced.axis), *filled)
    _add(gradients, value, result, recording)


def _add(gradients: dict[Value, Value], value: Value, result: Value, recording: _Recording) -> None:
    """Adds the contribution ``result`` of one reader to the gradient of ``value``."""
    earlier = gradients.get(value)
    gradients[value] = result if earlier is None else recording.sum(earlier, result)


class _Recording:
    """The recorder that appends what rules apply to the nodes of a graph."""

    describing = False

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes)
        #: The node whose rule is being applied; recorded nodes get their name and source from it.
        #: None in a graph without nodes.
        self.node: Node | None = None
        self._names = Rewriter(graph)
        self._stored = {value.name for value in graph.values if value.producer is None}

    def apply(self, op: Operator, *operands: Value) -> tuple[Value, ...]:
        owner = self.node
        name = self._names.fresh("gradient" if owner is None else f"{owner.name}.gradient")
        node = Node(op, operands, name, "" if owner is None else owner.source)
        self.nodes.append(node)
        return node.outputs

    def sum(self, one: Value, other: Value) -> Value:
        (total,) = self.apply(ops.Add(), one, other)
        return total

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Constant:
        count, unique = 0, name
        while unique in self._stored:
            count, unique = count + 1, f"{name}.{count + 1}"
        self._stored.add(unique)
        return Constant(type, unique, data)

    def filled(self, type: TensorType, number: float) -> Constant:
        """A constant of ``type`` whose elements all are ``number``."""
        data = np.full(type.shape, number, numpy_dtype(type.dtype))
        return self.constant(object(), "gradient", type, lambda: data)


def _values_depending_on(graph: Graph, of: Iterable[Value]) -> set[Value]:
    """The floating-point values that depend on some of ``of``."""
    dependent = set(of)
    for node in graph.nodes:
        if any(value in dependent for value in node.inputs):
            dependent.update(value for value in node.outputs if value.dtype in FLOATS)
    return dependent


def _reached(graph: Graph, *targets: Value) -> set[Value]:
    """The floating-point values that some target depends on by way of floating-point values."""
    reached = set(targets)
    for node in reversed(graph.nodes):
        if any(value in reached for value in node.outputs):
            reached.update(value for value in node.inputs if value.dtype in FLOATS)
    return reached


class _Finder:
    """Finds the values of a graph that a caller gives as values or by name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph.name
        self.values = set(graph.values)
        self.named = dict(zip(graph.output_names or (), graph.outputs, strict=False))
        for value in graph.values:
            self.named.setdefault(value.name, value)

    def __call__(self, query: Any, what: str) -> Value:
        if isinstance(query, Value):
            if query in self.values:
                return query
            raise GraphError(f"{what}={query!r} is no value of graph {self.graph!r}")
        if not isinstance(query, str):
            raise GraphError(
                f"{what}={query!r:.80} is a {type(query).__name__}; valid are values of the graph "
                "and their names"
            )
        if query in self.named:
            return self.named[query]
        valid = "; valid are names of outputs, inputs, states, constants and nodes"
        hint = did_you_mean(query, self.named) or valid
        raise GraphError(f"{what}={query!r} is no value of graph {self.graph!r}{hint}")


def _one_element(graph: Graph, loss: Value) -> Value:
    if loss.type.size != 1:
        raise GraphError(
            f"loss={loss!r} of graph {graph.name!r} has {loss.type.size} elements; valid is a "
            "value of one element, such as a sum or a mean over all axes"
        )
    return _floating(loss)


def _floating(value: Value) -> Value:
    if value.dtype not in FLOATS:
        raise GraphError(f"{value!r} has no gradient; valid are dtypes {', '.join(FLOATS)}")
    return value


@dataclass(frozen=True)
class _CoveredValue:
    """A value that slices cover: the axis that is split, and the slices in order along it."""

    value: Value
    axis: int
    nodes: tuple[Node, ...]


def _sliced_values(graph: Graph) -> dict[Node, _CoveredValue]:
    """For each slice of a value that slices cover, each element once: that value."""
    found: dict[Node, _CoveredValue] = {}
    for value, readers in graph.readers.items():
        slices = [node for node in readers if isinstance(node.op, Slice)]
        if len(slices) > 1 and (sliced := _covered(value, slices)) is not None:
            found.update(dict.fromkeys(slices, sliced))
    return found


def _covered(value: Value, slices: Iterable[Node]) -> _CoveredValue | None:
    """The value with its slices in order, if they split one axis of it without gap or overlap."""
    cuts: dict[Node, tuple[int, int, int]] = {}
    for node in slices:
        op = node.op
        assert isinstance(op, Slice)
        shape = value.shape
        narrow = [d for d, size in enumerate(op.sizes) if size != shape[d]]
        if len(narrow) != 1 or any(step != 1 for step in op.steps):
            return None
        (axis,) = narrow
        cuts[node] = axis, op.starts[axis], op.sizes[axis]
    axes = {axis for axis, _, _ in cuts.values()}
    if len(axes) != 1:
        return None
    (axis,) = axes
    covered = 0
    ordered = sorted(cuts, key=lambda node: cuts[node][1])
    for node in ordered:
        _, start, size = cuts[node]
        if start != covered or size == 0:
            return None
        covered += size
    return _CoveredValue(value, axis, tuple(ordered)) if covered == value.shape[axis] else None


class Recorded:
    """A recorder that looks up nodes of a graph by their operator and operands.

    A node that the graph lacks is made, but does not become part of the graph.  So a rule that is
    applied again gives the values that it gave when the graph was differentiated.
    """

    describing = False

    def __init__(self, graph: Graph) -> None:
        self._position = graph.position
        #: The prefix of the names of nodes that the rule being applied recorded.
        self._begin = ""
        self._known: dict[object, list[Node]] = {}
        for node in graph.nodes:
            self._known.setdefault(_key(node.op, node.inputs), []).append(node)

    def apply(self, op: Operator, *operands: Value) -> tuple[Value, ...]:
        known = self._known.setdefault(_key(op, operands), [])
        matches = [node for node in known if all(map(_is_same, node.inputs, operands))]
        if not matches:
            matches = [Node(op, operands, f"made.{op.name}")]
            known += matches
        # Two layers may apply equal operators to equal operands: each prefers its own node.
        return next((n for n in matches if n.name.startswith(self._begin)), matches[0]).outputs

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Constant:
        return Constant(type, name, data)

    def __contains__(self, value: Value) -> bool:
        """Whether a node of the graph computes a value."""
        return value.producer in self._position

    def gradients(self, node: Node, gradient: Value) -> Sequence[Value | None]:
        """The gradients of all operands of a node with one output, as its rule gives them.

        UnsupportedError if the operator has no rule.
        """
        self._begin = f"{node.name}.gradient"
        try:
            with recording_by(self):
                return rule_of(node)(Backward(node, (gradient,), (True,) * len(node.inputs)))
        finally:
            self._begin = ""


def _key(op: Operator, operands: Sequence[Value]) -> object:
    """The key of a look-up; constants enter by type, as equal ones may be different values."""
    return op, *(value.type if isinstance(value, Constant) else value for value in operands)


def _is_same(a: Value, b: Value) -> bool:
    if a is b or not isinstance(a, Constant) or not isinstance(b, Constant):
        return a is b
    return a.data is b.data or a.data.tobytes() == b.data.tobytes()  # 0.0 == -0.0, NaN != NaN
