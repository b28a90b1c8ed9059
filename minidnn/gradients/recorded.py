"""Finds what a rule has recorded: the rule is applied again, to a graph that has its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minidnn.gradients import rules  # noqa: F401 (it fills the table)
from minidnn.gradients.table import Backward, rule_of
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.recorder import recording_by
from minidnn.graph.types import TensorType


class Recorded:
    """Looks up nodes of a graph by what they apply to what.

    What is not there is made, without becoming part of the graph.  So a rule that is applied again
    gives the values that it gave when the graph was differentiated.
    """

    describing = False

    def __init__(self, graph: Graph) -> None:
        self._position = graph.position
        #: With what names of those that a node's rule has recorded begin.
        self._begin = ""
        self._known: dict[object, list[Node]] = {}
        for node in graph.nodes:
            self._known.setdefault(_key(node.op, node.inputs), []).append(node)

    def apply(self, op: Operator, *operands: Value) -> tuple[Value, ...]:
        known = self._known.setdefault(_key(op, operands), [])
        same = [node for node in known if all(map(_is_same, node.inputs, operands))]
        if not same:
            same = [Node(op, operands, f"made.{op.name}")]
            known += same
        # Of two layers with one gradient each has nodes of its own.
        return next((n for n in same if n.name.startswith(self._begin)), same[0]).outputs

    def constant(
        self, owner: object, name: str, type: TensorType, data: Callable[[], np.ndarray]
    ) -> Constant:
        return Constant(type, name, data)

    def __contains__(self, value: Value) -> bool:
        """Whether a node of the graph computes a value."""
        return value.producer in self._position

    def gradients(self, node: Node, gradient: Value) -> Sequence[Value | None]:
        """What the rule of a node with one output gives for all of its operands.

        UnsupportedError if it has none.
        """
        self._begin = f"{node.name}.gradient"
        try:
            with recording_by(self):
                return rule_of(node)(Backward(node, (gradient,), (True,) * len(node.inputs)))
        finally:
            self._begin = ""


def _key(op: Operator, operands: Sequence[Value]) -> object:
    """Equal constants may be different values."""
    return op, *(value.type if isinstance(value, Constant) else value for value in operands)


def _is_same(one: Value, other: Value) -> bool:
    if one is other or not isinstance(one, Constant) or not isinstance(other, Constant):
        return one is other
    return np.array_equal(one.data, other.data, equal_nan=True)
