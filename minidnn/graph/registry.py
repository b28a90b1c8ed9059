"""The registry of operators by name, and the codecs between their attributes and JSON.

Operators of :mod:`minidnn.graph.operators` are registered; third parties register theirs with
:func:`register`.  Attributes are checked against the dataclasses' type annotations.

================================  ==========================================================
annotation                        JSON
================================  ==========================================================
bool, int, float, str, None       itself; a float that JSON lacks is ``{"float": "inf"}``
Literal, an enumeration           its value
tuple of these                    a list
Expression                        ``{"expression": [instructions]}``
Graph                             ``{"graph": ...}``, see :mod:`minidnn.graph.storage`
a frozen dataclass, an Operator   ``{"ClassName": {"field": ...}}``
a union of these                  that of the first member which fits the value
================================  ==========================================================

Nothing else is read or written, so that nothing in a file can be executed.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import reprlib
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as builtin
from minidnn.graph.expression import Expression, from_json, to_json
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Operator

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 100
_brief.maxlevel = 2


def brief(value: object) -> str:
    """The ``repr`` of a value that was read, cut to a length and depth that fit into an error."""
    return _brief.repr(value)


#: Writes a graph that is an attribute, such as a region's body, as JSON.
WriteGraph = Callable[[Graph], Any]
#: Reads such a graph from JSON; raises GraphError for anything else.
ReadGraph = Callable[[Any], Graph]


class Codec(ABC):
    """Writes and reads the values of one type annotation.

    A subclass implements :meth:`holds`, :meth:`matches`, :meth:`encode` and :meth:`decode`; callers
    use :meth:`write` and :meth:`read`, which check first.
    """

    #: The valid values in words, for errors.
    valid: str

    @abstractmethod
    def holds(self, value: Any) -> bool:
        """Whether ``value`` has this type, its members aside."""

    @abstractmethod
    def matches(self, data: Any) -> bool:
        """Whether ``data`` is the JSON of such a value, its members aside."""

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return value

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return data

    def write(self, value: Any, write_graph: WriteGraph) -> Any:
        if not self.holds(value):
            raise GraphError(f"{brief(value)} ({type(value).__name__}); valid is {self.valid}")
        return self.encode(value, write_graph)

    def read(self, data: Any, read_graph: ReadGraph) -> Any:
        if not self.matches(data):
            raise GraphError(f"{brief(data)}; valid is {self.valid}")
        return self.decode(data, read_graph)


class PlainCodec(Codec):
    """None, a bool, an int of 64 bits, or a str of valid Unicode, each written as it is."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.valid = {type(None): "None", int: "an int of 64 bits", str: "a text"}.get(
            kind, f"a {kind.__name__}"
        )

    def holds(self, value: Any) -> bool:
        return self.matches(int(value) if isinstance(value, np.integer) else value)

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return int(value) if isinstance(value, np.integer) else value

    def matches(self, data: Any) -> bool:
        if type(data) is not self.kind:
            return False
        if isinstance(data, str):
            return is_text(data)
        return not isinstance(data, int) or -(2**63) <= data < 2**63


class FloatCodec(Codec):
    """A float; an int stays an int, since arguments given as 1 print as 1."""

    valid = "a number"

    def holds(self, value: Any) -> bool:
        if isinstance(value, (np.integer, np.floating)):
            value = value.item()
        return type(value) is float or PlainCodec(int).matches(value)

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return _write_number(value)

    def matches(self, data: Any) -> bool:
        if isinstance(data, dict):
            return list(data) == ["float"] and data["float"] in ("inf", "-inf", "nan")
        return self.holds(data)

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return _read_number(data)


class ChoiceCodec(Codec):
    """One of the values of a Literal or an enumeration."""

    def __init__(self, choices: dict[Any, Any]) -> None:
        self.choices = choices  # what is written -> the value
        self.valid = "one of " + ", ".join(map(repr, choices))

    def holds(self, value: Any) -> bool:
        return any(type(value) is type(known) and value == known for known in self.choices.values())

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return next(written for written, known in self.choices.items() if known == value)

    def matches(self, data: Any) -> bool:
        return any(type(data) is type(known) and data == known for known in self.choices)

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return self.choices[data]


