"""Operators by name, and their attributes as JSON.

Operators of :mod:`minidnn.graph.operators` are known; third parties make theirs known with
:func:`register`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from functools import cache
from typing import Any

from minidnn.errors import GraphError
from minidnn.graph import operators as builtin
from minidnn.graph.attributes import (
    ChoiceCodec,
    Codec,
    ExpressionCodec,
    FloatCodec,
    GraphCodec,
    PlainCodec,
    ReadGraph,
    TaggedCodec,
    TupleCodec,
    UnionCodec,
    WriteGraph,
    brief,
)
from minidnn.graph.expression import Expression
from minidnn.graph.ir import Graph
from minidnn.graph.operator import Operator


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
    """A registered operator that is an instance of an abstract class."""

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
def fields_of(kind: Any) -> dict[str, tuple[Codec, bool]]:
    """Name, codec and whether it must be given, of each field of a dataclass."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError:  # Graph may be imported for type checkers only
        hints = typing.get_type_hints(kind, localns={"Graph": Graph, "Expression": Expression})
    found = {}
    for field in dataclasses.fields(kind):
        if field.init:
            missing = dataclasses.MISSING
            required = field.default is missing and field.default_factory is missing
            try:
                found[field.name] = (codec_for(hints[field.name]), required)
            except GraphError as error:
                raise GraphError(f"{kind.__name__}.{field.name}: {error}") from None
    return found


def write_fields(value: Any, write_graph: WriteGraph) -> dict[str, Any]:
    """All fields of a dataclass as JSON."""
    found = {}
    kind: Any = type(value)
    for name, (codec, _) in fields_of(kind).items():
        try:
            found[name] = codec.write(getattr(value, name), write_graph)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    return found


def read_fields(kind: type, data: Any, read_graph: ReadGraph) -> Any:
    """An instance of a dataclass; a field that has a default may be absent."""
    known = fields_of(kind)
    names = ", ".join(known) or "none"
    if not isinstance(data, dict):
        raise GraphError(f"fields are {brief(data)}; valid is an object with {names}")
    arguments = {}
    for name, item in data.items():
        if name not in known:
            raise GraphError(f"unknown field {brief(name)}; valid are: {names}")
        try:
            arguments[name] = known[name][0].read(item, read_graph)
        except GraphError as error:
            raise GraphError(f"{name}: {error}") from None
    for name, (codec, required) in known.items():
        if required and name not in data:
            raise GraphError(f"{name} is missing; valid is {codec.valid}")
    try:
        return kind(**arguments)
    except GraphError:
        raise
    except Exception as error:
        # Values of the right types may still be beyond what the class computes with.
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
    """Makes an operator class known, so that graphs with it can be saved and loaded.

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
    ((name, given),) = data.items()
    if name not in _operators:
        raise GraphError(
            f"unknown operator {brief(name)}; valid are: {', '.join(sorted(_operators))}"
        )
    try:
        operator = read_fields(_operators[name], given, read_graph)
    except GraphError as error:
        raise GraphError(f"{name}: {error}") from None
    return typing.cast(Operator, operator)
