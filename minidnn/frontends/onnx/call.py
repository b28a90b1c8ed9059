"""A node of a model, as the function that converts it sees it; and families of such functions."""

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

# ``AttributeProto.AttributeType`` and the field in which the value stands.
_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 5: "g", 6: "floats", 7: "ints", 8: "strings"}
_KINDS = {
    1: "a number",
    2: "a whole number",
    3: "a text",
    4: "a tensor",
    5: "a graph",
    6: "numbers",
    7: "whole numbers",
    8: "texts",
}


class NotConverted(Exception):
    """Why a node cannot be converted; ``inputs`` are those that would have to be known."""

    def __init__(self, reason: str, inputs: frozenset[str] = frozenset()) -> None:
        super().__init__(reason)
        self.inputs = inputs


class OnnxCall:
    """The operands, attributes and outputs of one node."""

    def __init__(
        self,
        proto: Any,
        opset: int,
        operands: Sequence[Value | None],
        build: Builder,
        path: Path | None,
        inline: Callable[[Any], tuple[Value, ...]],
    ) -> None:
        #: Converts the nodes of a graph that is an attribute, and gives its outputs.
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
            raise GraphError(f"attribute {twice!r:.50} stands there twice")

    def __len__(self) -> int:
        return len(self._operands)

    def refuse(self, reason: str) -> NotConverted:
        return NotConverted(reason)

    def wants(self, output: int) -> bool:
        """Whether that output has a name."""
        return output < len(self.output_names) and bool(self.output_names[output])

    # Operands

    @property
    def all(self) -> list[Value]:
        """All operands of a node that takes any number of them."""
        return [self.operand(i) for i in range(max(1, len(self._operands)))]

    def operand(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            raise GraphError(f"operand {index} is missing; it has {len(self._operands)}")
        return value

    def optional(self, index: int) -> Value | None:
        return self._operands[index] if index < len(self._operands) else None

    def known(self, index: int, what: str) -> np.ndarray:
        """An operand that must be known while converting."""
        return self.data(self.operand(index), what)

    def maybe_known(self, index: int, what: str) -> np.ndarray | None:
        return None if self.optional(index) is None else self.known(index, what)

    def data(self, value: Value, what: str) -> np.ndarray:
        """The array of a value that must be a constant."""
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
        """The whole numbers of an optional operand that must be known; None if it is absent."""
        array = self.maybe_known(index, what)
        if array is None:
            return None
        if array.dtype.kind != "i" or array.ndim > 1:
            raise GraphError(
                f"its {what} is {array.dtype}{list(array.shape)}; valid is a list of whole numbers"
            )
        return [int(number) for number in array.reshape(-1)]

    # Attributes

    def _value(self, name: str, type: int) -> Any:
        """An attribute of that ``AttributeProto.AttributeType``; None if it is absent."""
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
            given = _KINDS.get(attribute.type, f"type {attribute.type}")
            raise GraphError(f"attribute {name!r} is {given}; valid is {_KINDS[type]}")
        return getattr(attribute, _FIELDS[type])

    def has(self, name: str) -> bool:
        return name in self._attributes

    def integer(self, name: str, default: int) -> int:
        found = self._value(name, 2)
        return default if found is None else int(found)

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.integer(name, int(default)))

    def number(self, name: str, default: float) -> float:
        found = self._value(name, 1)
        return default if found is None else float(found)

    def text(self, name: str, default: str) -> str:
        found = self._value(name, 3)
        return default if found is None else found.decode("utf-8", "replace")

    def choice(self, name: str, default: str, *valid: str) -> str:
        """A text that must be one of some; Refused otherwise."""
        found = self.text(name, default)
        if found not in valid:
            raise NotConverted(f"{name}={found!r:.50}; valid are {', '.join(map(repr, valid))}")
        return found

    def ints(self, name: str) -> list[int] | None:
        found = self._value(name, 7)
        return None if found is None else [int(number) for number in found]

    def floats(self, name: str) -> list[float] | None:
        found = self._value(name, 6)
        return None if found is None else [float(number) for number in found]

    def tensor(self, name: str) -> np.ndarray | None:
        found = self._value(name, 4)
        return None if found is None else read_tensor(found, self._path, f"attribute {name!r}")

    def subgraph(self, name: str) -> Any:
        """A graph that must be there."""
        found = self._value(name, 5)
        if found is None:
            raise GraphError(f"attribute {name!r} is missing; valid is a graph")
        return found

    def unread(self) -> list[str]:
        """Attributes that the converting function does not know."""
        return sorted(set(self._attributes) - self._read - {"consumed_inputs"})

    def axis(self, value: int, rank: int, what: str = "axis") -> int:
        """An axis counted from 0."""
        if not -rank <= value < rank:
            raise GraphError(f"{what}={value}; valid are {-rank} to {rank - 1}")
        return value % rank

    def axes(self, values: Sequence[int], rank: int) -> list[int]:
        """Different axes counted from 0."""
        found = [self.axis(value, rank, "axes") for value in values]
        if len(set(found)) < len(found):
            raise GraphError(f"axes={list(values)}; valid are different axes")
        return found


Convert = Callable[[OnnxCall], Value | tuple[Value, ...]]


@dataclass(frozen=True)
class Converter:
    """Converts nodes of one kind.  ``note`` says in a sentence what of it is not supported."""

    convert: Convert
    family: str
    note: str = ""


class Family:
    """Collects the converters of a file; each function's docstring is its note."""

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