class TupleCodec(Codec):
    """A tuple of members with a codec each, or, if ``repeated``, of any number with one codec."""

    def __init__(self, members: list[Codec], repeated: bool) -> None:
        self.members, self.repeated = members, repeated
        inner = members[0].valid + ", ..." if repeated else ", ".join(m.valid for m in members)
        self.valid = f"a list of ({inner})"

    def _fits(self, value: Any) -> bool:
        return self.repeated or len(value) == len(self.members)

    def _each(self, value: Any) -> list[tuple[Codec, Any]]:
        members = self.members * len(value) if self.repeated else self.members
        return list(zip(members, value, strict=True))

    def holds(self, value: Any) -> bool:
        return isinstance(value, tuple) and self._fits(value)

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return [member.write(item, write_graph) for member, item in self._each(value)]

    def matches(self, data: Any) -> bool:
        return isinstance(data, list) and self._fits(data)

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return tuple(member.read(item, read_graph) for member, item in self._each(data))


class UnionCodec(Codec):
    """A union: a value is written and read by the first of several codecs that fits it."""

    def __init__(self, members: list[Codec]) -> None:
        self.members = members
        self.valid = " or ".join(dict.fromkeys(member.valid for member in members))

    def holds(self, value: Any) -> bool:
        return any(member.holds(value) for member in self.members)

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return next(m for m in self.members if m.holds(value)).encode(value, write_graph)

    def matches(self, data: Any) -> bool:
        return any(member.matches(data) for member in self.members)

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return next(m for m in self.members if m.matches(data)).decode(data, read_graph)


class TaggedCodec(Codec):
    """The base class of codecs that write a value as ``{tag: ...}``."""

    def __init__(self, tag: str, kind: type) -> None:
        self.tag, self.kind = tag, kind
        self.valid = f'{{"{tag}": ...}}'

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def matches(self, data: Any) -> bool:
        return isinstance(data, dict) and list(data) == [self.tag]


class GraphCodec(TaggedCodec):
    """A graph, as the caller's functions write and read it."""

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return {self.tag: write_graph(value)}

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return read_graph(data[self.tag])


class ExpressionCodec(TaggedCodec):
    """A scalar expression: the list of its instructions, see ``expression.to_json``."""

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return {self.tag: [[_write_number(part) for part in line] for line in to_json(value)]}

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        lines = data[self.tag]
        if not isinstance(lines, list) or not all(map(_is_instruction, lines)):
            raise GraphError(f"{brief(lines)}; valid is a list of lists of texts and numbers")
        return from_json([[_read_number(part) for part in line] for line in lines])


def is_text(value: Any) -> bool:
    """Whether a value is a str that UTF-8 can encode: one without surrogates."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def _write_number(value: Any) -> Any:
    if isinstance(value, (np.integer, np.floating)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _read_number(data: Any) -> Any:
    return float(data["float"]) if isinstance(data, dict) else data


def _is_instruction(data: Any) -> bool:
    parts = (FloatCodec(), PlainCodec(str))
    return isinstance(data, list) and all(any(p.matches(item) for p in parts) for item in data)


class RecordCodec(TaggedCodec):
    """A frozen dataclass, of exactly this class."""

    def __init__(self, kind: type) -> None:
        super().__init__(kind.__name__, kind)

    def holds(self, value: Any) -> bool:
        return type(value) is self.kind

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return {self.tag: write_fields(value, write_graph)}

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        return read_fields(self.kind, data[self.tag], read_graph)


class OperatorCodec(Codec):
    """A registered operator, where the annotation is an operator class that it derives from."""

    def __init__(self, kind: type[Operator]) -> None:
        self.kind = kind
        self.valid = f'{{"NameOfOperator": ...}}, the operator being a kind of {kind.__name__}'

    def holds(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def encode(self, value: Any, write_graph: WriteGraph) -> Any:
        return write_operator(value, write_graph)

    def matches(self, data: Any) -> bool:
        return isinstance(data, dict) and len(data) == 1

    def decode(self, data: Any, read_graph: ReadGraph) -> Any:
        operator = read_operator(data, read_graph)
        if not isinstance(operator, self.kind):
            raise GraphError(f"{brief(data)}; valid is {self.valid}")
        return operator


@cache
def codec_for(annotation: Any) -> Codec:
    """The codec of a type annotation; GraphError if its values cannot be saved."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return UnionCodec([codec_for(member) for member in arguments])
    if origin is tuple and arguments:
        repeated = len(arguments) == 2 and arguments[1] is Ellipsis
        members = [codec_for(member) for member in arguments if member is not Ellipsis]
        return TupleCodec(members, repeated)
    if origin is typing.Literal:
        return ChoiceCodec({value: value for value in arguments})
    if annotation is None or annotation in (type(None), bool, int, str):
        return PlainCodec(type(None) if annotation is None else annotation)
    if annotation is float:
        return FloatCodec()
    if annotation is Expression:
        return ExpressionCodec("expression", Expression)
    if annotation is Graph:
        return GraphCodec("graph", Graph)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ChoiceCodec({member.value: member for member in annotation})
    if isinstance(annotation, type) and issubclass(annotation, Operator):
        return OperatorCodec(annotation)
    if isinstance(annotation, type) and _is_frozen(annotation):
        return RecordCodec(annotation)
    raise GraphError(
        f"{annotation} cannot be saved; valid are bool, int, float, str, None, Literal, "
        "enumerations, tuples, Expression, Graph, operators and frozen dataclasses of these"
    )


