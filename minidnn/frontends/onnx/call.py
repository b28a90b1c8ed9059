"""The interface of operator converters: the node to convert, and their registry by family.

An :class:`OnnxCall` gives a converter the node's operands and attributes, checked for type; the
converter adds nodes to the graph through ``call.build`` and returns the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.frontends.onnx.build import Builder
from minidnn.frontends.onnx.tensors import read_tensor
from minidnn.graph.ir import Constant, Value

# ``AttributeProto.AttributeType`` -> the field that holds the value, and its name in messages.
_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
_KINDS = {
    1: "a number",
    2: "an integer",
    3: "a text",
    4: "a tensor",
    5: "a graph",
    6: "numbers",
    7: "integers",
    8: "texts",
}


class NotConverted(Exception):
    """A node cannot be converted.

    ``inputs`` are the graph inputs that would have to be constants for it.
    """

    def __init__(self, reason: str, inputs: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.inputs = inputs


class OnnxCall:
    """The operands, attributes and outputs of one node, as its converter sees them.

    Attributes:
        kind: the operator's name.
        opset: the version of ONNX's own domain that the node is written in.
        build: adds nodes to the graph.
        output_names: the names of the outputs; "" for one that is not wanted.
    """

    def __init__(
        self,
        proto: Any,
        opset: int,
        operands: Sequence[Value | None],
        build: Builder,
        path: Path | None,
        inline: Callable[[Any], tuple[Value, ...]],
    ) -> None:
        #: Converts the nodes of a graph attribute, such as a branch, and returns its outputs.
        self.inline = inline
        self.kind = str(proto.op_type)
        self.opset = opset
        self.build = build
        self.output_names = list(proto.output)
        self._operands = list(operands)
        self._path = path
        self._attributes = {attribute.name: attribute for attribute in proto.attribute}
        self._read: set[str] = set()
        if len(self._attributes) < len(proto.attribute):
            names = [attribute.name for attribute in proto.attribute]
            twice = next(name for name in names if names.count(name) > 1)
            raise GraphError(f"attribute {twice!r:.50} appears twice")

    def __len__(self) -> int:
        return len(self._operands)

    def refuse(self, reason: str) -> NotConverted:
        return NotConverted(reason)

    def wants(self, output: int) -> bool:
        """Whether that output has a name, so that something may read it."""
        return output < len(self.output_names) and bool(self.output_names[output])

    # Operands

    @property
    def all(self) -> list[Value]:
        """All operands of a node that takes any number of them."""
        return [self.operand(i) for i in range(max(1, len(self._operands)))]

    def operand(self, index: int) -> Value:
        """An operand that must be there; GraphError if it is not."""
        value = self.optional(index)
        if value is None:
            raise GraphError(f"operand {index} is missing; it has {len(self._operands)}")
        return value

    def optional(self, index: int) -> Value | None:
        """An operand, or None if it was left out."""
        return self._operands[index] if index < len(self._operands) else None

    def known(self, index: int, what: str) -> np.ndarray:
        """The array of an operand that must be a constant, such as a shape."""
        return self.data(self.operand(index), what)

    def maybe_known(self, index: int, what: str) -> np.ndarray | None:
        return None if self.optional(index) is None else self.known(index, what)

    def data(self, value: Value, what: str) -> np.ndarray:
        """The array of a value that must be a constant; NotConverted names ``what`` it is."""
        if isinstance(value, Constant):
            return value.data
        sources = self.build.sources(value)
        names = ", ".join(map(repr, sorted(sources)))
        raise NotConverted(
            f"its {what} is computed at run time, from {names}; give these inputs as constants=, "
            "which minidnn.load_onnx takes",
            sources,
        )

    def known_ints(self, index: int, what: str) -> list[int] | None:
        """The integers of an optional operand that must be a constant; None if it is absent."""
        array = self.maybe_known(index, what)
        if array is None:
            return None
        if array.dtype.kind != "i" or array.ndim > 1:
            raise GraphError(
                f"its {what} is {array.dtype}{list(array.shape)}; valid is a list of integers"
            )
        return [int(number) for number in array.reshape(-1)]

    # Attributes

    def _value(self, name: str, type: int) -> Any:
        """The value of an attribute of that ``AttributeProto.AttributeType``; None if absent."""
        self._read.add(name)
        attribute = self._attributes.get(name)
        if attribute is None:
            return None
        if attribute.ref_attr_name:
            raise GraphError(
                f"attribute {name!r} refers to {attribute.ref_attr_name!r:.50} of a function; "
                f"valid is {_KINDS[type]}"
            )
        if attribute.type != type:
            kind = _KINDS.get(attribute.type, f"type {attribute.type}")
            raise GraphError(f"attribute {name!r} is {kind}; valid is {_KINDS[type]}")
        return getattr(attribute, _FIELDS[type])

    def has(self, name: str) -> bool:
        return name in self._attributes

    def integer(self, name: str, default: int) -> int:
        value = self._value(name, 2)
        return default if value is None else int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float) -> float:
        value = self._value(name, 1)
        return default if value is None else float(value)

    def text(self, name: str, default: str) -> str:
        value = self._value(name, 3)
        return default if value is None else value.decode("utf-8", "replace")

    def choice(self, name: str, default: str, *valid: str) -> str:
        """A text attribute that must be one of ``valid``; NotConverted otherwise."""
        text = self.text(name, default)
        if text not in valid:
            raise NotConverted(f"{name}={text!r:.50}; valid are {', '.join(map(repr, valid))}")
        return text

    def ints(self, name: str) -> list[int] | None:
        values = self._value(name, 7)
        return None if values is None else [int(number) for number in values]

    def floats(self, name: str) -> list[float] | None:
        values = self._value(name, 6)
        return None if values is None else [float(number) for number in values]

    def tensor(self, name: str) -> np.ndarray | None:
        proto = self._value(name, 4)
        return None if proto is None else read_tensor(proto, self._path, f"attribute {name!r}")

    def subgraph(self, name: str) -> Any:
        """A graph attribute that must be there."""
        graph = self._value(name, 5)
        if graph is None:
            raise GraphError(f"attribute {name!r} is missing; valid is a graph")
        return graph

    def unread(self) -> list[str]:
        """Attributes that the converter did not read: it does not know them."""
        return sorted(set(self._attributes) - self._read - {"consumed_inputs"})

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """Returns an axis that may be negative as one counted from 0."""
        if not -rank <= value < rank:
            raise GraphError(f"{what}={value}; valid are {-rank} to {rank - 1}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> list[int]:
        """Returns axes that may be negative as ones counted from 0; they must be different."""
        axes = [self.axis(value, rank, "axes") for value in values]
        if len(set(axes)) < len(axes):
            raise GraphError(f"axes={list(values)}; valid are different axes")
        return axes


Convert = Callable[[OnnxCall], Value | tuple[Value, ...]]


@dataclass(frozen=True)
class Converter:
    """The converter of one operator.

    Attributes:
        family: the heading of the operator in the documentation's table.
        note: the condition under which the operator is supported, for the table; "" for none.
    """

    convert: Convert
    family: str
    note: str = ""


class Family:
    """A registry of the converters in one file.

    A converter's docstring is its note in the documentation's table of operators.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.converters: dict[str, Converter] = {}

    def __call__(self, *names: str) -> Callable[[Convert], Convert]:
        """Registers a function for the operators of these names."""

        def register(convert: Convert) -> Convert:
            note = " ".join((convert.__doc__ or "").split())
            for name in names:
                self.add(name, convert, note)
            return convert

        return register

    def add(self, name: str, convert: Convert, note: str = "") -> None:
        assert name not in self.converters, name
        self.converters[name] = Converter(convert, self.title, note)
