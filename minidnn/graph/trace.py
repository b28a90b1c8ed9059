"""Tracing: while a trace is open, operators applied to values become nodes of its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.ir import Constant, Graph, Node, State, Stored, Value
from minidnn.graph.operator import Operator
from minidnn.graph.recorder import current_recorder, is_recording, recording_by
from minidnn.graph.symbolic import Symbolic
from minidnn.graph.types import TensorType


class Trace:
    """Collects the nodes that layers apply, and names them after the layers' paths."""

    def __init__(
        self,
        name: str = "graph",
        shapes_only: bool = False,
        states: bool = False,
        training: bool = False,
    ) -> None:
        self.name = name
        #: Whether layers behave as in training: dropout, batch statistics.
        self.training = training
        #: The number of ranks over whose batches statistics are taken.
        self.ranks = 1
        #: Whether parameters become states instead of constants.
        self.states = states
        #: Whether only shapes are inferred: parameters then stay unbound and have no data.
        self.shapes_only = shapes_only
        self.inputs: list[Value] = []
        self.nodes: list[Node] = []
        #: Whether user code describes the network that is being recorded.
        self.describing = False
        #: Paths of the network's layers, and names of its parameters, by the objects' ids.
        self.layer_paths: dict[int, str] = {}
        self.parameter_names: dict[int, str] = {}
        self._known: set[Value] = set()
        self._stored: dict[object, Stored] = {}
        self._updates: dict[State, Value] = {}
        self._names: dict[str, int] = {}
        self._path: list[str] = []
        self._leaf = False
        self._streams = 0

    def adopt(self, graph: Graph) -> None:
        """Continues after a finished graph, whose inputs, nodes and updates it takes over."""
        self.inputs += graph.inputs
        self.nodes += graph.nodes
        self._known.update(graph.values)
        self._updates.update(graph.updates)
        self._stored.update((state.name, state) for state in graph.states)
        self._names |= {value.name: 1 for value in graph.values if value.producer is None}
        self._names |= {node.name: 1 for node in graph.nodes}

    def input(self, type: TensorType, name: str) -> Value:
        value = Value(type, self._unique(name))
        self.inputs.append(value)
        self._known.add(value)
        return value

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Constant:
        """A constant, the same one each time its ``owner`` is asked for."""
        constant = self._stored.get(owner)
        if constant is None:
            constant = self._stored[owner] = Constant(type, self._unique(name), data)
        assert isinstance(constant, Constant)
        return constant

    def state(
        self, owner: object, name: str, type: TensorType, initial: Callable[[], np.ndarray]
    ) -> State:
        """A state, the same one each time its ``owner`` is asked for."""
        state = self._stored.get(owner)
        if state is None:
            state = self._stored[owner] = State(type, self._unique(name), initial)
        assert isinstance(state, State)
        return state

    def update(self, state: State, value: Value) -> None:
        """Sets the value that a state becomes once the graph has run.

        GraphError if the state has an update already, or if the types differ.
        """
        if state in self._updates:
            raise GraphError(
                f"state {state.name!r} becomes {self._updates[state]!r} already; valid is one "
                f"update of each state, and {value!r} is another"
            )
        if state.type != value.type:
            raise GraphError(
                f"state {state.name!r} cannot become {value!r}; valid is a {state.type}"
            )
        self._updates[state] = value

    def latest(self, state: State) -> Value:
        """The value that a state becomes by its update so far; the state itself without one."""
        return self._updates.get(state, state)

    def update_again(self, state: State, value: Value) -> None:
        """As :meth:`update`, but replaces an earlier update, on which ``value`` builds by
        :meth:`latest`: a layer may be called several times."""
        self._updates.pop(state, None)
        self.update(state, value)

    def random_numbers(self) -> tuple[State, State, int]:
        """The states ``random.seed`` and ``random.step``, which counts runs, and a new stream
        number: the random numbers that these three determine are independent of all others."""
        type = TensorType((), "int64")
        states = [
            self.state(name, name, type, partial(np.zeros, (), np.int64))
            for name in ("random.seed", "random.step")
        ]
        if not self._streams:
            self.update(states[1], states[1] + 1)
        self._streams += 1
        return states[0], states[1], self._streams - 1

    def apply(self, op: Operator, *given: Any) -> tuple[Value, ...]:
        """Records a node of ``op`` and returns its outputs; GraphError for foreign operands."""
        operands = [each._value() if isinstance(each, Symbolic) else each for each in given]
        for i, operand in enumerate(operands):
            if not isinstance(operand, Value):
                raise GraphError(
                    f"{op.name}: operand {i} is {operand!r:.80} ({type(operand).__name__}); "
                    "valid are symbolic values: layers compute only once they are compiled"
                )
            if operand not in self._known and not isinstance(operand, Stored):
                raise GraphError(f"{op.name}: operand {operand!r} belongs to another graph")
        path = self.path
        label = op.name.lower()
        name = path if self._leaf else f"{path}.{label}" if path else label
        node = Node(op, operands, self._unique(name), path or label)
        self.nodes.append(node)
        self._known.update(node.outputs)
        return node.outputs

    @contextmanager
    def scope(self, path: str, leaf: bool) -> Iterator[None]:
        """Within the context, nodes get the layer ``path`` as source, and a leaf layer's also as
        name."""
        outer = self._leaf
        self._path.append(path)
        self._leaf = leaf
        try:
            yield
        finally:
            self._path.pop()
            self._leaf = outer

    @property
    def path(self) -> str:
        """The path of the layer whose nodes are being recorded; "" outside of all layers."""
        return self._path[-1] if self._path else ""

    def graph(self, outputs: Sequence[Value], output_names: Sequence[str] | None = None) -> Graph:
        for i, output in enumerate(outputs):
            if not isinstance(output, Value):
                raise GraphError(
                    f"output {i} of {self.name} is {output!r:.80} ({type(output).__name__}); "
                    "valid are symbolic values"
                )
            if output not in self._known and not isinstance(output, Stored):
                raise GraphError(f"output {i} of {self.name}, {output!r}, belongs to another graph")
        return Graph(
            self.inputs, outputs, self.nodes, self.name, output_names, updates=self._updates
        )

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if not count:
            return name
        return self._unique(f"{name}.{count}")


@contextmanager
def tracing(
    name: str = "graph", shapes_only: bool = False, states: bool = False, training: bool = False
) -> Iterator[Trace]:
    """Opens a trace for the context; an outer trace is restored when it is closed."""
    trace = Trace(name, shapes_only, states, training)
    with recording_by(trace):
        yield trace


def is_tracing() -> bool:
    """Whether a trace is open."""
    return is_recording()


def current_trace() -> Trace:
    """The open trace; GraphError if there is none."""
    return cast(Trace, current_recorder())  # only tracing() opens a recorder


def apply(op: Operator, *operands: Value) -> Value:
    """Adds a node with one output to the open trace and returns the output."""
    (output,) = current_trace().apply(op, *operands)
    return output


def apply_or_compute(op: Operator, *operands: Value) -> Value:
    """The output of ``op`` in the open trace; if all operands are constants, it is a constant, too,
    which is computed when it is read.

    Example::

        transposed = apply_or_compute(ops.Transpose((1, 0)), weight)
    """
    known = [value for value in operands if isinstance(value, Constant)]
    if len(known) < len(operands):
        return apply(op, *operands)
    (type,) = op.infer(*(value.type for value in known))

    def compute() -> np.ndarray:
        (result,) = op.reference(*(value.data for value in known))
        return np.asarray(result)

    name = f"{known[0].name}.{op.name.lower()}"
    return current_trace().constant((op, *known), name, type, compute)
