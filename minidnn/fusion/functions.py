"""Layers, and gradients of layers, that one function of a library computes as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from minidnn.graph.evaluate import evaluate
from minidnn.graph.ir import Constant, Graph, Node, Value
from minidnn.graph.operator import Operator
from minidnn.graph.registry import register
from minidnn.graph.types import FLOATS, TensorType

__all__ = ["LayerFunction", "LibraryFunction", "LibraryFunctions", "body_of"]

#: Values of fewer axes are vectors over channels: scales, shifts, statistics.
LEAST_RANK = 2

#: The dtypes of a function's tensors where values are kept in half precision: "given" is half
#: precision if all of them are, with vectors in float32; "half" is half precision for all, as in
#: products; "full" is float32 for all.
Precision = Literal["given", "half", "full"]


@dataclass(frozen=True)
class LibraryFunction:
    """A library's function: its name, the numbers that it is given besides tensors, its
    precision."""

    name: str
    numbers: tuple[float, ...] = ()
    precision: Precision = "given"


@dataclass(frozen=True)
class LibraryFunctions:
    """The functions that a library has for a layer: for its result, for its gradient for its input,
    and for normalization by the statistics of the batch."""

    forward: LibraryFunction
    backward: LibraryFunction | None = None
    training: LibraryFunction | None = None


@register
@dataclass(frozen=True, eq=False)
class LayerFunction(Operator):
    """Nodes whose results one function of a library computes: ``body`` says what it means.

    Operands are the body's inputs, constants among them, in the order in which the library takes
    them.  Tensors may be of a narrower dtype than the body's, as :data:`Precision` says.
    """

    body: Graph = field(repr=False)
    function: str
    numbers: tuple[float, ...] = ()
    precision: Precision = "given"

    kind = "function"

    @classmethod
    def of(cls, body: Graph, function: LibraryFunction) -> LayerFunction:
        """Returns the operator that computes a body by a library's function."""
        return cls(body, function.name, function.numbers, function.precision)

    @property
    def name(self) -> str:
        return self.function

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.numbers))})"

    def narrows(self, type: TensorType) -> bool:
        """Whether an operand or result of the body is in half precision where the others are."""
        wide = self.precision == "given" and type.rank < LEAST_RANK
        return type.dtype in FLOATS and not wide and self.precision != "full"

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        wanted = [value.type for value in self.body.inputs]
        narrow = [t.dtype for t, own in zip(inputs, wanted, strict=False) if self.narrows(own)]

        def of(type: TensorType) -> TensorType:
            return replace(type, dtype=narrow[0]) if narrow and self.narrows(type) else type

        valid = [of(type) for type in wanted]
        given = ", ".join(map(str, inputs))
        self.require(
            list(inputs) == valid, f"operands are {given}; valid are {', '.join(map(str, valid))}"
        )
        return tuple(of(value.type) for value in self.body.outputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        wide = any(array.dtype == np.float64 for array in inputs)
        results = evaluate(self.body, inputs, "float64" if wide else None)
        pairs = zip(self.body.inputs, inputs, strict=True)
        narrow = next((array.dtype for value, array in pairs if self.narrows(value.type)), None)
        return tuple(
            array.astype(narrow) if narrow is not None and self.narrows(value.type) else array
            for value, array in zip(self.body.outputs, results, strict=True)
        )

    def operations(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]) -> int:
        return sum(
            node.op.operations(
                tuple(value.type for value in node.inputs),
                tuple(value.type for value in node.outputs),
            )
            for node in self.body.nodes
        )


def body_of(inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> Graph:
    """Returns the nodes that compute the outputs from the inputs, as a graph of its own."""
    operands = [Value(value.type, f"operand{i}") for i, value in enumerate(inputs)]
    known = dict(zip(inputs, operands, strict=True))
    nodes: list[Node] = []

    def of(value: Value) -> Value:
        if value not in known and not isinstance(value, Constant):
            node = value.producer
            assert node is not None, f"{value!r} is no operand of {name}"
            new = Node(node.op, [of(each) for each in node.inputs], node.name, node.source)
            nodes.append(new)
            known.update(zip(node.outputs, new.outputs, strict=True))
        return known.get(value, value)

    results = [of(value) for value in outputs]
    return Graph(operands, results, nodes, name)
