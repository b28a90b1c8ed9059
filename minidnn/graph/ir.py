"""The graph IR: values, nodes, graphs, and the rewriter that passes use.

A graph is in single static assignment form: each value is a graph input, a constant, a state, or
the output of exactly one node, and nodes stand in an order in which every operand is computed
before it is read.  A run reads states as the run before left them; the graph's updates say what
they become after it.  Graphs, nodes and values are never changed.  A pass builds a new graph with
a :class:`Rewriter`, which keeps every node whose operands stayed the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any
from weakref import ref

import numpy as np

from minidnn._cached_property import cached_property
from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError
from minidnn.graph.arithmetic import Arithmetic
from minidnn.graph.operator import Operator
from minidnn.graph.recorder import current_recorder, is_describing
from minidnn.graph.types import FLOATS, TensorType, numpy_dtype, rounded_to


class Value(Arithmetic):
    """A tensor that a graph computes: a graph input, or an output of ``producer``."""

    __slots__ = ("name", "producer", "type")

    def __init__(self, type: TensorType, name: str, producer: Node | None = None) -> None:
        self.type = type
        self.name = name
        self.producer = producer

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    def _record(self, op: Operator, *operands: Value) -> Value:
        (output,) = current_recorder().apply(op, *operands)
        result: Value = output
        return result

    def _constant(self, array: np.ndarray, dtype: str) -> Any:
        data = rounded_to(dtype, array) if dtype in FLOATS else array.astype(numpy_dtype(dtype))
        type = TensorType(data.shape, dtype)
        return current_recorder().constant(object(), "array", type, lambda: data)

    def _is_described(self) -> bool:
        return is_describing()

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """The state for pickle, without the producer, as pickle would recurse through the graph.

        :meth:`Graph.__setstate__` sets producers again.
        """
        return None, {"type": self.type, "name": self.name, "producer": None}


class Stored(Value):
    """A value whose array is known before the graph runs.

    ``data`` may be given as a function.  It is then computed when it is first read, so that
    building and rewriting graphs spends no time on large weights.  :meth:`forget` drops the
    reference; the array can still be read while another object, such as the network, holds it.
    """

    __slots__ = ("_data", "_elsewhere", "_is_finite")
    _kind = "value"

    def __init__(
        self, type: TensorType, name: str, data: np.ndarray | Callable[[], np.ndarray]
    ) -> None:
        super().__init__(type, name)
        self._data: np.ndarray | Callable[[], np.ndarray] | None = data
        self._elsewhere: Callable[[], Any] = _no_data
        self._is_finite: bool | None = None

    @property
    def is_finite(self) -> bool:
        """Whether no element is infinite or NaN; the answer is kept when the array is forgotten."""
        if self._is_finite is None:
            self._is_finite = bool(np.isfinite(self.data).all())
        return self._is_finite

    @property
    def data(self) -> np.ndarray:
        """The array.

        GraphError if its shape or dtype is not this value's, or if it was forgotten and is gone.
        """
        data = self._data  # read once: other threads may ask for it too
        if data is None:
            data = self._elsewhere()
            if data is None:
                raise GraphError(
                    f"{self._kind} {self.name}: a compiled program has it in its own form, and "
                    "the array was let go; the network that was compiled has the arrays, and so "
                    "has its graph (minidnn.layers.build.to_graph): "
                    "minidnn.save_graph(network, path, shape) saves them"
                )
            data = (self._computed(data) if callable(data) else data).reshape(self.type.shape)
        elif callable(data):
            data = self._data = self._computed(data)
        expected = (self.type.shape, numpy_dtype(self.type.dtype))
        if (data.shape, data.dtype) != expected:
            raise GraphError(
                f"{self._kind} {self.name}: data is {data.dtype}{list(data.shape)}, "
                f"but its type is {self.type}"
            )
        return data

    def _computed(self, make: Callable[[], np.ndarray]) -> np.ndarray:
        try:
            return make()
        except MiniDNNError:
            raise
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{self._kind} {self.name}: there is no memory to compute its {self.type.bytes} "
                f"bytes, {self.type}: {error or 'nothing is left'}"
            ) from error

    def forget(self) -> None:
        """Drops the array, or the function that would compute it, keeping a weak reference."""
        data, self._data = self._data, None
        if isinstance(data, np.ndarray) and data.flags.c_contiguous:
            base = data.base  # the network may hold the array, but not this reshaped view of it
            if isinstance(base, np.ndarray) and base.flags.c_contiguous and base.size == data.size:
                data = base
        if data is not None and type(data).__weakrefoffset__:
            self._elsewhere = ref(data)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        _, state = super().__getstate__()
        return None, state | {"_data": self.data, "_elsewhere": _no_data, "_is_finite": None}


def _no_data() -> None:
    return None


class Constant(Stored):
    """A value known before the graph runs: a weight, or what passes computed from weights."""

    __slots__ = ()
    _kind = "constant"


class State(Stored):
    """A value that persists across runs: a parameter, a statistic, a momentum, a counter, a seed.

    ``data`` is its initial array.  Its name identifies it: programs that share a store share the
    states of one name (:mod:`minidnn.runtime.store`).
    """

    __slots__ = ()
    _kind = "state"


class Node:
    """One application of an operator to operands.

    ``source`` names the layer that the node comes from, for reports and errors.
    """

    __slots__ = ("inputs", "name", "op", "outputs", "source", "tensors")

    def __init__(
        self, op: Operator, inputs: Sequence[Value], name: str, source: str | None = None
    ) -> None:
        self.op = op
        self.inputs = tuple(inputs)
        self.name = name
        self.source = name if source is None else source
        try:
            types = op.infer(*(value.type for value in self.inputs))
        except GraphError as error:
            raise GraphError(f"node {name!r}: {error}") from None
        self._give(types)

    def _give(self, types: Sequence[TensorType]) -> None:
        #: The operands that are computed or given at run time.
        self.tensors = tuple(v for v in self.inputs if not isinstance(v, Constant))
        single = len(types) == 1
        self.outputs = tuple(
            Value(type, self.name if single else f"{self.name}:{i}", self)
            for i, type in enumerate(types)
        )

    def on(self, inputs: Sequence[Value], name: str | None = None) -> Node:
        """A node with the same operator on other operands.

        If the operands' types are the same, the results' types are taken over, since inferring them
        again is most of the cost of rewriting a large graph.
        """
        name = self.name if name is None else name
        if [value.type for value in inputs] != [value.type for value in self.inputs]:
            return Node(self.op, inputs, name, self.source)
        node = Node.__new__(Node)
        node.op, node.inputs, node.name, node.source = self.op, tuple(inputs), name, self.source
        node._give([value.type for value in self.outputs])
        return node

    @property
    def output(self) -> Value:
        """The output of a node with a single output."""
        (value,) = self.outputs
        return value

    def __repr__(self) -> str:
        outputs = ", ".join(map(repr, self.outputs))
        inputs = ", ".join(f"%{value.name}" for value in self.inputs)
        return f"{outputs} = {self.op}({inputs})"


class Graph:
    """Inputs, outputs, and the nodes between them in an order in which they can run."""

    def __init__(
        self,
        inputs: Iterable[Value],
        outputs: Iterable[Value],
        nodes: Iterable[Node],
        name: str = "graph",
        output_names: Iterable[str] | None = None,
        updates: Mapping[State, Value] | None = None,
    ) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.nodes = tuple(nodes)
        self.name = name
        #: Names under which outputs are returned as a dict; None for a value or a tuple.
        self.output_names = None if output_names is None else tuple(output_names)
        #: The values that states become, all at once, after every node was computed.
        self.updates: Mapping[State, Value] = updates or {}

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle, without cached properties."""
        return {key: value for key, value in vars(self).items() if not hasattr(type(self), key)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for node in self.nodes:
            for value in node.outputs:
                value.producer = node

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self  # graphs are never changed

    @cached_property
    def readers(self) -> dict[Value, tuple[Node, ...]]:
        """The nodes that read each value, each once, in order; a value nobody reads has ()."""
        by_value: dict[Value, dict[Node, None]] = {value: {} for value in self.values}
        for node in self.nodes:
            for value in node.inputs:
                by_value[value][node] = None
        return {value: tuple(nodes) for value, nodes in by_value.items()}

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values: inputs, then constants, states and node outputs as they first appear."""
        ordered = dict.fromkeys(self.inputs)
        for node in self.nodes:
            ordered.update(dict.fromkeys(node.inputs))
            ordered.update(dict.fromkeys(node.outputs))
        ordered.update(dict.fromkeys(self.outputs))
        for state, value in self.updates.items():
            ordered.update({state: None, value: None})
        return tuple(ordered)

    @cached_property
    def results(self) -> Collection[Value]:
        """The values that outlive a run, each once: outputs, and the new values of states."""
        return dict.fromkeys((*self.outputs, *self.updates.values()))

    @cached_property
    def input_set(self) -> Collection[Value]:
        """The inputs as a set, for membership tests."""
        return frozenset(self.inputs)

    @property
    def constants(self) -> tuple[Constant, ...]:
        return tuple(value for value in self.values if isinstance(value, Constant))

    @property
    def states(self) -> tuple[State, ...]:
        """The states that the graph reads or updates; a region's body takes them as inputs."""
        return tuple(v for v in self.values if isinstance(v, State) and v not in self.input_set)

    @cached_property
    def position(self) -> dict[Node, int]:
        """The index of each node in :attr:`nodes`."""
        return {node: i for i, node in enumerate(self.nodes)}

    def only_reader(self, value: Value) -> Node | None:
        """The node that reads ``value``, if it is the only reader and the value is no result."""
        readers = self.readers.get(value, ())
        return readers[0] if len(readers) == 1 and value not in self.results else None

    def is_read(self, value: Value) -> bool:
        """Whether a node reads ``value``, or it is a result."""
        return bool(self.readers[value]) or value in self.results

    def node(self, name: str) -> Node:
        """The node named ``name``; GraphError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.nodes]
        near = get_close_matches(name, names, 3, 0.0)
        raise GraphError(
            f"graph {self.name!r} has no node {name!r}; valid are its {len(names)} nodes' names"
            f"{', such as ' if near else ''}{', '.join(map(repr, near))}"
        )

    def __str__(self) -> str:
        """One line per node, with the bodies of fused regions indented below; the same text in
        every process."""
        return self._text("")

    def _text(self, indent: str) -> str:
        inputs = ", ".join(map(repr, self.inputs))
        lines = [f"{indent}{self.name}({inputs}) {{"]
        for node in self.nodes:
            outputs = ", ".join(map(repr, node.outputs))
            operands = ", ".join(map(_operand, node.inputs))
            lines.append(f"{indent}  {outputs} = {node.op}({operands})")
            body = getattr(node.op, "body", None)
            if isinstance(body, Graph):
                lines.append(body._text(indent + "    "))
        names = self.output_names or ("",) * len(self.outputs)
        returned = ", ".join(
            f"{name}: {_operand(value)}" if name else _operand(value)
            for name, value in zip(names, self.outputs, strict=True)
        )
        lines += [
            f"{indent}  {_operand(state)} <- {_operand(value)}"
            for state, value in self.updates.items()
        ]
        lines += [f"{indent}  return {returned}", f"{indent}}}"]
        return "\n".join(lines)


def _operand(value: Value) -> str:
    sigil = "@" if isinstance(value, Constant) else "$" if isinstance(value, State) else "%"
    return sigil + value.name


def live_nodes(nodes: Sequence[Node], results: Iterable[Value]) -> list[Node]:
    """The nodes that ``results`` depend on, in order."""
    needed = {value.producer for value in results}
    live = []
    for node in reversed(nodes):
        if node in needed:
            live.append(node)
            needed.update(value.producer for value in node.inputs)
    return live[::-1]


def drop_unread(graph: Graph) -> Graph:
    """The graph without dead nodes."""
    nodes, names = live_nodes(graph.nodes, graph.results), graph.output_names
    return Graph(graph.inputs, graph.outputs, nodes, graph.name, names, updates=graph.updates)


def fresh(name: str, used: set[str], separator: str = ".") -> str:
    """Returns the first of ``name``, ``name.1``, ``name.2``, ... that is not among the used names,
    and adds it to these."""
    candidate, count = name, 0
    while candidate in used:
        count += 1
        candidate = f"{name}{separator}{count}"
    used.add(candidate)
    return candidate


class Rewriter:
    """Builds a new graph from an old one, node by node.

    A pass walks over the old graph's nodes, in their order or in another, and calls :meth:`keep`,
    or :meth:`add` and :meth:`replace`, and at last :meth:`finish`.  Names stay unique.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changes = 0
        self._map: dict[Value, Value] = {}
        self._nodes: list[Node] = []
        self._names = {node.name for node in graph.nodes}

    def value(self, old: Value) -> Value:
        """The value of the new graph that replaces ``old``, or ``old`` itself if nothing does."""
        return self._map.get(old, old)

    def keep(self, node: Node) -> None:
        """Takes over a node of the old graph, with its operands replaced."""
        inputs = tuple(map(self.value, node.inputs))
        if inputs == node.inputs:
            self._nodes.append(node)
            return
        new = node.on(inputs)
        self._nodes.append(new)
        self._map.update(zip(node.outputs, new.outputs, strict=True))

    def add(
        self, op: Operator, inputs: Sequence[Value], name: str, source: str | None = None
    ) -> Node:
        """Appends a node on operands of the new graph (see :meth:`value`)."""
        node = Node(op, inputs, name, source)
        self._nodes.append(node)
        self.changes += 1
        return node

    def fresh(self, name: str) -> str:
        """A unique node name: ``name``, or the first free one of ``name.1``, ``name.2``, ..."""
        return fresh(name, self._names)

    def replace(self, old: Value, new: Value) -> None:
        """Makes ``new``, of the new graph, replace ``old``, of the old graph, from now on."""
        if old.type != new.type:
            raise GraphError(f"cannot replace {old!r} by {new!r}: the types differ")
        self._map[old] = new
        self.changes += 1

    def finish(self) -> Graph:
        """The new graph; the old one itself if nothing was changed."""
        old = self.graph
        if not self.changes and tuple(self._nodes) == old.nodes:
            return old
        return Graph(
            old.inputs,
            map(self.value, old.outputs),
            self._nodes,
            old.name,
            old.output_names,
            updates={state: self.value(value) for state, value in old.updates.items()},
        )
