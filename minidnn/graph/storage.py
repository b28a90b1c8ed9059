"""A graph as a JSON document and named arrays, and back.

::

    {"version": 1,
     "constants": {"conv.weight": {"type": ["float32", [8, 3, 3, 3]]}, ...},
     "graph": {"name": "Net",
               "inputs": [["x", ["float32", [1, 3, 8, 8]]]],
               "nodes": [{"name": "conv", "operator": {"Conv2d": {"stride": [1, 1], ...}},
                          "inputs": [0, "conv.weight"]}, ...],
               "outputs": [7],
               "output_names": null}}

An operand is the key of a constant or state, or the number of a value: a graph's inputs come first,
then its nodes' outputs, in order.  A node's operands must have smaller numbers than its own
outputs, so there are no cycles.  Types of nodes are inferred again on reading.  A constant that
several bodies share is saved once.  A state is saved among the constants, marked ``"state": true``,
with its initial array; a graph's ``"updates": [[state, value], ...]`` are the values that states
become.  ``"layouts"`` and ``"placements"`` of a graph are ignored: passes compute them again.
:mod:`minidnn.storage` writes document and arrays into one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.checker import check, check_is_graph
from minidnn.graph.ir import Constant, Graph, Node, State, Stored, Value
from minidnn.graph.registry import brief, is_text, read_operator, write_operator
from minidnn.graph.types import TensorType, numpy_dtype

VERSION = 1
#: How deep bodies may be nested in each other.
MAX_NESTING = 8
_TYPE = '["dtype", [sizes...]]'


def to_document(graph: Graph) -> tuple[dict[str, Any], dict[str, Stored]]:
    """The document of a legal graph, and its constants and states by their keys.

    GraphError names the node whose operator cannot be saved.
    """
    check_is_graph(graph)
    writer = _Writer()
    try:
        check(graph)
        body = writer.write(graph)
    except GraphError as error:
        raise GraphError(f"cannot save graph {graph.name!r}: {error}") from None
    constants = {key: constant for constant, key in writer.keys.items()}
    described: dict[str, Any] = {}
    for key, constant in constants.items():
        described[key] = {"type": _write_type(constant.type)}
        if constant.name != key:
            described[key]["name"] = constant.name
        if isinstance(constant, State):
            described[key]["state"] = True
    return {"version": VERSION, "constants": described, "graph": body}, constants


def from_document(document: Any, arrays: Mapping[str, np.ndarray]) -> Graph:
    """The graph of a document that :func:`to_document` made, with ``arrays`` as its constants.

    Raises GraphError, which says what is wrong, for anything else; nothing is ever executed.
    """
    version, constants, body = _members(document, "the document", "version", "constants", "graph")
    if type(version) is not int or version != VERSION:
        raise GraphError(f"the document has version {brief(version)}; valid is {VERSION}")
    if not isinstance(constants, dict):
        raise GraphError(f"constants are {brief(constants)}; valid is an object")
    reader = _Reader({key: _read_constant(key, item, arrays) for key, item in constants.items()})
    try:
        graph = reader.read(body)
    except RecursionError:
        raise GraphError("attributes are nested too deep") from None
    for what, keys in (("constant", constants), ("array", arrays)):
        for key in keys:
            if key not in reader.used:
                raise GraphError(f"nothing reads the {what} {brief(key)}")
    return graph


class _Writer:
    """Writes a graph, and the graphs in its attributes, and collects their constants and states."""

    def __init__(self) -> None:
        #: The keys of constants and states, in the order in which nodes first read them.
        self.keys: dict[Stored, str] = {}
        self._taken: set[str] = set()
        self._nesting = 0

    def write(self, graph: Graph) -> dict[str, Any]:
        _check_name("graph", graph.name)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise GraphError(f"graphs are nested deeper than {MAX_NESTING} levels")
        numbers: dict[Value, int] = {}
        for value in graph.inputs:
            _check_name("input", value.name)
            numbers[value] = len(numbers)
        nodes = []
        for node in graph.nodes:
            _check_name("node", node.name)
            try:
                operator = write_operator(node.op, self.write)
            except GraphError as error:
                raise GraphError(f"node {node.name!r} ({node.op.name}): {error}") from None
            inputs = [self._reference(value, numbers) for value in node.inputs]
            nodes.append({"name": node.name, "operator": operator, "inputs": inputs})
            if node.source != node.name:
                nodes[-1]["source"] = _check_name("source", node.source)
            for value in node.outputs:
                numbers[value] = len(numbers)
        self._nesting -= 1
        names = graph.output_names
        document: dict[str, Any] = {
            "name": graph.name,
            "inputs": [[value.name, _write_type(value.type)] for value in graph.inputs],
            "nodes": nodes,
            "outputs": [self._reference(value, numbers) for value in graph.outputs],
            "output_names": None if names is None else [_check_name("output", n) for n in names],
        }
        if graph.updates:
            document["updates"] = [
                [self._reference(state, numbers), self._reference(value, numbers)]
                for state, value in graph.updates.items()
            ]
        return document

    def _reference(self, value: Value, numbers: dict[Value, int]) -> int | str:
        if value in numbers:  # this includes a state that is an input of a body
            return numbers[value]
        if not isinstance(value, Stored):
            raise GraphError(f"{value!r} is read, but neither an input nor computed before")
        if value not in self.keys:
            key, count = _check_name("constant", value.name), 0
            while key in self._taken:
                count += 1
                key = f"{value.name}#{count}"
            self._taken.add(key)
            self.keys[value] = key
        return self.keys[value]


class _Reader:
    """Reads a graph, and the graphs in its attributes, and notes which constants they use."""

    def __init__(self, constants: dict[str, Stored]) -> None:
        self.constants = constants
        self.used: set[str] = set()
        self._nesting = 0

    def read(self, data: Any) -> Graph:
        name, inputs, nodes, outputs, output_names, updates, *_ = _members(
            data,
            "a graph",
            *("name", "inputs", "nodes", "outputs", "output_names"),
            optional=("updates", "layouts", "placements"),
        )
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise GraphError(f"graphs are nested deeper than {MAX_NESTING} levels")
        _check_name("graph", name)
        values = [self._input(item) for item in _items("inputs", inputs)]
        input_count = len(values)
        graph_nodes = [self._node(i, item, values) for i, item in enumerate(_items("nodes", nodes))]
        graph = Graph(
            values[:input_count],
            [self._value("outputs", item, values) for item in _items("outputs", outputs)],
            graph_nodes,
            name,
            None
            if output_names is None
            else [_check_name("output", item) for item in _items("output_names", output_names)],
            self._updates(updates, values),
        )
        check(graph)
        self._nesting -= 1
        return graph

    def _input(self, data: Any) -> Value:
        if not isinstance(data, list) or len(data) != 2:
            raise GraphError(f"input {brief(data)}; valid is [name, {_TYPE}]")
        name = _check_name("input", data[0])
        return Value(_read_type(f"input {brief(name)}", data[1]), name)

    def _node(self, index: int, data: Any, values: list[Value]) -> Node:
        what = f"node {index}"
        name, operator, inputs, source = _members(
            data, what, "name", "operator", "inputs", optional=("source",)
        )
        what = f"node {brief(_check_name('node', name))}"
        if source is not None:
            _check_name("source", source)
        try:
            op = read_operator(operator, self.read)
        except GraphError as error:
            raise GraphError(f"{what}: {error}") from None
        operands = [self._value(what, item, values) for item in _items(what, inputs)]
        try:
            node = Node(op, operands, name, source)
        except GraphError:
            raise
        except Exception as error:
            # Attributes of the right types may still be beyond what an operator computes with.
            raise GraphError(
                f"{what}: {op.name} of {brief(operator)} does not work on its operands: {error!r}"
            ) from error
        values.extend(node.outputs)
        return node

    def _updates(self, data: Any, values: list[Value]) -> dict[State, Value]:
        updates: dict[State, Value] = {}
        for item in [] if data is None else _items("updates", data):
            match item:
                case [str(key), value] if is_text(key):
                    state = self._value("updates", key, values)
                    if not isinstance(state, State) or state in updates:
                        raise GraphError(
                            f"updates: {brief(key)}; valid are states, each of them once"
                        )
                    updates[state] = self._value("updates", value, values)
                case _:
                    raise GraphError(f"updates: {brief(item)}; valid is [state, value]")
        return updates

    def _value(self, what: str, data: Any, values: list[Value]) -> Value:
        if isinstance(data, str):
            if data not in self.constants:
                raise GraphError(f"{what}: there is no constant or state {brief(data)}")
            self.used.add(data)
            return self.constants[data]
        if type(data) is not int or not 0 <= data < len(values):
            raise GraphError(
                f"{what}: operand {brief(data)}; valid is the name of a constant or state, or the "
                f"number of one of the {len(values)} values computed before it (from 0)"
            )
        return values[data]


def _read_constant(key: str, data: Any, arrays: Mapping[str, np.ndarray]) -> Stored:
    what = f"constant {brief(key)}"
    type_data, name, state = _members(data, what, "type", optional=("name", "state"))
    if state not in (None, True):
        raise GraphError(f"{what}: state is {brief(state)}; valid is true, or nothing")
    type = _read_type(what, type_data)
    if key not in arrays:
        raise GraphError(f"{what}: its array is missing")
    array = arrays[key]
    if array.shape != type.shape or array.dtype != numpy_dtype(type.dtype):
        raise GraphError(
            f"{what}: its array is {array.dtype}{list(array.shape)}; valid is "
            f"{numpy_dtype(type.dtype)}{list(type.shape)}"
        )
    kind = State if state else Constant
    return kind(type, _check_name("constant", key if name is None else name), array)


def _write_type(type: TensorType) -> list[Any]:
    return [type.dtype, list(type.shape)]


def _read_type(what: str, data: Any) -> TensorType:
    match data:
        case [str(dtype), [*sizes]] if all(_is_size(size) for size in sizes):
            try:
                return TensorType(tuple(sizes), dtype)
            except GraphError as error:
                raise GraphError(f"{what}: {error}") from None
    raise GraphError(f"{what}: type {brief(data)}; valid is {_TYPE} with sizes of 0 or more")


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < 2**63


def _check_name(what: str, name: Any) -> str:
    if not is_text(name):
        raise GraphError(f"{what} name {brief(name)}; valid is a text of valid Unicode")
    return str(name)


def _items(what: str, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise GraphError(f"{what}: {brief(data)}; valid is a list")
    return data


def _members(data: Any, what: str, *names: str, optional: tuple[str, ...] = ()) -> list[Any]:
    """The members of a JSON object, which must have all of ``names`` and may have ``optional``
    ones; None for a member that is absent."""
    if not isinstance(data, dict) or not set(names) <= set(data) <= {*names, *optional}:
        found = f"members {brief(sorted(data))}" if isinstance(data, dict) else brief(data)
        raise GraphError(f"{what} has {found}; valid are {', '.join(names)}")
    return [data.get(name) for name in (*names, *optional)]
