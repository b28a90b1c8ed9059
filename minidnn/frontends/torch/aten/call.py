"""A call of an ATen operation as converters see it, and the registry of converters.

A converter is a function of an :class:`AtenCall`: it reads operands as values of the graph and
other arguments as Python objects, applies operators of minidnn, and returns the resulting values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.fx import Node

from minidnn._torch_internals import OpOverload
from minidnn.graph.ir import Constant, Value
from minidnn.graph.trace import current_trace
from minidnn.graph.types import INT8_DTYPES, ITEMSIZE, TensorType, numpy_dtype

#: The beginning of the reason for leaving an operation that behaves differently in training mode.
TRAINING = "it is in training mode"


class Refused(Exception):
    """The reason why an operation is left to PyTorch; converters raise it."""


#: Returns the value of an operation, or a sequence of its values with None for results that are not
#: computed; raises :class:`Refused` or GraphError.
Converter = Callable[["AtenCall"], Any]


class Values(Protocol):
    """The graph values of captured nodes."""

    def __getitem__(self, node: Node) -> Any: ...


class AtenCall:
    """A call of an ATen operation, with its arguments by their names in the operator's schema;
    defaults are filled in."""

    def __init__(self, node: Node, values: Values) -> None:
        self.node = node
        self._values = values
        self._arguments = arguments_of(node)

    def __getitem__(self, name: str) -> Any:
        """An argument that is not a tensor; tuples become lists."""
        value = self._arguments[name]
        for element in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(element, (Node, torch.SymInt, torch.SymFloat)):
                raise Refused(f"{name} is computed at run time")
        return list(value) if isinstance(value, (list, tuple)) else value

    def number(self, name: str) -> float | int:
        """An argument that is a number (an int stays one)."""
        value = self[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Refused(f"{name}={value!r} is no number")
        return value

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments."""
        return tuple(self._arguments)

    def is_tensor(self, name: str) -> bool:
        return isinstance(self._arguments[name], Node)

    def tensor(self, name: str) -> Value:
        """An operand; a number in place of a tensor is refused."""
        operand = self.optional(name)
        if operand is None:
            raise Refused(f"{name}={self._arguments[name]!r} is no tensor")
        return operand

    def optional(self, name: str) -> Value | None:
        """An operand that may be absent."""
        node = self._arguments[name]
        return self._values[node] if isinstance(node, Node) else None

    def tensors(self, name: str) -> list[Value]:
        """The operands in an argument that is a list of tensors."""
        return [self._values[each] for each in self._arguments[name]]

    def constant(self, name: str) -> Constant:
        """An operand that is known before the program runs."""
        operand = self.tensor(name)
        if not isinstance(operand, Constant):
            raise Refused(f"{name} is computed at run time")
        return operand

    def weight(self, name: str) -> Value:
        """An operand that is a constant, unless the network is trained: its weights are then inputs
        of every run."""
        return self.tensor(name) if self.trained else self.constant(name)

    def optional_weight(self, name: str) -> Value | None:
        """A weight that may be absent."""
        return None if self._arguments[name] is None else self.weight(name)

    @property
    def trained(self) -> bool:
        """Whether the graph is for training a network, with gradients and random numbers."""
        return current_trace().training

    def filled(self, name: str, type: TensorType, value: float) -> Constant:
        """A constant with all elements equal, in place of an absent operand."""
        dtype = numpy_dtype(type.dtype)
        return Constant(type, f"{self.node.name}.{name}", lambda: np.full(type.shape, value, dtype))

    def reads(self, place: int) -> bool:
        """Whether any node reads the result at this position among several."""
        indices = [user.args[1] for user in self.node.users if user.target is operator.getitem]
        return place in indices or len(indices) < len(self.node.users)

    @property
    def result(self) -> TensorType:
        """The type that PyTorch gives the (first) result."""
        value = self.node.meta["val"]
        while isinstance(value, (list, tuple)):
            value = value[0]
        return type_of(value)

    def ints(self, name: str, count: int) -> tuple[int, ...]:
        """A list of ``count`` ints; a list of one int is repeated."""
        values = self[name]
        if len(values) not in (1, count):
            raise Refused(f"{name}={values} is for {len(values)} axes; known are {count}")
        return tuple(values) if len(values) == count else (values[0],) * count

    def pair(self, name: str) -> tuple[int, int]:
        """A list of one or two ints as a pair."""
        first, second = self.ints(name, 2)
        return (first, second)

    def axis(self, name: str, rank: int) -> int:
        """An axis as an index that is not negative."""
        return int(self[name]) % max(rank, 1)


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a node by the names in its operator's schema, defaults filled in."""
    target: Any = node.target
    arguments: dict[str, Any] = {}
    for i, argument in enumerate(target._schema.arguments):
        if i < len(node.args):
            arguments[argument.name] = node.args[i]
        elif argument.name in node.kwargs:
            arguments[argument.name] = node.kwargs[argument.name]
        else:
            arguments[argument.name] = argument.default_value
    return arguments


def type_of(tensor: Any) -> TensorType:
    """The type of a PyTorch tensor; raises Refused if graphs do not support it."""
    if not isinstance(tensor, torch.Tensor):
        raise Refused(f"it gives a {type(tensor).__name__}, not a tensor")
    if tensor.layout != torch.strided:
        raise Refused(f"a tensor has layout {tensor.layout}")
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in ITEMSIZE or dtype in INT8_DTYPES:  # int8 and uint8 wrap in PyTorch
        raise Refused(f"a tensor has dtype {dtype}")
    sizes: Sequence[Any] = tuple(tensor.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise Refused(f"a tensor has the shape {tuple(sizes)}, which depends on data")
    if math.prod(sizes) == 0:
        raise Refused(f"a tensor of shape {tuple(sizes)} has no elements")
    return TensorType(tuple(sizes), dtype)


@dataclass(frozen=True)
class AtenOperator:
    """An ATen overload that is known, its converter, and the condition under which it is taken."""

    name: str
    converter: Converter
    condition: str


_TAKEN: dict[str, AtenOperator] = {}


def takes(*names: str, when: str = "") -> Callable[[Converter], Converter]:
    """Registers a converter for ATen overloads; the reference page shows the condition ``when``."""

    def register(converter: Converter) -> Converter:
        for name in names:
            assert name not in _TAKEN, name
            _TAKEN[name] = AtenOperator(name, converter, when)
        return converter

    return register


_LEFT: dict[str, str] = {}


def leaves(*names: str, why: str) -> None:
    """Registers the reason why these ATen overloads are left; otherwise it is that they are not
    known."""
    _LEFT.update(dict.fromkeys(names, why))


def why_left(name: str) -> str:
    """Why an operation that is not taken is left."""
    return _LEFT.get(name, "it is not known")


def operator_named(name: str) -> AtenOperator | None:
    """The known operation of a registry's key, such as "conv2d.default"."""
    return _TAKEN.get(name)


def known() -> dict[str, AtenOperator]:
    """All known operations by name, in the order of names."""
    return dict(sorted(_TAKEN.items()))


def key_of(node: Node) -> str:
    """The registry's key of an operation, such as "conv2d.default" for one of ATen's."""
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target).removeprefix("aten.")
    return str(getattr(target, "__name__", target))
