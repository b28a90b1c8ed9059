"""The model being written: nodes, initializers, and names that none has twice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from minidnn.errors import UnsupportedError
from minidnn.graph.ir import Constant, Node, State, Value
from minidnn.graph.operator import Operator
from minidnn.graph.types import numpy_dtype

#: minidnn's dtypes -> ``TensorProto.DataType``.
DATA_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
}

#: Writes one node: gets the writer, the node and the names of its operands, gives its output's.
Write = Callable[["Writer", Node, list[str]], str]


class Writer:
    """Collects what a model consists of."""

    def __init__(self, onnx: ModuleType, opset: int) -> None:
        self.onnx = onnx
        self.opset = opset
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._taken: set[str] = set()
        self._names: dict[Value, str] = {}

    def fresh(self, name: str) -> str:
        """The name, or the first of ``name_1``, ``name_2``, ... that nothing has."""
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def name(self, value: Value) -> str:
        """The name of a value; a constant becomes an initializer when it is first asked for."""
        if value not in self._names and isinstance(value, Constant):
            self._names[value] = self.constant(value.data, value.name)
        if isinstance(value, State):
            raise UnsupportedError(
                f"state {value.name!r} lives across runs, and ONNX has none; export a network or a "
                "graph without states"
            )
        return self._names[value]

    def bind(self, value: Value, name: str) -> None:
        self._names[value] = name

    def constant(self, array: Any, name: str = "constant") -> str:
        """An initializer."""
        fresh = self.fresh(name)
        data = np.ascontiguousarray(array).reshape(np.shape(array))
        self.initializers.append(self.onnx.numpy_helper.from_array(data, fresh))
        return fresh

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(list(values), np.int64))

    def number(self, value: float, dtype: str) -> str:
        """A single number of that dtype."""
        return self.constant(np.array(value, numpy_dtype(dtype)), "number")

    def add(self, kind: str, inputs: Sequence[str], name: str | None = None, **given: Any) -> str:
        """A node with one output, whose name it gives."""
        output = self.fresh(name or kind.lower())
        node = self.onnx.helper.make_node(kind, list(inputs), [output], name=output, **given)
        self.nodes.append(node)
        return output

    def reshape(self, x: str, shape: Sequence[int], name: str | None = None) -> str:
        return self.add("Reshape", [x, self.integers(shape)], name, allowzero=0)

    def refuse(self, node: Node, reason: str) -> UnsupportedError:
        return UnsupportedError(
            f"node {node.name!r} ({node.op}) has no counterpart in ONNX: {reason}"
        )


class Writers:
    """Functions by the operators that they write."""

    def __init__(self) -> None:
        self._known: dict[type[Operator], Write] = {}

    def __call__(self, *kinds: type[Operator]) -> Callable[[Write], Write]:
        def register(write: Write) -> Write:
            for kind in kinds:
                self._known[kind] = write
            return write

        return register

    @property
    def known(self) -> Mapping[type[Operator], Write]:
        return self._known
