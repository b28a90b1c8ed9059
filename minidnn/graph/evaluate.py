"""Evaluates a graph with NumPy, one node at a time: the reference semantics of the graph IR."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence

import numpy as np

from minidnn.errors import GraphError, MiniDNNError, OutOfMemoryError
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.types import numpy_dtype

Observer = Callable[[Node, tuple[np.ndarray, ...]], None]


def evaluate(
    graph: Graph,
    inputs: Sequence[np.ndarray],
    dtype: str | None = None,
    observe: Observer | None = None,
    states: MutableMapping[str, np.ndarray] | None = None,
) -> tuple[np.ndarray, ...]:
    """The graph's outputs for its inputs.

    ``dtype`` ("float64" for an oracle) replaces the dtype of every floating-point value.
    ``observe`` is called with each node and its outputs.  A value is freed after its last use.
    ``states`` holds the arrays of states by name; the updated arrays are stored there once every
    node was computed.  A state that it lacks begins with its initial array.
    An error names the node.  An output may be one of the inputs, or share memory with one.
    """
    if len(inputs) != len(graph.inputs):
        names = ", ".join(value.name for value in graph.inputs)
        raise GraphError(
            f"graph {graph.name!r} takes {len(graph.inputs)} inputs ({names}), got {len(inputs)}"
        )
    values: dict[Value, np.ndarray] = {}
    for value, array in zip(graph.inputs, inputs, strict=True):
        if np.shape(array) != value.shape:
            raise GraphError(
                f"input {value.name!r} has shape {np.shape(array)}; valid is {value.shape}"
            )
        values[value] = _as(array, value, dtype)
    for state in graph.states:
        current = None if states is None else states.get(state.name)
        values[state] = _as(state.data if current is None else current, state, dtype)
    last_use = _last_use(graph)
    for node in graph.nodes:
        operands = [
            _as(v.data, v, dtype) if isinstance(v, Constant) else values[v] for v in node.inputs
        ]
        try:
            results = node.op.reference(*operands)
        except MiniDNNError as error:
            raise type(error)(f"node {node.name!r} ({node.op}): {error}") from error
        except MemoryError as error:
            raise no_memory_for(node, error) from error
        except Exception as error:
            error.add_note(f"while evaluating node {node.name!r} ({node.op})")
            raise
        values.update(zip(node.outputs, results, strict=True))
        if observe is not None:
            observe(node, results)
        for value in last_use.get(node, ()):
            values.pop(value, None)
    result_arrays = {
        v: _as(v.data, v, dtype) if isinstance(v, Constant) else values[v] for v in graph.results
    }
    if states is not None:
        states.update((s.name, result_arrays[v].copy()) for s, v in graph.updates.items())
    return tuple(result_arrays[value] for value in graph.outputs)


def no_memory_for(node: Node, error: MemoryError) -> OutOfMemoryError:
    """The error to raise where NumPy had no memory to compute a node."""
    sizes = ", ".join(f"{value!r} takes {value.type.bytes} bytes" for value in node.outputs)
    reason = f" ({error})" if str(error) else ""
    return OutOfMemoryError(
        f"node {node.name!r} ({node.op}): there is no memory to compute it{reason}; {sizes}"
    )


def _as(array: np.ndarray, value: Value, dtype: str | None) -> np.ndarray:
    wanted = dtype if dtype is not None and "float" in value.dtype else value.dtype
    return np.asarray(array, numpy_dtype(wanted))


def _last_use(graph: Graph) -> dict[Node, list[Value]]:
    kept = set(graph.results)
    by_node: dict[Node, list[Value]] = {}
    for value, readers in graph.readers.items():
        last = readers[-1] if readers else value.producer
        if last is not None and value not in kept:
            by_node.setdefault(last, []).append(value)
    return by_node