def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and bool(parameters.frozen)


@cache
def fields_of(kind: Any) -> dict[str, tuple[Codec, bool, str]]:
    """For each field of a dataclass by its name in files: its codec, whether it is required, and
    its attribute.  A field that was renamed has ``metadata={"saved": former name}``."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # Graph may be imported for type checkers only
        hints = typing.get_type_hints(kind, localns={"Graph": Graph, "Expression": Expression})
    fields = {}
    for field in dataclasses.fields(kind):
        if field.init:
            missing = dataclasses.MISSING
            required = field.default is missing and field.default_factory is missing
            try:
                codec = codec_for(hints[field.name])
            except GraphError as error:
                raise GraphError(f"{kind.__name__}.{field.name}: {error}") from None
            saved = field.metadata.get("saved", field.name)
            fields[saved] = (codec, required, field.name)
    return fields


def write_fields(value: Any, write_graph: WriteGraph) -> dict[str, Any]:
    """The fields of a dataclass instance as a JSON object."""
    written = {}
    kind: Any = type(value)
    for name, (codec, _, attribute) in fields_of(kind).items():
        try:
            written[name] = codec.write(getattr(value, attribute), write_graph)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    return written


def read_fields(kind: type, data: Any, read_graph: ReadGraph) -> Any:
    """An instance of the dataclass ``kind`` from a JSON object; a field with a default may be
    absent.

    Raises GraphError for anything else.
    """
    known = fields_of(kind)
    names = ", ".join(known) or "none"
    if not isinstance(data, dict):
        raise GraphError(f"fields are {brief(data)}; valid is an object with {names}")
    arguments = {}
    for name, item in data.items():
        if name not in known:
            raise GraphError(f"unknown field {brief(name)}; valid are: {names}")
        try:
            codec, _, attribute = known[name]
            arguments[attribute] = codec.read(item, read_graph)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    for name, (codec, required, _) in known.items():
        if required and name not in data:
            raise GraphError(f"{name} is missing; valid is {codec.valid}")
    try:
        return kind(**arguments)
    except GraphError:
        raise
    except Exception as error:
        # Values of the right types may still be out of the range that the class accepts.
        raise GraphError(f"{kind.__name__} of {brief(data)} cannot be made: {error!r}") from error


def _is_concrete(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, Operator)
        and _is_frozen(kind)
        and not inspect.isabstract(kind)
    )


_operators: dict[str, type[Operator]] = {
    kind.__name__: kind for kind in vars(builtin).values() if _is_concrete(kind)
}


def register(kind: type[Operator]) -> type[Operator]:
    """Registers an operator class, so that graphs with it can be saved and loaded.

    May be used as a decorator.  Raises GraphError if the class is no frozen dataclass with
    fields that can be saved, or if another operator has its name.
    """
    if not _is_concrete(kind):
        raise GraphError(f"register: {kind!r}; valid is a frozen dataclass derived from Operator")
    if _operators.setdefault(kind.__name__, kind) is not kind:
        raise GraphError(f"register: there is another operator named {kind.__name__!r}")
    try:
        fields_of(kind)
    except GraphError:
        del _operators[kind.__name__]
        raise
    return kind


def write_operator(operator: Operator, write_graph: WriteGraph) -> dict[str, Any]:
    """An operator as ``{"ClassName": {"field": ...}}``."""
    name = type(operator).__name__
    if _operators.get(name) is not type(operator):
        raise GraphError(
            f"the operator {name} is not known; make it so with "
            f"minidnn.graph.registry.register({name})"
        )
    return {name: write_fields(operator, write_graph)}


def read_operator(data: Any, read_graph: ReadGraph) -> Operator:
    """The inverse of :func:`write_operator`; GraphError for anything else."""
    if not isinstance(data, dict) or len(data) != 1:
        raise GraphError(f'operator {brief(data)}; valid is {{"ClassName": {{...}}}}')
    ((name, attributes),) = data.items()
    if name not in _operators:
        raise GraphError(
            f"unknown operator {brief(name)}; valid are: {', '.join(sorted(_operators))}"
        )
    try:
        operator = read_fields(_operators[name], attributes, read_graph)
    except GraphError as error:
        raise GraphError(f"{name}: {error}") from None
    return typing.cast(Operator, operator)
